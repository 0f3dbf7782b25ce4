"""Quaternions: their norm, their sign from sample to sample, and the order of their entries."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from knuckle.sysid.draft import Draft
from knuckle.sysid.entries import quaternion_starts
from knuckle.sysid.findings import Report
from knuckle.sysid.split import quaternions

OFF = 1e-6  # a norm that differs more from 1 is repaired and reported
BROKEN = 0.5  # and one that differs more than this is no quaternion
AGREES, BETTER = 0.9, 0.1  # correlation of rates, and by how much one reading must beat the other


def check_quaternions(draft: Draft, report: Report, order: str | None) -> None:
    """Unit norm, one sign, order wxyz."""
    rates = {q: v for _, q, v in quaternion_starts(draft.model)}
    for channel in draft.values:
        for i in quaternions(draft.names[channel]):
            block = draft.values[channel][:, i : i + 4]
            place = draft.place(channel, i).removesuffix(".qw").removesuffix(".w")
            _norms(draft, report, block, place)
            rate = draft.values["qd"][:, rates[i] : rates[i] + 3] if channel == "q" and "qd" in draft.values else None
            _order(draft, report, block, place, rate, "wxyz" if channel in draft.order_known else order)
            _signs(draft, report, block, place)


def _norms(draft: Draft, report: Report, block: np.ndarray, place: str) -> None:
    block[~np.isfinite(block).all(axis=1)] = np.nan
    norm = np.linalg.norm(block, axis=1)
    broken = np.isfinite(norm) & (np.abs(norm - 1) > BROKEN)
    if broken.any():
        detail = f"norm {norm[np.argmax(broken)]:.4g} at {draft.time[np.argmax(broken)]:.6g} s"
        draft.say(report, "no quaternion", place, broken.sum(), "left out", detail)
        block[broken] = np.nan
    off = np.isfinite(norm) & ~broken & (np.abs(norm - 1) > OFF)
    if off.any():
        worst = float(norm[off][np.argmax(np.abs(norm[off] - 1))])
        draft.say(report, "norm", place, off.sum(), "repaired", f"worst {worst:.6g}; normalised")
        block[off] /= norm[off, None]


def _signs(draft: Draft, report: Report, block: np.ndarray, place: str) -> None:
    """A quaternion and its negative are one rotation; neighbours get the nearer one."""
    good = np.flatnonzero(np.isfinite(block).all(axis=1))
    if len(good) < 2:
        return
    flips = np.sum(block[good[1:]] * block[good[:-1]], axis=1) < 0
    if flips.any():
        sign = np.where(np.cumsum(flips) % 2, -1.0, 1.0)
        block[good[1:]] *= sign[:, None]
        first = draft.time[good[1:][np.argmax(flips)]]
        draft.say(report, "quaternion sign", place, flips.sum(), "repaired", f"first at {first:.6g} s; made continuous")


def _order(draft: Draft, report: Report, block: np.ndarray, place: str, rate: np.ndarray | None, order: str | None):
    good = np.isfinite(block).all(axis=1)
    if order == "xyzw":
        block[:] = block[:, [3, 0, 1, 2]]
        draft.say(report, "quaternion order", place, len(block), "repaired", "xyzw, as quaternion='xyzw' says")
    if order is not None:
        good = good & False if rate is None else good
    if good.sum() < 20:
        return
    if rate is not None and np.isfinite(rate[good]).all() and np.std(rate[good]) > 0:
        _order_by_rates(draft, report, block, place, rate, good, order)
    elif order is None:
        first = np.abs(block[np.argmax(good)])
        if first[3] > 0.9 > 0.5 > first[0]:
            detail = "begins with its fourth entry near 1: xyzw if it starts upright; quaternion='xyzw' turns it"
            draft.say(report, "quaternion order", place, 1, "suspect", detail)


def _order_by_rates(draft, report, block, place, rate, good, order) -> None:
    """Angular velocity from quaternions, read both ways, in the body and in the world, against the measured one."""
    time, measured = draft.time[good], rate[good]
    middle = 0.5 * (measured[1:] + measured[:-1])
    readings = {"wxyz": [1, 2, 3, 0], "xyzw": [0, 1, 2, 3]}
    score = {}
    for name, columns in readings.items():
        turned = Rotation.from_quat(block[good][:, columns])
        step = np.diff(time)[:, None]
        score[name, "body"] = _agreement((turned[:-1].inv() * turned[1:]).as_rotvec() / step, middle)
        score[name, "world"] = _agreement((turned[1:] * turned[:-1].inv()).as_rotvec() / step, middle)
    (best, frame), value = max(score.items(), key=lambda item: item[1])
    if value < AGREES:
        return
    if order is None and best == "xyzw" and value > max(score["wxyz", "body"], score["wxyz", "world"]) + BETTER:
        block[:] = block[:, [3, 0, 1, 2]]
        detail = f"its rate agrees with the angular velocity as xyzw (correlation {value:.2f}); turned into wxyz"
        draft.say(report, "quaternion order", place, len(block), "repaired", detail)
    if frame == "world" and value > score[best, "body"] + BETTER:
        detail = f"agrees in world axes (correlation {value:.2f}), body axes are expected ({score[best, 'body']:.2f})"
        draft.say(report, "angular velocity", place, len(block), "suspect", detail)


def _agreement(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel(), b.ravel()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size > 0 else 0.0
