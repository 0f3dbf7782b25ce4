"""The report of a fit: one HTML page that opens offline, without scripts, and a JSON file of every number."""

from knuckle.sysid.report.answer import Answer, unidentified
from knuckle.sysid.report.page import failures_in_words, write_report
from knuckle.sysid.report.summary import summarise

__all__ = ["Answer", "failures_in_words", "summarise", "unidentified", "write_report"]
