"""Further studies of `known_truth.py`: efforts that are noisy, and a model that lacks what the truth has."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

import knuckle as kn
from knuckle import native, sysid

PERIOD, FINE = 0.01, 8  # [s], and steps of the truth in it
NOISE = 5e-4  # of the angle [rad]
RUNS, SECONDS, WINDOWS = 2, 10.0, 8
AFTER = (0.2, 0.5)  # [s]
SAMPLES = 100


class Study(NamedTuple):
    """What is done for one seed, and what must hold over all."""

    about: str
    truths: int
    run: Callable[[int], dict[str, Any]]
    claims: Callable[[list[dict]], list[dict]]


def within(what: str, measured: float, lower: float = 0.90, upper: float = 0.98) -> dict[str, Any]:
    """A claim about the coverage of 95 % intervals."""
    holds = bool(lower <= measured <= upper)
    return {"what": what, "measured": measured, "wanted": f"{lower:.2f} to {upper:.2f}", "holds": holds}


def effort_noise(seed: int) -> dict[str, Any]:
    """A driven arm whose efforts have correlated noise, by regression."""
    noise = importlib.import_module("torque_noise")
    held, ratio = noise.judged(seed)
    return {"inside": sum(held), "cases": len(held), "mass_matrix": [round(float(x), 4) for x in ratio]}


def effort_noise_claims(rows: list[dict]) -> list[dict]:
    mean = np.mean([row["mass_matrix"] for row in rows], axis=0)
    bias = float(np.abs(mean - 1).max())
    what = "arm with noisy efforts"
    return [
        within(f"{what}: coverage of determined base parameters", covered(rows, "inside", "cases")),
        {"what": f"{what}: bias of the mass matrix, worst joint", "measured": bias, "wanted": "<= 0.05",
         "holds": bias <= 0.05},
    ]  # fmt: skip


def covered(rows: list[dict], inside: str, cases: str) -> float:
    return sum(row[inside] for row in rows) / max(sum(row[cases] for row in rows), 1)


@cache
def pendulum() -> kn.Model:
    rod = kn.shapes.capsule(0.02, 0.23, position=(0, 0, -0.25))
    joint = kn.revolute("y", damping=0.05)
    return kn.build([kn.Link("rod", joints=joint, mass=1.0, shapes=rod)], actuators=[kn.motor("rod_joint")])


@cache
def _mover():
    """Angles and speeds at the samples of a pendulum under controls that are held between them."""

    def move(model, q, qd, control):
        run = kn.rollout(model, kn.State(q, qd), control, dt=PERIOD / FINE, integrator=kn.RK4(), contact=None)
        return run.q[FINE - 1 :: FINE], run.qd[FINE - 1 :: FINE]

    return native.jit(move)


class Run(NamedTuple):
    q: np.ndarray
    qd: np.ndarray
    control: np.ndarray


def moved(true: kn.Model, rng: np.random.Generator) -> Run:
    """A run of the truth, pushed by steps of torque."""
    count = round(SECONDS / PERIOD)
    control = np.repeat(rng.normal(size=(count // 10 + 1, 1)), 10, axis=0)[:count]
    q, qd = rng.uniform(-1.5, 1.5, size=1), np.zeros(1)
    found = _mover()(true, q, qd, np.repeat(control[:-1], FINE, axis=0))
    return Run(np.concatenate([[q], found[0]]), np.concatenate([[qd], found[1]]), control)


@cache
def _first_fit() -> list[sysid.Fit]:
    """The fit whose compiled code the others use."""
    return []


def missing_friction(seed: int) -> dict[str, Any]:
    """A pendulum with dry friction, fitted by a model that has none: how often predictions hold.

    Forces that the model lacks are errors of the effort, whose size and correlation time over 0.5 s `smooth` and
    `calibrate` find in the training data; predictions are made with them, and without them for comparison.
    """
    rng, model = np.random.default_rng(seed), pendulum()
    mass = np.asarray(model.inertia.mass) * rng.uniform(0.8, 1.2)
    parts = (mass, np.asarray(model.damping) * rng.uniform(0.5, 2), rng.uniform(0.05, 0.2, size=1), np.array([0.01]))
    true = eqx.tree_at(lambda m: (m.inertia.mass, m.damping, m.friction, m.friction_speed), model, parts)
    logs = []
    for number in range(RUNS):
        run = moved(true, rng)
        noisy = run.q + NOISE * rng.normal(size=run.q.shape)
        stamps = PERIOD * np.arange(len(noisy))
        logs.append(sysid.Recording.of(model, stamps, q=noisy, control=run.control, name=f"run {number}"))
    first = _first_fit()
    fit = first[0].again(logs) if first else sysid.fit(model, logs, ["*.mass", "*.damping"], held_out=0)
    first.append(fit)
    drawn, unseen, rows = sysid.draws(fit, SAMPLES, seed), moved(true, rng), {}
    states = sysid.smooth(fit.model, logs[0], noise={"q": NOISE})
    noise = sysid.calibrate(drawn, logs[0], states, AFTER[-1], dt=PERIOD / 2)
    length = round(AFTER[-1] / PERIOD)
    starts = np.linspace(10, len(unseen.q) - length - 1, WINDOWS).astype(int)
    for key, error in (("", noise), (" without", None)):
        inside = []
        for n, k in enumerate(starts):
            state, control = kn.State(unseen.q[k], unseen.qd[k]), np.repeat(unseen.control[k : k + length], 2, axis=0)
            motion = drawn.rollout(state, control, dt=PERIOD / 2, effort_noise=error, seed=n)
            for after in AFTER:
                at, end = round(2 * after / PERIOD) - 1, k + round(after / PERIOD)
                inside.append(bool(motion.q.lower[at, 0] <= unseen.q[end, 0] <= motion.q.upper[at, 0]))
        rows |= {f"inside{key}": sum(inside), f"cases{key}": len(inside)}
    return {**rows, "effort_noise": round(float(noise.deviation[0]), 4), "correlation": round(noise.correlation, 4)}


def missing_friction_claims(rows: list[dict]) -> list[dict]:
    return [
        within("model without the dry friction of the truth: coverage of predictions", covered(rows, "inside", "cases"))
    ]


STUDIES = {
    "effort_noise": Study(
        "arm, seven motors: efforts with noise of a tenth of their size, correlated over 0.2 s; torque regression", 50,
        effort_noise, effort_noise_claims,
    ),
    "missing_friction": Study(
        "pendulum with dry friction, by a model without: predictions over 0.2 and 0.5 s of runs not seen", 50,
        missing_friction, missing_friction_claims,
    ),
}  # fmt: skip


def table(more: dict[str, dict], claims: Sequence[dict]) -> str:
    lines = ["## Noisy efforts, and a model that lacks an effect", ""]
    for name, kept in more.items():
        rows, study = list(kept.values()), STUDIES[name]
        text = f"{covered(rows, 'inside', 'cases'):.1%} of {sum(r['cases'] for r in rows)} intervals hold the truth"
        if name == "missing_friction":
            text += f" ({covered(rows, 'inside without', 'cases without'):.1%} without errors of the effort)"
        else:
            mean = np.mean([row["mass_matrix"] for row in rows], axis=0)
            text += "; diagonal of the mass matrix over the true one: " + ", ".join(f"{x:.3f}" for x in mean)
        lines.append(f"- {study.about}: {len(rows)} runs, {text}.")
    lines += ["", "## Claims", "", "| claim | measured | wanted | holds |", "|---|--:|---|---|"]
    for c in claims:
        lines.append(f"| {c['what']} | {c['measured']:.3f} | {c['wanted']} | {'yes' if c['holds'] else 'no'} |")
    return "\n".join(lines)
