"""How soft the contact is that an MJCF file asks for; contact models here do not use it."""

from __future__ import annotations

import numpy as np

from knuckle.contact.pairs import contact_pairs
from knuckle.contact.surfaces import own_settings
from knuckle.model.model import Model

BISECTIONS = 60


def deepest_rest(model: Model) -> float:
    """The depth [m] to which a body sinks in MuJoCo that stands on one contact, of the softest pair that may touch.

    At rest (1 - d) g = d k depth, with impedance d and stiffness k of solimp and solref (MuJoCo, Computation: solver
    parameters). Without friction; friction makes it up to twice as deep, and several contacts share a load.
    """
    weight = float(np.linalg.norm(np.asarray(model.gravity)))
    settings = {_mixed(model, pair.a, pair.b) for pair in contact_pairs(model)}
    return max((rest_depth(solref, solimp, weight) for solref, solimp in settings), default=0.0)


def rest_depth(solref: tuple[float, ...], solimp: tuple[float, ...], weight: float) -> float:
    """The depth [m] at which a contact of this softness carries an acceleration `weight` [m/s^2]."""
    most = float(np.clip(solimp[1], 1e-4, 0.9999))
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        depth = 0.5 * (low + high)
        d = impedance(solimp, depth)
        stiffness = d / (most * solref[0] * solref[1]) ** 2 if solref[0] > 0 else -solref[0] * d / most**2
        low, high = (depth, high) if d * stiffness * depth < (1 - d) * weight else (low, depth)
    return 0.5 * (low + high)


def impedance(solimp: tuple[float, ...], depth: float) -> float:
    """MuJoCo's d: from the first of solimp at the surface to the second at its width, along a curve of a power."""
    least, most, width, middle, power = solimp
    least, most = np.clip((least, most), 1e-4, 0.9999)
    middle, power = np.clip(middle, 1e-4, 0.9999), max(power, 1.0)
    x = min(depth / width, 1.0) if width > 1e-15 else 1.0
    rising, flattening = x**power / middle ** (power - 1), 1 - (1 - x) ** power / (1 - middle) ** (power - 1)
    return float(least + (rising if x <= middle else flattening) * (most - least))


def _mixed(model: Model, a: int, b: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """solref and solimp of two shapes (MuJoCo's mj_contactParam)."""
    geometry = model.geometry
    own = int(own_settings(geometry, [a], [b])[0])
    if own >= 0:
        return geometry.pairs.solref[own], geometry.pairs.solimp[own]
    if geometry.priority[a] != geometry.priority[b]:
        ahead = a if geometry.priority[a] > geometry.priority[b] else b
        return geometry.solref[ahead], geometry.solimp[ahead]
    share = geometry.solmix[a] / max(geometry.solmix[a] + geometry.solmix[b], 1e-15)
    refs, imps = ([np.array(values[k]) for k in (a, b)] for values in (geometry.solref, geometry.solimp))
    solref = share * refs[0] + (1 - share) * refs[1] if min(r[0] for r in refs) > 0 else np.minimum(*refs)
    return tuple(solref.tolist()), tuple((share * imps[0] + (1 - share) * imps[1]).tolist())
