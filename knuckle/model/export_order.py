"""In which order frames and links hang on a link, so that a file read depth first gives a model's own order again."""

from __future__ import annotations

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from knuckle.model.model import Model

Item = tuple[Literal["frame", "link"], int]


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
