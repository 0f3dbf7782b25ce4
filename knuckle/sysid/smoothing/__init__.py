"""State estimation: states and efforts of a recording with covariances, and the noise that they are seen through."""

from knuckle.sysid.smoothing.result import EffortNoise, Smoothed, Track
from knuckle.sysid.smoothing.smooth import smooth

__all__ = ["EffortNoise", "Smoothed", "Track", "smooth"]
