"""Prediction intervals: functions of a fitted model and roll-outs, over all that data and prior leave possible."""

from knuckle.sysid.prediction.calibrate import calibrate
from knuckle.sysid.prediction.draws import Draws
from knuckle.sysid.prediction.intervals import MotionPrediction, Prediction
from knuckle.sysid.prediction.predict import predict

__all__ = ["Draws", "MotionPrediction", "Prediction", "calibrate", "predict"]
