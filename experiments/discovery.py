"""What a double pendulum's model is missing: joint friction, found by networks whose inputs die out, and as a formula.

NeuralSim, figure 10: the reference has joint friction, the model has none, and networks from (q, qd) act on each
joint's force. The first layer must end with exact zeros everywhere but at qd_i for the force of joint i, and a joint
without friction must end without a network. Two references (damping 0.2 and 0.1, 0.2 and 0), 20 seeds of recordings and
of first weights each. The paper's layer is sparse after 15 optimisation steps; ours is shown after 15 too. Discovery
then names the effect and its coefficient. Last, the test error over the amount of data, beside a network that learns
the whole step.
Run: python experiments/discovery.py [--quick] [--seeds FIRST END]. Each run is kept in results/discovery.json at once
and not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import knuckle as kn
from knuckle import neural, sysid

RESULTS = Path(__file__).parent / "results"
PENDULUM = """<mujoco><option gravity="0 0 -9.81"/><worldbody><body name="upper"><joint name="shoulder" axis="0 1 0"/>
<inertial pos="0 0 -0.5" mass="1" diaginertia="0.009 0.009 0.009"/><body name="lower" pos="0 0 -0.5">
<joint name="elbow" axis="0 1 0"/><inertial pos="0 0 -0.5" mass="1" diaginertia="0.009 0.009 0.009"/>
</body></body></worldbody></mujoco>"""
DAMPINGS = {"0.2 and 0.1": (0.2, 0.1), "0.2 and 0": (0.2, 0.0)}
STEP, SECONDS, EVERY, NOISE = 1 / 500, 5.0, 5, 1e-4  # [s], [s], steps of a sample, [rad]
RUNS, STEPS, SEEDS = 6, 15, 20
SIZES = (1, 2, 4)  # recordings of one second to learn from, of the data-efficiency figure
NEAR = 0.02  # relative error of a coefficient


def reference(damping: Sequence[float]) -> tuple[kn.Model, kn.Model]:
    """The model without friction, and the pendulum with it."""
    model = kn.load(PENDULUM)
    return model, eqx.tree_at(lambda m: m.damping, model, np.array(damping))


def recordings(truth: kn.Model, rng: np.random.Generator, runs: int, seconds: float = SECONDS) -> list[sysid.Recording]:
    """Swings from random angles, at 100 Hz with noise."""
    found = []
    for number in range(runs):
        start = truth.state(rng.uniform(-1.5, 1.5, 2), rng.uniform(-1, 1, 2))
        options = {"integrator": kn.RK4(), "contact": None, "native": True}
        run = kn.rollout(truth, start, dt=STEP, steps=round(seconds / STEP), **options)
        q = np.asarray(run.q)[EVERY - 1 :: EVERY]
        noisy = q + NOISE * rng.normal(size=q.shape)
        found.append(sysid.Recording.of(truth, np.asarray(run.time)[EVERY - 1 :: EVERY], q=noisy, name=f"run {number}"))
    return found


def discovered(name: str, seed: int, runs: int = RUNS, seconds: float = SECONDS) -> dict:
    """One run: what is found, and the norms of the first layer after each step."""
    damping = DAMPINGS[name]
    model, truth = reference(damping)
    logs = recordings(truth, np.random.default_rng(seed), runs, seconds)
    began = time.perf_counter()
    found = sysid.discover(model, logs, seed=seed, resamples=20)
    network = found.network
    assert network is not None
    layer = network.history[min(STEPS, len(network.history)) - 1]
    wanted = np.zeros((2, 4), bool)
    wanted[0, 2], wanted[1, 3] = damping[0] > 0, damping[1] > 0
    named = {(c.effect, c.place) for c in found.effects}
    right = {("viscous damping", joint) for joint, d in zip(("shoulder", "elbow"), damping, strict=True) if d}
    coefficients = {c.name.partition(":")[0]: c for c in found.coefficients}
    pairs = [(coefficients.get(joint), d) for joint, d in zip(("shoulder", "elbow"), damping, strict=True) if d]
    return {
        "sparse_after_15": bool(np.array_equal(layer > 0, wanted)),
        "sparse_at_end": bool(np.array_equal(network.alive, wanted)),
        "layer_after_15": layer.round(6).tolist(),
        "alive_at_end": network.alive.tolist(),
        "named": named == right,
        "effects": sorted(c.name for c in found.effects),
        "off": [float("nan") if c is None else abs(-c.value / d - 1) for c, d in pairs],
        "covered": [c is not None and c.lower <= -d <= c.upper for c, d in pairs],
        "errors": {e.what: e.error for e in found.held_out},
        "history": [h.round(5).tolist() for h in network.history] if seed == 0 else None,
        "seconds": time.perf_counter() - began,
    }


def data_efficiency(sizes: Sequence[int] = SIZES, epochs: int = 3000) -> list[dict]:
    """Test errors of roll-outs of half a second by seconds of data: the formula, and a network for the whole step."""
    model, truth = reference(DAMPINGS["0.2 and 0.1"])
    rng, rows = np.random.default_rng(100), []
    test = [truth.state(rng.uniform(-1.5, 1.5, 2), rng.uniform(-1, 1, 2)) for _ in range(20)]
    steps = 50
    paths = [_swing(truth, s, steps) for s in test]
    for size in sizes:
        logs = recordings(truth, np.random.default_rng(200 + size), max(size, 2), 1.0 if size > 1 else 0.5)
        found = sysid.discover(model, logs, held_out=0, networks=False, resamples=0)
        hybrid = [_swing(found.model, s, steps, found.blueprint) for s in test]
        learned = _learned_step(logs, epochs)
        network = [_rolled(learned, s, steps) for s in test]
        rows.append({"seconds": 1.0 * size, "hybrid": _rms(hybrid, paths), "network": _rms(network, paths)})
        print(rows[-1], flush=True)
    return rows


def _swing(model: kn.Model, state: kn.State, samples: int, blueprint: kn.Blueprint | None = None) -> np.ndarray:
    options = {"integrator": kn.RK4(), "contact": None, "native": True, "blueprint": blueprint}
    return np.asarray(kn.rollout(model, state, dt=STEP, steps=samples * EVERY, **options).q)[EVERY - 1 :: EVERY]


def _rms(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(np.mean([(x - y) ** 2 for x, y in zip(a, b, strict=True)])))


def _learned_step(logs: Sequence[sysid.Recording], epochs: int):
    """A network from state to next state, trained on smoothed differences of the same recordings."""
    states, after = [], []
    for log in logs:
        q = log["q"].values
        qd = np.gradient(q, log.period, axis=0)
        x = np.concatenate([q, qd], axis=1)
        states.append(x[1:-2])
        after.append(x[2:-1])
    x, y = jnp.asarray(np.concatenate(states)), jnp.asarray(np.concatenate(after))
    scale = jnp.std(y - x, axis=0)
    network = neural.MLP((4, 64, 64, 4), key=jax.random.key(0))
    rate = optax.cosine_decay_schedule(3e-3, epochs)
    optimiser = optax.adam(rate)

    def loss(network):
        return jnp.mean(((jax.vmap(network)(x) * scale + x - y) / scale) ** 2)

    @jax.jit
    def trained(network):
        def step(carry, _):
            network, state = carry
            gradient = jax.grad(loss)(network)
            updates, state = optimiser.update(gradient, state)
            return (eqx.apply_updates(network, updates), state), None

        return jax.lax.scan(step, (network, optimiser.init(network)), None, length=epochs)[0][0]

    learned = trained(network)
    return lambda x: learned(x) * scale + x


def _rolled(step, state: kn.State, samples: int) -> np.ndarray:
    x = jnp.concatenate([jnp.asarray(state.q), jnp.asarray(state.qd)])
    _, rows = jax.lax.scan(lambda x, _: (step(x),) * 2, x, None, length=samples)
    return np.asarray(rows)[:, :2]


def claims(runs: dict[str, dict], rows: Sequence[dict]) -> list[dict]:
    """What must hold, with what was measured."""
    made = []
    for name in DAMPINGS:
        own = [run for key, run in runs.items() if key.startswith(f"{name}:")]
        if not own:
            continue
        count = len(own)
        for what, key in (("sparse after 15 steps", "sparse_after_15"), ("sparse at the end", "sparse_at_end")):
            held = sum(run[key] for run in own)
            made.append(_claim(f"{name}: input layers {what}, of {count}", held, f"{count}", held == count))
        held = sum(run["named"] for run in own)
        made.append(
            _claim(f"{name}: viscous damping and nothing else is named, of {count}", held, str(count), held == count)
        )
        off = max(x for run in own for x in run["off"])
        made.append(_claim(f"{name}: largest relative error of a coefficient", off, f"<= {NEAR}", off <= NEAR))
        for joint in range(len(own[0]["covered"])):
            held, least = sum(run["covered"][joint] for run in own), round(0.85 * count)
            made.append(
                _claim(f"{name}: intervals of joint {joint} that hold the truth", held, f">= {least}", held >= least)
            )
    if rows:
        ratio = rows[0]["network"] / rows[0]["hybrid"]
        made.append(_claim("error of a learned step over ours, least data", ratio, ">= 100", ratio >= 100))
    return made


def _claim(what: str, measured: float, wanted: str, holds: bool) -> dict:
    return {"what": what, "measured": float(f"{measured:.4g}"), "wanted": wanted, "holds": bool(holds)}


def draw(content: dict, path: Path) -> None:
    """The first layer over the steps as in figure 10, and the test errors over the amount of data."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    names = ("q1", "q2", "qd1", "qd2")
    first = content["runs"].get("0.2 and 0.1:0")
    for joint, axis in enumerate(axes[:2]):
        history = np.array(first["history"])[:, joint] if first else np.zeros((1, 4))
        for k, name in enumerate(names):
            axis.plot(np.arange(1, len(history) + 1), history[:, k], label=name)
        axis.axvline(STEPS, color="0.7", lw=0.8)
        axis.set(title=f"first layer of the network of joint {joint + 1}", xlabel="step", ylabel="norm of the weights")
        axis.legend()
    for key, label in (("network", "learned step"), ("hybrid", "discovered formula")):
        axes[2].loglog([r["seconds"] for r in content["data"]], [r[key] for r in content["data"]], "o-", label=label)
    axes[2].set(xlabel="seconds of data", ylabel="test error [rad]")
    axes[2].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of short recordings, nothing written")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, SEEDS), metavar=("FIRST", "END"))
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        if options.quick:
            return {"runs": {"0.2 and 0.1:0": discovered("0.2 and 0.1", 0, runs=4, seconds=1.5)}}
        path = RESULTS / "discovery.json"
        content = json.loads(path.read_text()) if path.exists() else {"runs": {}, "data": []}
        for name in DAMPINGS:
            for seed in range(*options.seeds):
                if f"{name}:{seed}" not in content["runs"]:
                    run = content["runs"][f"{name}:{seed}"] = discovered(name, seed)
                    print(name, seed, {k: v for k, v in run.items() if k != "history"}, flush=True)
                    path.write_text(json.dumps(content))
        content["data"] = content["data"] or data_efficiency()
        content["claims"] = claims(content["runs"], content["data"])
        path.write_text(json.dumps(content))
        draw(content, RESULTS / "discovery.png")
    for claim in content["claims"]:
        print(claim)
    return content


if __name__ == "__main__":
    main()
