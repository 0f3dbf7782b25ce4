"""Which shapes are tested against each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from knuckle.contact.narrow import kinds_of
from knuckle.model.geometry import Geometry
from knuckle.model.model import Model
from knuckle.model.topology import Topology


@dataclass(frozen=True)
class Pair:
    """Two shapes of a model by number."""

    a: int
    b: int


def contact_pairs(model: Model, *, self_collision: bool = False) -> tuple[Pair, ...]:
    """The pairs of shapes that may touch, by MuJoCo's rules.

    Contype and conaffinity share a bit, no exclude names their links, they are not on one link nor on a link and its
    parent, and one of them moves.

    Without `self_collision` links of one tree do not touch each other. Raises ValueError where a pair has no test.
    """
    geometry = model.geometry
    excluded = {frozenset(pair) for pair in model.topology.excludes}
    adjacent = _adjacent(model.topology)
    pairs = []
    for i, j in combinations(range(len(geometry)), 2):
        links = geometry.link[i], geometry.link[j]
        if not _share_bits(geometry, i, j) or frozenset((geometry.body[i], geometry.body[j])) in excluded:
            continue
        if links[0] == links[1] or frozenset(links) in adjacent:
            continue
        if not self_collision and min(links) >= 0 and _same_tree(model.topology, *links):
            continue
        swap = kinds_of(geometry, i, j)[1]
        pairs.append(Pair(j, i) if swap else Pair(i, j))
    return tuple(pairs)


def _share_bits(geometry: Geometry, i: int, j: int) -> bool:
    one_way = geometry.contype[i] & geometry.conaffinity[j]
    return bool(one_way | (geometry.contype[j] & geometry.conaffinity[i]))


def _same_tree(topology: Topology, i: int, j: int) -> bool:
    return bool(topology.links.root_of[i] == topology.links.root_of[j])


def _adjacent(topology: Topology) -> set[frozenset[int]]:
    """Links and their parents; neither the world nor the massless link between two joints of a body is a parent."""
    pairs = set()
    for link, parent in enumerate(topology.parent):
        while (
            parent >= 0 and topology.link_names[parent] == f"{topology.link_names[link]}/{topology.joint_names[parent]}"
        ):
            parent = topology.parent[parent]
        if parent >= 0:
            pairs.add(frozenset((link, parent)))
    return pairs
