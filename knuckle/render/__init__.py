"""Pictures of planar scenes, differentiable by where things are, how large they are, and their colours."""

from knuckle.render.items import Capsule, Disc, Item, Polygon
from knuckle.render.picture import View, render
from knuckle.render.scene import model_items

__all__ = ["Capsule", "Disc", "Item", "Polygon", "View", "model_items", "render"]
