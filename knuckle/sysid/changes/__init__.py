"""What changed between two sets of logs of one robot, and drive gains from a known load."""

from knuckle.sysid.changes.find import find_changes
from knuckle.sysid.changes.result import Change, Changes, Gain, Measured

__all__ = ["Change", "Changes", "Gain", "Measured", "find_changes"]
