"""Contact beside MuJoCo, on one pinned core: steps, gradients and linearisations of the same mechanisms and ground.

Run: python benchmarks/contact_speed.py [MODELS] [--quick]. MODELS holds pend5.xml and quad.xml (default
../shared/benchmark_models). Writes benchmarks/results/contact_speed.{json,md}. Both solve to their own default
tolerance (ours: a residual of 1e-8 m/s in every step, which is checked here).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import rollout as mujoco_rollout
from native_speed import DT, HERE, Row, measure, table

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse

CONTACT = Impulse()
STANCE = np.tile([0.0, 0.9, -1.8], 4)


def bound(function, *args):
    return lambda: lambda: function(*args)


def load(folder: Path, name: str) -> tuple[kn.Model, mujoco.MjModel]:
    return kn.load(folder / f"{name}.xml"), mujoco.MjModel.from_xml_path(str(folder / f"{name}.xml"))


def pendulum(folder: Path, budget: float, steps: int) -> list[Row]:
    """Five links that fall on the ground."""
    model, theirs = load(folder, "pend5")
    q, qd = np.array([np.pi / 2, 0, 0, 0, 0]), np.zeros(5)

    def end(q, qd):
        run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=steps, contact=CONTACT)
        assert run.contact is not None
        return run.q[-1], run.qd[-1], run.contact.converged.all()

    def loss(q, qd):
        q, qd, _ = end(q, qd)
        return jnp.sum(q**2) + 0.1 * jnp.sum(qd**2)

    forward, gradient = native.jit(end), native.jit(jax.value_and_grad(loss, (0, 1)))
    if not bool(forward(q, qd)[2]):
        raise SystemExit("a step of the pendulum was not solved to its tolerance")
    data = mujoco.MjData(theirs)

    def start():
        mujoco.mj_resetData(theirs, data)
        data.qpos[:], data.qvel[:] = q, qd

    def run():
        start()
        mujoco.mj_step(theirs, data, steps)

    def chain():
        """Gradient of the end's loss by one-sided differences of every step, chained backwards."""
        start()
        slopes = np.zeros((steps, 10, 10))
        for k in range(steps):
            mujoco.mjd_transitionFD(theirs, data, 1e-6, False, slopes[k], None, None, None)
            mujoco.mj_step(theirs, data)
        adjoint = np.concatenate([2 * data.qpos, 0.2 * data.qvel])
        for slope in slopes[::-1]:
            adjoint = slope.T @ adjoint
        return adjoint

    work = "5-link pendulum on the ground, a step"
    rows = [measure(work, "knuckle", bound(forward, q, qd), budget, steps)]
    rows += [measure(work, "MuJoCo C", lambda: run, budget, steps)]
    work = f"its gradient over {steps} steps"
    rows += [measure(work, "knuckle", bound(gradient, q, qd), budget)]
    return [*rows, measure(work, "MuJoCo, chained mjd_transitionFD", lambda: chain, budget)]


def quadruped(folder: Path, budget: float, linearized: bool) -> list[Row]:
    """Standing on four feet, held by servos."""
    model, theirs = load(folder, "quad")
    q = np.concatenate([[0, 0, 0.3, 1, 0, 0, 0], STANCE])
    settled = kn.rollout(model, model.state(q), STANCE, dt=DT, steps=1500, contact=CONTACT, native=True)
    standing = kn.State(np.asarray(settled.q[-1]), np.asarray(settled.qd[-1]))
    standing = native.jit(lambda s: kn.step(model, s, STANCE, dt=DT, contact=CONTACT))(standing)
    steps = 500

    def end(state):
        run = kn.rollout(model, state, STANCE, dt=DT, steps=steps, contact=CONTACT)
        assert run.contact is not None
        return run.q[-1], run.qd[-1], run.contact.converged.all(), (run.contact.impulse[-1, :, 0] > 0).sum()

    forward = native.jit(end)
    _, _, solved, touching = forward(standing)
    if not bool(solved) or int(touching) != 4:
        raise SystemExit(f"the quadruped does not stand on four feet: solved {solved}, feet on the ground {touching}")
    data = mujoco.MjData(theirs)
    data.qpos[:], data.ctrl[:] = q, STANCE
    mujoco.mj_step(theirs, data, 1500)
    work = "quadruped on four feet, a step"
    rows = [measure(work, "knuckle", bound(forward, standing), budget, steps)]
    rows += [measure(work, "MuJoCo C", lambda: lambda: mujoco.mj_step(theirs, data, steps), budget, steps)]
    if linearized:
        rows += linearizations(model, theirs, data, standing, budget)
    return rows + many_quadrupeds(model, theirs, standing, budget)


def linearizations(model: kn.Model, theirs: mujoco.MjModel, data: mujoco.MjData, standing: kn.State, budget: float):
    """A and B of a step of the standing quadruped."""
    work = "its A and B matrices"

    @native.jit
    def linear(q, qd, impulse, control):
        return kn.linearize(model, kn.State(q, qd, impulse), control, dt=DT, contact=CONTACT)

    at = (*map(np.asarray, (standing.q, standing.qd, standing.impulse)), STANCE)
    A, B = np.zeros((36, 36)), np.zeros((36, 12))

    def differences():
        mujoco.mjd_transitionFD(theirs, data, 1e-6, False, A, B, None, None)

    return [
        measure(work, "knuckle", bound(linear, *at), budget),
        measure(work, "MuJoCo, one-sided mjd_transitionFD", lambda: differences, budget),
    ]


def many_quadrupeds(model: kn.Model, theirs: mujoco.MjModel, standing: kn.State, budget: float) -> list[Row]:
    count, steps = 1024, 20
    rng = np.random.default_rng(0)
    qs, qds = np.tile(np.asarray(standing.q), (count, 1)), 0.02 * rng.normal(size=(count, model.nv))

    def end(q, qd):
        run = kn.rollout(model, kn.State(q, qd), STANCE, dt=DT, steps=steps, contact=CONTACT)
        return run.q[-1], run.qd[-1]

    many = native.vmap(end, threads=1)
    size = mujoco.mj_stateSize(theirs, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.concatenate([np.zeros((count, 1)), qs, qds], axis=1)
    states = np.pad(states, ((0, 0), (0, size - states.shape[1])))
    controls, datas = np.tile(STANCE, (count, steps, 1)), [mujoco.MjData(theirs)]

    def peer():
        return mujoco_rollout.rollout(theirs, datas, states, controls, nstep=steps)

    work = "1024 quadrupeds on four feet, a step of one"
    return [
        measure(work, "knuckle", bound(many, qs, qds), budget, count * steps),
        measure(work, "MuJoCo rollout", lambda: peer, budget, count * steps),
    ]


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="?", type=Path, default=HERE / "../../shared/benchmark_models")
    parser.add_argument("--quick", action="store_true", help="short timings, no linearisation, nothing written")
    options = parser.parse_args(arguments)
    if not options.quick:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    budget, steps = (0.05, 500) if options.quick else (2.0, 5000)
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as empty_cache:
        os.environ["KNUCKLE_CACHE"] = empty_cache
        rows = pendulum(options.models, budget, steps) + quadruped(options.models, budget, linearized=not options.quick)
    text = table(rows)
    print(text)
    if not options.quick:
        results = HERE / "results"
        (results / "contact_speed.json").write_text(json.dumps(rows, indent=1))
        (results / "contact_speed.md").write_text(text + "\n")
    return rows


if __name__ == "__main__":
    main()
