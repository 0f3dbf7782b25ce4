"""Hybrid models as files: model, blueprint, weights, contact and integrator, without code."""

from knuckle.hybrid.calibration import Calibration
from knuckle.hybrid.container import HybridFileError
from knuckle.hybrid.file import Hybrid, load_hybrid, save_hybrid

__all__ = ["Calibration", "Hybrid", "HybridFileError", "load_hybrid", "save_hybrid"]
