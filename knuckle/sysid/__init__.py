"""From recordings of a mechanism to a model that agrees with them."""

from knuckle.sysid.files import load_saved, save
from knuckle.sysid.findings import Finding, RecordingError, Report
from knuckle.sysid.fit import Fit, fit
from knuckle.sysid.objective import Regularise
from knuckle.sysid.parameters import Prior
from knuckle.sysid.readers import Recordings, read_recordings
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.split import resample, segments, shift, split

__all__ = [
    "Channel",
    "Finding",
    "Fit",
    "Prior",
    "Recording",
    "RecordingError",
    "Recordings",
    "Regularise",
    "Report",
    "fit",
    "load_saved",
    "read_recordings",
    "resample",
    "save",
    "segments",
    "shift",
    "split",
]
