"""Positions and velocities held against each other: degrees, signs, scales and clock offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from knuckle.sysid.check_physics import degrees_by_acceleration
from knuckle.sysid.compare import Fit, compare, laid_out
from knuckle.sysid.draft import Draft
from knuckle.sysid.entries import dimensions, limits
from knuckle.sysid.findings import Report
from knuckle.sysid.units import DEGREE

Units = Literal["rad", "deg"]
NEAR = 0.2  # a scale is believed to be one that is known within this share
AGREES = 0.9  # correlation from which on a scale is believed
FOREIGN = 0.5  # correlation below which a velocity is none of this joint
LATE = 1.5  # samples from which on an offset is reported
BETTER = 0.7  # an offset must leave less than this share of the residual
CLOCKS = ((1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e3, "s"), (1e6, "s"), (1 / 60, "s"), (60.0, "min"))
MANY_TURNS = 20 * np.pi  # an angle beyond this may be in degrees


def pairs(draft: Draft) -> list[tuple[int, int]]:
    """Coordinates and degrees of freedom of which one is the derivative of the other."""
    topology, found = draft.model.topology, []
    for kind, q, v in zip(topology.kind, topology.q_start, topology.v_start, strict=True):
        count = {"ball": 0, "free": 3, "planar": 3}.get(kind, 1)
        found += [(int(q) + i, int(v) + i) for i in range(count)]
    return found


def check_units(drafts: Sequence[Draft], report: Report, units: Units | None) -> None:
    """Angles in degrees become radians: where the user says so, or where limits, turns or velocities show it.

    All angles of a log without a unit in their header are in one unit, and so are all of its angular velocities.
    """
    for draft in drafts:
        if units == "deg":
            for channel in ("q", "qd", "qdd"):
                _to_radians(draft, channel, report, "as units='deg' says")
    if units is not None:
        return
    evidence = [(d, j, _degrees(d, j, v)) for d in drafts if "q" in d.values for j, v in _angles(d)]
    reasons = [(d.place("q", j), why) for d, j, (why, _) in evidence if why]
    reasons = reasons or _reasons_of_physics(drafts)
    fits = [fit for _, _, (_, fit) in evidence if fit is not None and fit.agreement > AGREES]
    position_in_degrees = bool(reasons)
    ratio = float(np.median([abs(fit.scale) for fit in fits])) if fits else None
    if position_in_degrees:
        detail = f"{reasons[0][1]} ({reasons[0][0]}); taken as degrees, turned into radians"
        for draft in drafts:
            _to_radians(draft, "q", report, detail)
    rate = None if ratio is None else ratio * (DEGREE if position_in_degrees else 1.0)
    if rate is not None and _near(rate, DEGREE):
        detail = "positions move 57 times slower than velocities say; taken as deg/s, turned into rad/s"
        for draft in drafts:
            _to_radians(draft, "qd", report, detail)
    elif position_in_degrees and rate is None and any("qd" in d.values for d in drafts):
        drafts[0].say(
            report, "degrees", "qd", 1, "suspect", "positions are in degrees; too little moves to test velocities"
        )
    for draft in drafts if not position_in_degrees else ():
        _suspect_degrees(draft, report)


def _angles(draft: Draft) -> list[tuple[int, int]]:
    """Angles that were measured, and their velocities."""
    kinds = dimensions(draft.model, "q")
    return [(q, v) for q, v in pairs(draft) if kinds[q] == "angle" and draft.entry("q", q) is not None]


def _degrees(draft: Draft, j: int, v: int) -> tuple[str, Fit | None]:
    """Why this angle must be in degrees, or nothing; and how its velocity compares."""
    x = draft.values["q"][:, j]
    finite = x[np.isfinite(x)]
    speed = draft.entry("qd", v)
    turned = laid_out(x, 360.0) if np.ptp(finite) > 2 * np.pi * 1.001 else laid_out(x, 2 * np.pi)
    fit = compare(draft.time, turned, speed) if speed is not None else None
    if ("q", draft.names["q"][j]) in draft.units_known:
        return "", fit
    if turned is not x and np.ptp(finite) > 2 * np.pi * 1.001:
        return "it wraps at 360", fit
    if fit is not None and fit.agreement > AGREES and _near(abs(fit.scale), 1 / DEGREE):
        return "it moves 57 times faster than its velocity says", fit
    lower, upper = (float(limit[v]) for limit in limits(draft.model))
    span = upper - lower
    if np.isfinite(span) and span > 0:
        slack = 0.1 * span
        outside = max(lower - finite.min(), finite.max() - upper) > 0.5 * span + 0.5
        inside = finite.min() * DEGREE > lower - slack and finite.max() * DEGREE < upper + slack
        if outside and inside:
            return f"it reaches {np.abs(finite).max():.4g}, the joint's limits are {lower:.4g} and {upper:.4g} rad", fit
    return "", fit


def _reasons_of_physics(drafts: Sequence[Draft]) -> list[tuple[str, str]]:
    """What the model's accelerations say, asked only where angles go beyond a turn."""
    for draft in drafts:
        unknown = [j for j, _ in _far_angles(draft)]
        found = degrees_by_acceleration(draft) if unknown else None
        if found is not None:
            both = f"correlation {found[0]:.2f}, in radians {found[1]:.2f}"
            why = f"its acceleration agrees with the model's in degrees ({both})"
            return [(draft.place("q", unknown[0]), why)]
    return []


