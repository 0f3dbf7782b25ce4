"""Pictures of mechanisms and of their motion."""

from knuckle.viewer.plots import motion_figure

__all__ = ["motion_figure"]
