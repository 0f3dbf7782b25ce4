"""Native code beside its peers, on one pinned core: ratios, with the time to the first result apart.

Run: python benchmarks/native_speed.py [MODELS] [--quick]. MODELS holds dp.xml, quad.xml and quad.urdf (default
../shared/benchmark_models). Writes benchmarks/results/native_speed.{json,md}. Peers: MuJoCo, MJX and CasADi (extra
`bench`), Pinocchio (extra `test`); one that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import peers

import knuckle as kn
from knuckle import native
from knuckle.simulate import kinematic_zeros

HERE = Path(__file__).parent
STEPS, DT = 500, 1e-3
Row = dict[str, float | str]


def seconds_per_call(run: Callable[[], object], budget: float) -> float:
    """The best of repeated timings: on a shared machine the least disturbed one."""
    run()
    best, end = np.inf, time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def first_call(make: Callable[[], Callable[[], object]]) -> tuple[float, Callable[[], object]]:
    start = time.perf_counter()
    run = make()
    run()
    return time.perf_counter() - start, run


def measure(work: str, name: str, make: Callable[[], Callable[[], object]], budget: float, per: float = 1.0) -> Row:
    """Time to the first result, and steady time per unit of work [us]."""
    first, run = first_call(make)
    steady = seconds_per_call(run, budget) / per * 1e6
    print(f"{work:42s} {name:28s} first {first:7.2f} s   {steady:12.4f} us", flush=True)
    return {"work": work, "name": name, "first_s": first, "us": steady}


def double_pendulum(folder: Path, budget: float) -> list[Row]:
    model = kn.load(folder / "dp.xml")
    q, qd = np.array([1.0, 0.5]), np.zeros(2)

    def end(model, q, qd):
        run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=STEPS, contact=None)
        return run.q[-1], run.qd[-1]

    def loss(mass, q, qd):
        heavier = eqx.tree_at(lambda m: m.inertia.mass, model, mass)
        q, qd = end(heavier, q, qd)
        return jnp.sum(q**2) + 0.1 * jnp.sum(qd**2)

    def bound(function, *args):
        return lambda: lambda: function(*args)

    work = "double pendulum, a step of 500"
    fold = native.jit(lambda q, qd: end(model, q, qd))
    rows = [measure(work, "knuckle, parameters folded", bound(fold, q, qd), budget, STEPS)]
    rows += [measure(work, "knuckle, parameters free", bound(native.jit(end), model, q, qd), budget, STEPS)]
    zeros = native.jit(end, sparse=lambda model, *_: kinematic_zeros(model))  # as rollout(native=True) has it
    rows += [measure(work, "knuckle, only zeros known", bound(zeros, model, q, qd), budget, STEPS)]
    rows += [measure(work, "jax.jit", bound(jax.jit(end), model, q, qd), budget, STEPS)]
    rows += [measure(work, n, m, budget, STEPS) for n, m in peers.double_pendulum_steps(folder, q, qd, STEPS, DT)]
    work = "double pendulum, gradient of 500 steps"
    gradient, mass = native.jit(jax.value_and_grad(loss, (0, 1, 2))), np.ones(2)
    rows += [measure(work, "knuckle", bound(gradient, mass, q, qd), budget)]
    rows += [measure(work, n, m, budget) for n, m in peers.double_pendulum_gradients(folder, q, qd, STEPS, DT)]
    return rows


def quadruped(folder: Path, budget: float) -> list[Row]:
    model = kn.load(folder / "quad.xml")
    state, tau = model.state("home"), 0.1 * np.ones(model.nv)
    q, qd = np.array(state.q), 0.1 * np.ones(model.nv)

    def aba(q, qd, tau):
        return kn.dynamics.aba(model, q, qd, tau)

    def derivatives(q, qd, tau):
        def moved(step, qd, tau):
            return aba(kn.retract(model, q, step), qd, tau)

        return jax.jacfwd(moved, (0, 1, 2))(jnp.zeros(model.nv), qd, tau)

    def inside(q, qd, tau, count=1000):
        """ABA over and over within native code; the result feeds back into all inputs, so that nothing is left out."""

        def again(carry, _):
            q, qd, tau = carry
            change = 1e-9 * aba(q, qd, tau)
            return (q + jnp.pad(change, (0, 1)), qd + change, tau + change), None

        return jax.lax.scan(again, (q, qd, tau), None, length=count)[0]

    fast, jac, loop = native.jit(aba), native.jit(derivatives), native.jit(inside)
    work = "quadruped, ABA"
    rows = [measure(work, "knuckle from Python", lambda: lambda: fast(q, qd, tau), budget)]
    rows += [measure(work, "knuckle inside a native loop", lambda: lambda: loop(q, qd, tau), budget, 1000)]
    rows += [measure(work, n, m, budget) for n, m in peers.quadruped_aba(folder, q, qd, tau)]
    work = "quadruped, ABA derivatives"
    rows += [measure(work, "knuckle", lambda: lambda: jac(q, qd, tau), budget)]
    rows += [measure(work, n, m, budget) for n, m in peers.quadruped_derivatives(folder, q, qd, tau)]
    work = "quadruped, gradient of a step"

    def cost(q, qd):
        after = kn.step(model, kn.State(q, qd), dt=DT, contact=None)
        return jnp.sum(after.qd**2)

    for name in ("knuckle", "knuckle, code from the cache"):
        rows += [measure(work, name, lambda: _called(native.jit(jax.grad(cost, (0, 1))), q, qd), budget)]
    return rows


def _called(function, *args):
    return lambda: function(*args)


def batches(folder: Path, budget: float) -> list[Row]:
    """1024 environments on one core, in us for one step of one environment."""
    rows, count, steps = [], 1024, 20
    for name, work in (("dp", "1024 double pendulums"), ("quad", "1024 quadrupeds without contact")):
        model = kn.load(folder / f"{name}.xml")

        def end(q, qd, model=model):
            run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=steps, contact=None)
            return run.q[-1], run.qd[-1]

        rng = np.random.default_rng(0)
        reference = np.asarray(model.state("home").q if model.keyframes else model.reference)
        q = np.tile(reference, (count, 1))
        qd = 0.1 * rng.normal(size=(count, model.nv))
        many = native.vmap(end, threads=1)
        rows += [measure(work, "knuckle", lambda many=many, q=q, qd=qd: _called(many, q, qd), budget, count * steps)]
        for peer, make in peers.batch_steps(folder, name, q, qd, steps):
            rows += [measure(work, peer, make, budget, count * steps)]
    return rows


def table(rows: list[Row]) -> str:
    lines = ["| work | who | first result [s] | steady [us] | times ours |", "|---|---|---|---|---|"]
    ours: dict[str, float] = {}
    for row in rows:
        if str(row["name"]).startswith("knuckle"):
            ours.setdefault(str(row["work"]), float(row["us"]))
    for row in rows:
        ratio = float(row["us"]) / ours[str(row["work"])]
        lines.append(f"| {row['work']} | {row['name']} | {row['first_s']:.2f} | {float(row['us']):.4g} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="?", type=Path, default=HERE / "../../shared/benchmark_models")
    parser.add_argument("--quick", action="store_true", help="short timings, nothing written")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    budget = 0.05 if options.quick else 2.0
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as empty_cache:
        os.environ["KNUCKLE_CACHE"] = empty_cache
        rows = double_pendulum(options.models, budget) + quadruped(options.models, budget)
        rows += batches(options.models, budget)
    text = table(rows)
    print(text, *(f"left out: {reason}" for reason in peers.MISSING), sep="\n")
    if not options.quick:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        (results / "native_speed.json").write_text(json.dumps(rows, indent=1))
        (results / "native_speed.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