def _far_angles(draft: Draft) -> list[tuple[int, float]]:
    """Angles without a unit in their header that reach beyond a turn, and how far; beyond ten turns of 360 none is."""
    if "q" not in draft.values:
        return []
    names = draft.names["q"]
    reach = [(j, float(np.nanmax(np.abs(draft.values["q"][:, j])))) for j, _ in _angles(draft)]
    return [(j, far) for j, far in reach if 2 * np.pi < far < 3600 and ("q", names[j]) not in draft.units_known]


def _suspect_degrees(draft: Draft, report: Report) -> None:
    for j, reach in _far_angles(draft):
        if reach > MANY_TURNS:
            detail = f"reaches {reach:.4g}: {reach / 2 / np.pi:.1f} turns if it is in radians; units='deg' turns it"
            draft.say(report, "degrees", draft.place("q", j), len(draft.time), "suspect", detail)


def _near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1) < NEAR


def _to_radians(draft: Draft, channel: str, report: Report, detail: str) -> None:
    if channel not in draft.values:
        return
    for j, kind in enumerate(dimensions(draft.model, channel)):
        name = draft.names[channel][j]
        if kind == "angle" and (channel, name) not in draft.units_known and draft.entry(channel, j) is not None:
            draft.values[channel][:, j] *= DEGREE
            draft.say(report, "degrees", draft.place(channel, j), len(draft.time), "repaired", detail)


def check_velocities(draft: Draft, report: Report) -> None:
    """Velocities of another sign or scale than their positions are left out; late ones are reported."""
    if "q" not in draft.values or "qd" not in draft.values:
        return
    fits, behind = _fits(draft), list[Fit]()
    if _check_clock(draft, list(fits.values()), report):
        return
    for v, fit in fits.items():
        why = _contradiction(fit)
        if why:
            draft.say(report, why[0], draft.place("qd", v), len(draft.time), "left out", why[1])
            draft.values["qd"][:, v] = np.nan
        elif abs(fit.samples) > LATE and 1 - fit.agreement**2 < BETTER * (1 - fit.together**2):
            behind.append(fit)
    if behind:
        lag = float(np.median([fit.lag for fit in behind]))
        samples = float(np.median([fit.samples for fit in behind]))
        detail = f"velocities come {late(lag, samples)} positions; {to_shift('qd', lag)}"
        draft.say(report, "clock offset", "qd", len(behind), "suspect", detail)


def _fits(draft: Draft) -> dict[int, Fit]:
    """How velocities and positions compare, by degree of freedom, where enough moves to tell."""
    measured = [(v, draft.entry("q", j), draft.entry("qd", v)) for j, v in pairs(draft)]
    tried = {v: compare(draft.time, x, speed) for v, x, speed in measured if x is not None and speed is not None}
    return {v: fit for v, fit in tried.items() if fit is not None}


def _check_clock(draft: Draft, fits: Sequence[Fit], report: Report) -> bool:
    """Whether all positions move slower or faster than velocities say by the ratio of two units of time."""
    scales = [abs(fit.scale) for fit in fits if fit.agreement > AGREES]
    if not scales or len(scales) < 0.5 * len(fits) or max(scales) > 1.5 * min(scales):
        return False
    scale = float(np.median(scales))
    unit = next((unit for ratio, unit in CLOCKS if _near(scale, ratio)), None)
    if unit is None:
        return False
    faster = "slower" if scale < 1 else "faster"
    detail = (
        f"positions move {max(scale, 1 / scale):.4g} times {faster} than all velocities say: stamps look like {unit}; "
        f"--column 'NAME=time [{unit}]' says so, NAME being the column of times"
    )
    draft.say(report, "time unit", "time", len(draft.time), "suspect", detail)
    return True


def late(lag: float, samples: float) -> str:
    return f"{1e3 * abs(lag):.4g} ms ({abs(samples):.1f} samples) {'after' if lag > 0 else 'before'}"


def to_shift(channel: str, lag: float) -> str:
    """How stamps that are late are set right, in Python and on the command line."""
    return f"shift(recording, {channel!r}, {-lag:.4g}) or --shift {channel}={-lag:.4g} sets it right"


def _contradiction(fit: Fit) -> tuple[str, str] | None:
    if fit.agreement < FOREIGN:
        return "foreign velocity", f"correlation {fit.agreement:.2f} with the change of the position"
    if fit.agreement < AGREES or (fit.scale > 0 and abs(fit.scale - 1) < NEAR):
        return None
    if fit.scale < 0 and abs(-fit.scale - 1) < NEAR:
        return "opposite sign", "the position moves the other way"
    return "wrong scale", f"the position moves {fit.scale:.4g} times as fast as the velocity says"
