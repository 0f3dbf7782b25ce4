"""The report of a fit: one HTML page that opens offline, without scripts, and a JSON file of every number."""

from knuckle.sysid.report.answer import Answer, summarise, unidentified
from knuckle.sysid.report.page import failures_in_words, write_report

__all__ = ["Answer", "failures_in_words", "summarise", "unidentified", "write_report"]
