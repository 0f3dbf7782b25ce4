"""Which friction terms a joint needs, by cross-validation over blocks of time, and how late the effort is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.friction import LOAD, STRIBECK, JointFriction
from knuckle.sysid.regression.grams import grams
from knuckle.sysid.regression.linear import shrinkage, solve
from knuckle.sysid.regression.problem import Problem, Solved, huber

TERMS = ("pre-sliding", "load", "stribeck")
REACHES = 1e-5 * 2.0 ** np.arange(8)  # of Dahl's model, over the travel of the joint
SPEEDS = np.array([0.03, 0.1, 0.3])  # of Stribeck's curve, over the highest speed of the joint
WIDTHS = 2.0 ** np.array([-4, -3, -2, -1, 1, 2, 3, 4, 5])  # of the tanh, over the speed of a stationary joint
NARROWING = 2.0 ** -np.arange(1, 5)  # steps of the search between these, in powers of 2
LEAST_GAIN = 0.03  # of the squares of held-out blocks, by another width
FOLDS = 10
ZERO = 1e-9
LATEST = 0.1  # delay of efforts that is looked for [s]


def held_out_squares(problem: Problem, solved: Solved, comparable: bool = False) -> np.ndarray:
    """Squared residuals of each block by the solution of the other folds, (joint, block); folds interleave blocks.

    comparable: whether those of joints that are not driven count as if links were no lighter than described.
    """
    grams, spread = solved.grams, solved.deviation
    if problem.inefficiency is not None:
        spread = spread * np.sqrt(problem.inefficiency)
    fold = np.arange(grams.blocks) % min(FOLDS, grams.blocks)
    found = np.zeros(grams.count.shape)
    for k in range(fold.max() + 1):
        H, g = grams.normal(spread, fold != k)
        theta = solved.penalty.solve(H, g)
        found[:, fold == k] = grams.squares(theta)[:, fold == k]
        if comparable:
            found[:, fold == k] /= np.square(shrinkage(grams, solved.penalty, theta))[:, None]
    return found


def helps(before: np.ndarray, after: np.ndarray, errors: float = 1.0) -> bool:
    """Whether held-out squares of blocks fall, by more than so many standard errors of their mean difference."""
    gain = before - after
    return len(gain) > 2 and bool(gain.mean() > errors * gain.std(ddof=1) / np.sqrt(len(gain))) and gain.mean() > 0


def select_terms(problem: Problem, solved: Solved, terms: Sequence[str]) -> Solved:
    """Add terms one kind after the other, each to the joints where held-out data ask for it."""
    for term in TERMS:
        if term in terms:
            solved = _with_term(problem, solved, term)
    return solved


def select_widths(problem: Problem, solved: Solved, least: np.ndarray) -> Solved:
    """The width of each joint's tanh with the smallest squares of held-out blocks; none is below `least` (dof,).

    The first one is the speed below which the joint counts as stationary. Another must lower the squares by 3 % and by
    one standard error. Noise n of a speed v hides its sign: the mean of sign(v - n) is an error function, near
    tanh(v / 0.8 sigma).
    """
    layout = solved.layout
    floor, slow = least[list(layout.joints)], np.array([f.slow for f in layout.friction])

    def squares(width: np.ndarray) -> np.ndarray:
        other = replace(layout, friction=_each(layout, width=np.maximum(width, floor)))
        return held_out_squares(problem, _same_weights(problem, other, solved), True)

    def gains(after: np.ndarray) -> np.ndarray:
        much = after.sum(axis=1) <= (1 - LEAST_GAIN) * first.sum(axis=1)
        return much & np.array([helps(a, b) for a, b in zip(first, after, strict=True)])

    first = squares(slow)
    width, best = _best_width(squares, slow, first, WIDTHS)
    if gains(best).any():
        for step in NARROWING:
            width, best = _best_width(squares, width, best, 2.0 ** np.array([-step, step]), width)
    width = np.where(gains(best), width, slow)
    return problem.solve(replace(layout, friction=_each(layout, width=np.maximum(width, floor))), solved)


def _best_width(
    squares: Callable[[np.ndarray], np.ndarray],
    about: np.ndarray,
    best: np.ndarray,
    factors: np.ndarray,
    width: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each joint the best width among `factors` times `about`, and its squares (joint, block).

    `width`, whose squares are `best`, if none is better; if it is not given, the best of the factors in any case.
    """
    tried, joints = factors[:, None] * about, np.arange(len(about))
    scores = np.stack([squares(w) for w in tried])
    k = np.argmin(scores.sum(axis=2), axis=0)
    if width is None:
        return tried[k, joints], scores[k, joints]
    better = scores[k, joints].sum(axis=1) < best.sum(axis=1)
    return np.where(better, tried[k, joints], width), np.where(better[:, None], scores[k, joints], best)


