"""Which shapes are tested against each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from knuckle.contact.narrow import kinds_of
from knuckle.model.geometry import Geometry
from knuckle.model.model import Model
from knuckle.model.topology import Topology


@dataclass(frozen=True)
class Pair:
    """Two shapes of a model by number."""

    a: int
    b: int


def contact_pairs(model: Model, *, self_collision: bool | None = None) -> tuple[Pair, ...]:
    """The pairs of shapes that may touch, by MuJoCo's rules.

    Contype and conaffinity share a bit, no exclude names their links, they are not on one link nor on a link and its
    parent, and an impulse can move one of them. Pairs with settings of their own may touch whatever these rules say.

    `self_collision`: whether links of one tree touch each other; None: as the model's file says (MJCF: they do; URDF:
    they do not). Raises ValueError where a pair has no test.
    """
    geometry, topology = model.geometry, model.topology
    own = {frozenset(pair) for pair in zip(geometry.pairs.a, geometry.pairs.b, strict=True)}
    within = topology.self_collision if self_collision is None else self_collision
    excluded = {frozenset(pair) for pair in topology.excludes}
    adjacent = set() if topology.parents_collide else _adjacent(topology)
    still = {-1, *np.flatnonzero(topology.is_driven).tolist()} if topology.prescribed else {-1}
    pairs = []
    for i, j in combinations(range(len(geometry)), 2):
        links = geometry.link[i], geometry.link[j]
        if links[0] == links[1] or all(link in still for link in links):
            continue
        if frozenset((i, j)) not in own:
            if not _share_bits(geometry, i, j) or frozenset((geometry.body[i], geometry.body[j])) in excluded:
                continue
            if frozenset(links) in adjacent or (not within and min(links) >= 0 and _same_tree(topology, *links)):
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
