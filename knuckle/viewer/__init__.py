"""Pictures of mechanisms and of their motion."""

from knuckle.viewer.animation import animate, energies, frames, plot
from knuckle.viewer.plots import motion_figure

__all__ = ["animate", "energies", "frames", "motion_figure", "plot"]