def _with_term(problem: Problem, solved: Solved, term: str) -> Solved:
    layout, judge, judged = solved.layout, problem, solved
    if term == "pre-sliding":  # judged on stationary rows too, which say nothing without it
        judge = replace(problem, design=problem.design.with_all_rows())
        judged = judge.of_rows(layout, judge.rows(layout, solved.theta), None)
    choices = _choices(problem, layout, term)
    base = held_out_squares(judge, judged, comparable=True)
    scores = []
    for friction in choices:
        scores.append(held_out_squares(judge, _same_weights(judge, replace(layout, friction=friction), judged), True))
    chosen = list(layout.friction)
    for j in range(len(layout.joints)):
        best = int(np.argmin([s[j].sum() for s in scores]))
        if helps(base[j], scores[best][j]):
            chosen[j] = choices[best][j]
    if tuple(chosen) == layout.friction:
        return solved
    found = problem.solve(replace(layout, friction=tuple(chosen)), solved)
    needed = tuple(_without_zeros(found, j) for j in range(len(chosen)))
    return found if needed == tuple(chosen) else problem.solve(replace(layout, friction=needed), found)


def _without_zeros(solved: Solved, joint: int) -> JointFriction:
    """The friction of a joint without terms that ended at their bound, 0."""
    friction, layout = solved.layout.friction[joint], solved.layout

    load, stribeck = (layout.value(solved.theta, joint, column) > ZERO for column in (LOAD, STRIBECK))
    friction = replace(friction, load=load)
    return friction if stribeck else replace(friction, stribeck_speed=None)


def _same_weights(problem: Problem, layout: Layout, solved: Solved) -> Solved:
    """A solution with other terms whose rows have the robust weights of `solved`: squares stay comparable."""
    rows = problem.rows(layout, solved.layout.moved(solved.theta, layout))
    weights = [huber(r.residuals(solved.theta)) for r in solved.rows]
    found = grams(rows, problem.design.blocks, layout.size, weights)
    penalty = problem.penalty(layout, np.diag(found.normal(np.ones(len(rows)))[0]))
    return Solved(layout, solve(found, penalty, problem.inefficiency, solved.deviation), found, penalty, rows)


def _choices(problem: Problem, layout: Layout, term: str) -> list[tuple[JointFriction, ...]]:
    """Friction of all joints with the term added, once for each value of its own parameter.

    The load of a joint that is not driven is its friction itself, so friction cannot depend on it.
    """
    if term == "load":
        driven = ~problem.design.passive[list(layout.joints)]
        return [tuple(replace(f, load=bool(own)) for f, own in zip(layout.friction, driven, strict=True))]
    stretches = problem.design.stretches
    if term == "pre-sliding":
        travel = np.max([np.ptp(s.q, axis=0) for s in stretches], axis=0)[list(layout.joints)]
        return [_each(layout, reach=share * travel) for share in REACHES]
    speed = np.max([np.percentile(np.abs(s.qd), 99, axis=0) for s in stretches], axis=0)[list(layout.joints)]
    return [_each(layout, stribeck_speed=share * speed) for share in SPEEDS]


def _each(layout: Layout, **values: np.ndarray) -> tuple[JointFriction, ...]:
    ((key, own),) = values.items()
    return tuple(replace(f, **{key: float(v)}) for f, v in zip(layout.friction, own, strict=True))


def find_delay(problem: Problem, solved: Solved) -> float:
    """How late efforts are [s]: where residuals are smallest, if they fall by more than one standard error."""
    layout = solved.layout
    rows = problem.rows(layout, solved.theta)

    def at(delay: float) -> np.ndarray:
        moved = [
            replace(r, effort=problem.design.efforts(layout, j, float(delay))) for j, r in enumerate(rows)
        ]  # fmt: skip
        found = problem.of_rows(layout, moved, solved)
        shrunk = shrinkage(found.grams, found.penalty, found.theta)
        return found.grams.squares(found.theta) / np.square(shrunk)[:, None]

    weight = 1 / np.square(solved.deviation)[:, None]

    def total(delay: float) -> float:
        return float(np.sum(weight * at(delay)))

    coarse = np.linspace(-LATEST, LATEST, 17)
    best = float(coarse[int(np.argmin([total(d) for d in coarse]))])
    width = coarse[1] - coarse[0]
    options = {"xatol": 3e-4}
    found: Any = minimize_scalar(total, bounds=(best - width, best + width), method="bounded", options=options)
    before, after = (weight * at(d) for d in (0.0, float(found.x)))
    return float(found.x) if helps(before.sum(axis=0), after.sum(axis=0)) else 0.0
