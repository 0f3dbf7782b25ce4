"""From recordings of a mechanism to a model that agrees with them."""

from knuckle.sysid.base_parameters import BaseParameters, base_parameters
from knuckle.sysid.excitation import Excitation, excite
from knuckle.sysid.files import load_saved, save
from knuckle.sysid.findings import Finding, RecordingError, Report
from knuckle.sysid.fit import Fit, fit
from knuckle.sysid.objective import Regularise
from knuckle.sysid.parameters import Prior
from knuckle.sysid.posterior import Posterior, posterior
from knuckle.sysid.readers import Recordings, read_recordings
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.split import resample, segments, shift, split

__all__ = [
    "BaseParameters",
    "Channel",
    "Excitation",
    "Finding",
    "Fit",
    "Posterior",
    "Prior",
    "Recording",
    "RecordingError",
    "Recordings",
    "Regularise",
    "Report",
    "base_parameters",
    "excite",
    "fit",
    "load_saved",
    "posterior",
    "read_recordings",
    "resample",
    "save",
    "segments",
    "shift",
    "split",
]
