"""A step with a network inside, natively: NeuralSim's network of 175 numbers in a pendulum of five links.

Run: python benchmarks/hybrid_speed.py [MODELS] [--quick]. MODELS holds pend5.xml (default ../shared/benchmark_models).
Writes benchmarks/results/hybrid_speed.{json,md}. The gradient is by all 175 numbers over 2000 steps, in which the links
fall on the ground. Beside it: the same without the network, and MuJoCo's step without any.
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
from contact_speed import bound, load
from native_speed import DT, HERE, Row, measure, table

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse
from knuckle.neural import MLP

STEPS = 2000


def hybrid(model: kn.Model, contact: Impulse | None, budget: float) -> list[Row]:
    network = MLP((5, 10, 10), "tanh", last_activation="tanh", input_bias=True, zero_last=False, key=jax.random.key(0))
    augment = kn.Augment(network, "qd", output_scale=1e-6, zero_start=False)
    blueprint = kn.Blueprint({"next/state": augment})
    assert blueprint.size == 175
    state = kn.State(np.array([np.pi / 2, 0, 0, 0, 0]), np.zeros(5))

    def end(blueprint):
        return kn.rollout(model, state, dt=DT, steps=STEPS, contact=contact, blueprint=blueprint).last

    def loss(weights):
        last = end(blueprint.with_weights(weights))
        return jnp.sum(last.q**2) + jnp.sum(last.qd**2)

    where = "on the ground" if contact else "in the air"
    step, gradient = f"step of 5 links {where}", f"gradient of 5 links {where}, by 175 numbers, a step"
    plain, mixed = native.jit(lambda s: _last(model, s, contact)), native.jit(end)
    by_weights = native.jit(jax.value_and_grad(loss))
    return [
        measure(step, "knuckle, without network", bound(plain, state), budget, STEPS),
        measure(step, "knuckle", bound(mixed, blueprint), budget, STEPS),
        measure(gradient, "knuckle", bound(by_weights, blueprint.weights), budget, STEPS),
    ]


def _last(model: kn.Model, state: kn.State, contact: Impulse | None) -> kn.State:
    return kn.rollout(model, state, dt=DT, steps=STEPS, contact=contact).last


def peer(theirs: mujoco.MjModel, budget: float) -> list[Row]:
    data = mujoco.MjData(theirs)

    def run():
        mujoco.mj_resetData(theirs, data)
        data.qpos[0] = np.pi / 2
        mujoco.mj_step(theirs, data, STEPS)

    return [measure("step of 5 links on the ground", "MuJoCo, without network", lambda: run, budget, STEPS)]


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="?", type=Path, default=HERE / "../../shared/benchmark_models")
    parser.add_argument("--quick", action="store_true", help="short timings without contact, nothing written")
    options = parser.parse_args(arguments)
    budget = 0.05 if options.quick else 2.0
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as empty_cache:
        os.environ["KNUCKLE_CACHE"] = empty_cache
        model, theirs = load(options.models, "pend5")
        rows = hybrid(model, None, budget)
        if not options.quick:
            rows += hybrid(model, Impulse(), budget) + peer(theirs, budget)
    text = table(rows)
    print(text)
    if not options.quick:
        (HERE / "results" / "hybrid_speed.json").write_text(json.dumps(rows, indent=1))
        (HERE / "results" / "hybrid_speed.md").write_text(text + "\n")
    return rows


if __name__ == "__main__":
    main()
