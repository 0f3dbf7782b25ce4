"""Planted effects: does discovery name what was put into the truth and left out of the model?

Coulomb friction, Stribeck friction, quadratic drag, a spring, a wrong gravity vector, a payload, loss of motor torque
and nothing at all, on a pendulum, a double pendulum and a cartpole, each where it makes sense, with noise of 0.5 mrad
or mm and 5 seeds. Position-dependent ground friction and flexible joints are not planted yet. Counted: the right tap
(or a declared tie) and the right place, the right formula, and false alarms where nothing was planted.
Run: python experiments/planted_effects.py [--quick] [--seeds FIRST END] [CASE...]. Each run is kept in
results/planted_effects.json at once and not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import robots, sysid
from knuckle.neural.formula import Formula, Term

RESULTS = Path(__file__).parent / "results"
PENDULUM = """<mujoco><worldbody><body name="rod"><joint name="hinge" axis="0 1 0"/>
<inertial pos="0 0 -0.5" mass="1" diaginertia="0.02 0.02 0.01"/></body></worldbody>
<actuator><motor name="motor" joint="hinge"/></actuator></mujoco>"""
STEP, EVERY, SAMPLES, RUNS, NOISE, SEEDS = 0.0025, 4, 200, 8, 5e-4, 5


class Case(NamedTuple):
    """What is planted where, and which answers are right."""

    robot: str
    effect: str
    place: str
    truth: Callable[[kn.Model], tuple[kn.Model, kn.Blueprint | None]]
    right: tuple[str, ...]  # effects of the library that are this one; none: nothing is missing


def with_terms(*terms: tuple[Term, float]):
    """Forces at the joints."""

    def made(model: kn.Model):
        inputs = ("q", "qd")
        formula = Formula([term for term, _ in terms], model.nq + model.nv, model.nv)
        formula = eqx.tree_at(lambda f: f.coefficient, formula, jnp.asarray([c for _, c in terms]))
        return model, kn.Blueprint({"joint/force": kn.Augment(formula, inputs)})

    return made


def changed(find: Callable, value: Callable):
    """Another parameter."""
    return lambda model: (eqx.tree_at(find, model, value(np.asarray(find(model)))), None)


def payload(model: kn.Model) -> tuple[kn.Model, None]:
    """A point mass at the end of the last link."""
    body, m, r = model.inertia, 0.15, np.array([0.0, 0.0, -0.8])
    mass, com, moment = (np.array(x) for x in (body.mass, body.com, body.moment))
    whole = mass[-1] + m
    centre = (mass[-1] * com[-1] + m * r) / whole
    for weight, at in ((mass[-1], com[-1]), (m, r)):
        d = at - centre
        moment[-1] += weight * np.array([d @ d - d[0] ** 2, d @ d - d[1] ** 2, d @ d - d[2] ** 2, -d[0] * d[1],
                                         -d[0] * d[2], -d[1] * d[2]])  # fmt: skip
    mass[-1], com[-1] = whole, centre
    return eqx.tree_at(lambda x: (x.inertia.mass, x.inertia.com, x.inertia.moment), model, (mass, com, moment)), None


def cases() -> dict[str, Case]:
    """By name: robot and effect."""
    found = {}
    for robot, joint, v, nq, force in (
        ("pendulum", "hinge", 0, 1, 1.0), ("double_pendulum", "elbow", 1, 2, 0.3), ("cartpole", "slider", 0, 2, 2.0)
    ):  # fmt: skip
        speed = (nq + v,)
        width = (0.01,)
        dry, stribeck = Term("coulomb", v, speed, width), Term("stribeck", v, speed, (0.01, 0.5))
        found |= {
            f"{robot}: Coulomb friction": Case(robot, "Coulomb friction", joint, with_terms((dry, -0.1 * force)),
                                               ("Coulomb friction",)),
            f"{robot}: Stribeck friction": Case(
                robot, "Stribeck friction", joint, with_terms((dry, -0.1 * force), (stribeck, -0.15 * force)),
                ("Stribeck friction",),
            ),
            f"{robot}: quadratic drag": Case(
                robot, "quadratic drag", joint, with_terms((Term("quadratic drag", v, speed), -0.03 * force)),
                ("quadratic drag",),
            ),
            f"{robot}: spring": Case(robot, "spring", joint, with_terms((Term("linear", v, (v,)), -0.8 * force)),
                                     ("spring",)),
            f"{robot}: nothing": Case(robot, "", "", lambda model: (model, None), ()),
        }  # fmt: skip
    tilted = changed(lambda m: m.gravity, lambda g: g + np.array([0.6, 0.0, 0.3]))
    weaker = changed(lambda m: m.actuators.gain, lambda g: 0.85 * g)
    found["double_pendulum: gravity"] = Case("double_pendulum", "gravity", "the world", tilted, ("gravity",))
    found["double_pendulum: payload"] = Case("double_pendulum", "payload", "lower", payload, ("payload", "mass"))
    for robot, motor in (("pendulum", "motor"), ("cartpole", "drive")):
        found[f"{robot}: motor loss"] = Case(robot, "motor constant", motor, weaker, ("motor constant",))
    return found


def model_of(robot: str) -> kn.Model:
    model = kn.load(PENDULUM) if robot == "pendulum" else robots.load(robot)
    return eqx.tree_at(lambda m: (m.damping, m.friction), model, (np.zeros(model.nv), np.zeros(model.nv)))


def recordings(case: Case, seed: int, runs: int = RUNS) -> tuple[kn.Model, list[sysid.Recording]]:
    """Swings, driven by random controls where there is a motor."""
    model = model_of(case.robot)
    truth, blueprint = case.truth(model)
    rng, found = np.random.default_rng(seed), []
    for number in range(runs):
        first = rng.uniform(-2, 2, model.nv) if case.robot != "cartpole" else np.array([0.0, rng.uniform(-3, 3)])
        held = 2.0 * rng.normal(size=(SAMPLES // 10, model.nu)) if model.nu else np.zeros((SAMPLES // 10, 0))
        u = np.repeat(held, 10, axis=0)
        options = {"integrator": kn.RK4(), "contact": None, "native": True, "blueprint": blueprint}
        controls = np.repeat(u, EVERY, axis=0)
        run = kn.rollout(truth, truth.state(first), controls, dt=STEP, **options)
        q = np.concatenate([first[None], np.asarray(run.q)[EVERY - 1 :: EVERY]])[:-1]
        noisy = q + NOISE * rng.normal(size=q.shape)
        stamps = STEP * EVERY * np.arange(SAMPLES)
        control = u if model.nu else None
        found.append(sysid.Recording.of(model, stamps, q=noisy, control=control, name=f"run {number}"))
    return model, found


def judged(case: Case, seed: int) -> dict:
    """One run: what is named, and whether that is right."""
    model, logs = recordings(case, seed)
    began = time.perf_counter()
    found = sysid.discover(model, logs, networks=False, resamples=0, seed=seed)
    first = max(found.effects, key=lambda e: next(r.given for r in found.rows if r.name == e.name), default=None)
    tied = () if first is None else (first.name, *found.ties[first.name])
    here = first is not None and first.place == case.place
    wanted = {f"{effect} {'of' if effect in ('payload', 'mass', 'gravity', 'motor constant') else 'at'} {case.place}"
              for effect in case.right}  # fmt: skip
    return {
        "effects": [e.name for e in found.effects],
        "place": bool(here or wanted & set(tied)) if case.right else not found.effects,
        "formula": bool(found.effects and {e.name for e in found.effects} <= wanted)
        if case.right
        else not found.effects,
        "coefficients": [c._asdict() for c in found.coefficients],
        "errors": {e.what: e.error for e in found.held_out},
        "seconds": time.perf_counter() - began,
    }


def claims(runs: dict[str, dict]) -> list[dict]:
    """Shares over all runs."""
    planted = [run for key, run in runs.items() if "nothing" not in key]
    none = [run for key, run in runs.items() if "nothing" in key]
    made = []
    for what, key, least in (("right tap and place first", "place", 0.9), ("right formula", "formula", 0.8)):
        if planted:
            share = float(np.mean([run[key] for run in planted]))
            made.append({"what": what, "measured": share, "wanted": f">= {least}", "holds": share >= least})
    if none:
        share = float(np.mean([bool(run["effects"]) for run in none]))
        made.append({"what": "false alarms", "measured": share, "wanted": "<= 0.05", "holds": share <= 0.05})
    return made


def main(arguments: Sequence[str] | None = None) -> dict:
    there = cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="by default all: " + ", ".join(there))
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, SEEDS), metavar=("FIRST", "END"))
    parser.add_argument("--quick", action="store_true", help="a spring on a pendulum, one seed, nothing written")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.cases if name not in there]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(there)}")
    with jax.enable_x64(True):
        if options.quick:
            return {"runs": {"pendulum: spring:0": judged(there["pendulum: spring"], 0)}}
        path = RESULTS / "planted_effects.json"
        content: dict = json.loads(path.read_text()) if path.exists() else {"runs": {}}
        for name in options.cases or there:
            for seed in range(*options.seeds):
                if f"{name}:{seed}" not in content["runs"]:
                    run = content["runs"][f"{name}:{seed}"] = judged(there[name], seed)
                    print(
                        name, seed, run["place"], run["formula"], run["effects"], f"{run['seconds']:.0f} s", flush=True
                    )
                    content["claims"] = claims(content["runs"])
                    path.write_text(json.dumps(content))
    for claim in content.get("claims", []):
        print(claim)
    return content


if __name__ == "__main__":
    main()
