"""Where things stand in a written file: in which order frames and links hang on a link, so that a file read depth first
gives a model's own order again, and what carries shapes and the mass of the ground."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal
from xml.etree.ElementTree import Element

import numpy as np

from knuckle.model.inertia import quaternion_product, rotation_matrix
from knuckle.model.model import Model

Item = tuple[Literal["frame", "link"], int]
IDENTITY = np.array([1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True)
class Carrier:
    """An element that shapes are written into, and its pose on its link."""

    element: Element
    position: np.ndarray
    rotation: np.ndarray  # quaternion wxyz of unit length

    @staticmethod
    def of_link(element: Element) -> Carrier:
        return Carrier(element, np.zeros(3), IDENTITY)

    @staticmethod
    def of_frame(element: Element, model: Model, frame: int) -> Carrier:
        return Carrier(element, np.asarray(model.frames.position[frame]), unit(model.frames.rotation[frame]))

    def pose_of(self, position, rotation) -> tuple[np.ndarray, np.ndarray]:
        """Position and quaternion in this element of a pose on its link."""
        back = self.rotation * (1, -1, -1, -1)
        offset = np.asarray(position) - self.position
        return rotation_matrix(back) @ offset, quaternion_product(back, np.asarray(rotation))


def unit(quaternion) -> np.ndarray:
    quaternion = np.asarray(quaternion, float)
    return quaternion / np.linalg.norm(quaternion)


def moved_by_mocap(model: Model) -> dict[str, str]:
    """What mocap bodies move: their own names and those of all that hangs on them, with the name of the body above."""
    return {body.name: body.parent for body in model.topology.ground}


def ground_carrier(model: Model) -> str | None:
    """The frame on the world that carries the mass of all that is welded to it: the first with shapes, or the first.

    A model knows that mass as one number, not where it is.
    """
    on_world = [name for name, link in zip(model.frames.names, model.frames.link, strict=True) if link < 0]
    if not on_world or model.topology.ground_mass == 0:
        return None
    return next((name for name in on_world if name in model.geometry.body), on_world[0])


def ground_problems(model: Model) -> list[str]:
    mass = model.topology.ground_mass
    if mass == 0 or ground_carrier(model) is not None:
        return []
    return [f"mass of {mass:g} kg welded to the world: no frame stands on the world that could carry it"]


def hanging_order(model: Model) -> dict[int, list[Item]]:
    """Frames and child links of each link (-1 is the world), by number, in the order they were described in.

    A model keeps that order in three lists: links, frames and shapes. An item stands in each list where the first entry
    of all that hangs on it stands; the three orders are merged. Lists that contradict each other, which no description
    gives, leave frames first.
    """
    places = _places(model)
    order = {}
    for link, items in _hanging(model).items():
        graph = TopologicalSorter(dict.fromkeys(items, ()))
        for kind in ("link", "frame", "shape"):
            known = sorted((item for item in items if kind in places[item]), key=lambda item: places[item][kind])
            for before, after in pairwise(known):
                graph.add(after, before)
        try:
            order[link] = list(graph.static_order())
        except CycleError:
            order[link] = items
    return order


def _hanging(model: Model) -> dict[int, list[Item]]:
    found: dict[int, list[Item]] = {link: [] for link in range(-1, len(model.link_names))}
    for frame, link in enumerate(model.frames.link):
        found[link].append(("frame", frame))
    for child, link in enumerate(model.topology.parent):
        found[link].append(("link", child))
    return found


def _places(model: Model) -> dict[Item, dict[str, int]]:
    """Where each frame and link, with all that hangs on it, stands first in the lists of links, frames and shapes."""
    places: dict[Item, dict[str, int]] = defaultdict(dict)
    frame_of = {name: frame for frame, name in enumerate(model.frames.names)}
    for frame, link in enumerate(model.frames.link):
        places["frame", frame]["frame"] = frame
        _mark(places, model, link, "frame", frame)
    for shape, (body, link) in enumerate(zip(model.geometry.body, model.geometry.link, strict=True)):
        if body in frame_of:
            places["frame", frame_of[body]].setdefault("shape", shape)
        _mark(places, model, link, "shape", shape)
    for link in range(len(model.link_names)):
        places["link", link]["link"] = link
    return places


def _mark(places: dict[Item, dict[str, int]], model: Model, link: int, kind: str, number: int) -> None:
    """Note the number with a link and all above it, unless one is noted, which is smaller."""
    while link >= 0 and kind not in places["link", link]:
        places["link", link][kind] = number
        link = model.topology.parent[link]
