"""From recordings of a mechanism to a model that agrees with them."""

from knuckle.sysid.base_parameters import BaseParameters, base_parameters
from knuckle.sysid.changes import Changes, find_changes
from knuckle.sysid.excitation import Excitation, excite
from knuckle.sysid.files import load_saved, save
from knuckle.sysid.findings import Finding, RecordingError, Report
from knuckle.sysid.fit import Fit, fit
from knuckle.sysid.free_parameters import Batch, FreeParameters, batch, parameters
from knuckle.sysid.objective import Regularise
from knuckle.sysid.parameters import Prior
from knuckle.sysid.posterior import Posterior, posterior
from knuckle.sysid.prediction import Draws, MotionPrediction, Prediction, calibrate, predict
from knuckle.sysid.prediction.predict import draws
from knuckle.sysid.readers import Recordings, read_recordings
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.regression import Regression, regress
from knuckle.sysid.smoothing import EffortNoise, Smoothed, smooth
from knuckle.sysid.split import resample, segments, shift, split

__all__ = [
    "BaseParameters",
    "Batch",
    "Changes",
    "Channel",
    "Draws",
    "EffortNoise",
    "Excitation",
    "Finding",
    "Fit",
    "FreeParameters",
    "MotionPrediction",
    "Posterior",
    "Prediction",
    "Prior",
    "Recording",
    "RecordingError",
    "Recordings",
    "Regression",
    "Regularise",
    "Report",
    "Smoothed",
    "base_parameters",
    "batch",
    "calibrate",
    "draws",
    "excite",
    "find_changes",
    "fit",
    "load_saved",
    "parameters",
    "posterior",
    "predict",
    "read_recordings",
    "regress",
    "resample",
    "save",
    "segments",
    "shift",
    "smooth",
    "split",
]
