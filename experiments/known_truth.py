"""Parameters of mechanisms whose truth is known, from noisy logs: how close, how sure, and what cannot be told.

In each run the truth is drawn anew (masses, moments and damping within 20 % of the description, centres of mass about
1 cm off it), moves anew and is measured with new noise. Counted are quantities that the fit calls determined (deviation
below a tenth of what was known before): how far they are from the truth, and how often their 95 % intervals hold it.
Of arm and cartpole, whose links cannot all be told apart, the quantities are base parameters: the combinations of
masses and moments that forces depend on. An error is relative to the true value, or to a tenth of what was known
before where that is more.
Run: python experiments/known_truth.py [--quick] [--runs N] [MECHANISM...]. Writes table and numbers to
experiments/results (with --quick nothing).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import native, robots, sysid

RESULTS = Path(__file__).parent / "results"
PERIOD = 0.01  # [s]
WIDTH = 0.2  # of the truth around the description, relative
ENOUGH = 0.1  # a quantity is determined when its deviation is below this share of what was known before


@dataclass(frozen=True)
class Mechanism:
    """A robot, what is fitted of it, how it is moved and measured, and what is compared with the truth."""

    name: str
    about: str
    model: kn.Model
    free: list[str]
    noise: float  # of the coordinates [rad or m]
    runs: int  # recordings
    seconds: float
    quantities: Callable[[kn.Model], jax.Array]
    names: tuple[str, ...]
    drive: Callable[[np.random.Generator, int], np.ndarray]  # references or controls over samples
    start: Callable[[np.random.Generator], np.ndarray]
    tracked: bool = False  # the drive is a path, which motors follow by torques
    options: dict = field(default_factory=dict)


def double_pendulum() -> Mechanism:
    model = robots.load("double_pendulum")
    quantities, names = masses_and_damping(model)
    return Mechanism(
        "double pendulum", "nothing drives it; masses and damping free", model, ["*.mass", "*.damping"], 5e-4, 3, 3.0,
        quantities, names, lambda rng, n: np.zeros((n, 0)), lambda rng: rng.uniform(-2, 2, 2),
    )  # fmt: skip


def cartpole() -> Mechanism:
    model = robots.load("cartpole")
    quantities, names = base_and_damping(model)
    free = ["*.mass", "*.com", "*.inertia", "*.damping"]
    return Mechanism(
        "cartpole", "a motor pushes the cart; all inertia and damping free", model, free, 5e-4, 3, 3.0,
        quantities, names, lambda rng, n: np.repeat(4 * rng.normal(size=(n // 10 + 1, 1)), 10, axis=0)[:n],
        lambda rng: np.array([0.0, rng.uniform(-3, 3)]),
    )  # fmt: skip


def arm() -> Mechanism:
    model = robots.load("arm")
    quantities, names = base_and_damping(model)
    free = ["*.mass", "*.com", "*.inertia", "*.damping"]
    return Mechanism(
        "arm", "seven motors, torques known; all inertia and damping free", model, free, 1e-4, 2, 3.0, quantities,
        names, waves(np.array([1.2, 0.8, 1.2, 1.0, 1.2, 1.0, 1.2])), lambda rng: np.zeros(7), tracked=True,
        options={"segment": 0.5},
    )  # fmt: skip


def waves(size: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Paths that begin at rest: sums of sines with random phases, of so many radians."""

    def path(rng: np.random.Generator, n: int) -> np.ndarray:
        t, found = PERIOD * np.arange(n), np.zeros((n, len(size)))
        for f in (0.2, 0.45, 0.8, 1.25):
            found += (
                rng.normal(size=len(size))
                / (1 + 2 * f)
                * np.sin(2 * np.pi * f * t[:, None] + rng.uniform(0, 6.3, len(size)))
            )
        return size * found * np.minimum(t / 0.5, 1)[:, None] ** 2

    return path


def masses_and_damping(model: kn.Model):
    """Masses and damping by functions of the model; and their names."""
    names = [f"{link}.mass" for link in model.link_names] + [f"{joint}.damping" for joint in model.joint_names]
    return lambda m: jnp.concatenate([jnp.asarray(m.inertia.mass), jnp.asarray(m.damping)]), tuple(names)


def base_and_damping(model: kn.Model):
    """Base parameters and damping, by functions of the model; and their names."""
    base = sysid.base_parameters(model)
    names = [base.words()[k] for k in range(len(base))] + [f"{joint}.damping" for joint in model.joint_names]
    return lambda m: jnp.concatenate([base(m), jnp.asarray(m.damping)]), tuple(names)


def drawn(mechanism: Mechanism, rng: np.random.Generator) -> kn.Model:
    """A truth near the description."""
    model, free = mechanism.model, " ".join(mechanism.free)
    body = model.inertia

    def near(value):
        return np.asarray(value) * rng.uniform(1 - WIDTH, 1 + WIDTH, size=np.shape(value))

    com = np.asarray(body.com) + (0.01 * rng.normal(size=np.shape(body.com)) if "com" in free else 0.0)
    factor = rng.uniform(1 - WIDTH, 1 + WIDTH, size=(len(body.mass), 1)) if "inertia" in free else 1.0
    changed = (
        near(body.mass),
        com,
        np.asarray(body.moment) * factor,
        near(np.maximum(model.damping, 0.02)),
    )
    return eqx.tree_at(lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment, m.damping), model, changed)


class Log:
    """Makes noisy logs of a mechanism."""

    def __init__(self, mechanism: Mechanism):
        self.mechanism = mechanism
        self.move = native.jit(self._move)

    def _move(self, truth, q, drive):
        """States and controls at the samples; controls are held in between."""
        m = self.mechanism
        fine = 4
        options = {"dt": PERIOD / fine, "steps": fine, "integrator": kn.RK4()}

        def sample(state, target):
            u = self._torque(state, target) if m.tracked else target
            run = kn.rollout(truth, state, jnp.repeat(u[None], fine, axis=0), **options)
            return run.last, (state.q, u)

        _, (q, u) = jax.lax.scan(sample, kn.State(q, jnp.zeros(truth.nv)), drive)
        return q, u

    def _torque(self, state, target):
        """Towards a path by the description's inverse dynamics."""
        model = self.mechanism.model
        qdd = 150 * (target - state.q) - 25 * state.qd
        return kn.dynamics.rnea(model, state.q, state.qd, qdd)

    def __call__(self, truth: kn.Model, rng: np.random.Generator) -> list[sysid.Recording]:
        m, found = self.mechanism, []
        for number in range(m.runs):
            n = round(m.seconds / PERIOD)
            q, u = (np.asarray(a) for a in self.move(truth, m.start(rng), m.drive(rng, n)))
            noisy = q + m.noise * rng.normal(size=q.shape)
            control = u if m.model.nu else None
            found.append(
                sysid.Recording.of(m.model, PERIOD * np.arange(n), q=noisy, control=control, name=f"run {number}")
            )
        return found


def study(mechanism: Mechanism, runs: int) -> dict:
    """Fits of so many logs, each of a truth of its own."""
    log, fit, rows, spent = Log(mechanism), None, [], time.perf_counter()
    before = None
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        truth = drawn(mechanism, rng)
        recordings = log(truth, rng)
        if fit is None:
            fit = sysid.fit(mechanism.model, recordings, mechanism.free, held_out=0, **mechanism.options)
            before = prior_deviations(fit, mechanism)
        else:
            fit = fit.again(recordings)
        found, right = fit.interval(mechanism.quantities), np.asarray(mechanism.quantities(truth))
        assert before is not None
        scale = np.maximum(np.abs(right), 0.1 * before)
        rows.append(
            {
                "determined": (found.deviation < ENOUGH * before).tolist(),
                "off": digits(np.abs(found.value - right) / scale),
                "z": digits((found.value - right) / found.deviation),
                "width": digits(found.deviation / scale),
                "inside": ((found.lower <= right) & (right <= found.upper)).tolist(),
                "status": str(fit.result.status),
                "noise": fit.noise["q"],
                "ties": fit.objective.continuity,
            }
        )
        print(f"{mechanism.name} {seed}: {fit.result.status}, {time.perf_counter() - spent:.0f} s", flush=True)
    assert fit is not None
    return {
        "mechanism": mechanism.name,
        "about": mechanism.about,
        "log": f"{mechanism.runs} x {mechanism.seconds:g} s, noise {mechanism.noise * 1e3:g} mrad",
        "names": mechanism.names,
        "rows": rows,
        "told": fit.certainty.summary(),
        "untold": fit.certainty.untold(),
        "seconds": time.perf_counter() - spent,
    }


def digits(values: np.ndarray) -> list[float]:
    """Four digits of each."""
    return [float(f"{value:.4g}") for value in values]


def prior_deviations(fit: sysid.Fit, mechanism: Mechanism) -> np.ndarray:
    """How far the quantities may be from the description before any data."""
    slope = jax.jacfwd(lambda z: mechanism.quantities(fit.parameters.applied(mechanism.model, None, z)[0]))
    J = np.asarray(slope(jnp.zeros(fit.parameters.size)))
    return np.sqrt(np.sum((J * fit.parameters.deviation) ** 2, axis=1))


def passive_words() -> list[str]:
    """What a fit says of a pendulum that nothing drives when all of its inertia is free: not its mass."""
    pendulum = double_pendulum()
    rng = np.random.default_rng(0)
    truth = drawn(pendulum, rng)
    free = ["*.mass", "*.com", "*.inertia", "*.damping"]
    fit = sysid.fit(pendulum.model, Log(pendulum)(truth, rng), free, held_out=0)
    verdicts = [f"{e.name}: {e.verdict}" for e in fit.estimates if e.name.endswith("mass")]
    return [fit.certainty.summary(), *verdicts, *fit.certainty.untold()]


def counts(found: dict) -> dict:
    """Shares over all runs, of the quantities that were determined."""
    rows = found["rows"]
    determined, off, z, inside = (np.array([row[key] for row in rows]) for key in ("determined", "off", "z", "inside"))
    return {
        "runs": len(rows),
        "determined": determined.sum() / len(rows),
        "quantities": determined.shape[1],
        "near": float(np.mean(off[determined] < 0.01)),
        "off": float(np.quantile(off[determined], 0.95)),
        "covered": float(np.mean(inside[determined])),
        "spread": float(np.sqrt(np.mean(z[determined] ** 2))),
    }


def table(studies: Sequence[dict], words: Sequence[str]) -> str:
    head = (
        "mechanism",
        "log",
        "runs",
        "determined",
        "within 1 % of the truth",
        "95 % of errors below",
        "covered by 95 % intervals",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for found in studies:
        c = counts(found)
        cells = (
            f"{found['mechanism']}: {found['about']}", found["log"], str(c["runs"]),
            f"{c['determined']:.1f} of {c['quantities']}", f"{c['near']:.1%}", f"{c['off']:.2%}", f"{c['covered']:.1%}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", str(__doc__).partition("\n")[2].partition("Run:")[0].strip(), ""]
    for found in studies:
        lines += [f"## {found['mechanism']}", "", f"- {found['told']}", *(f"- {line}" for line in found["untold"]), ""]
    return "\n".join([*lines, "## double pendulum with all inertia free", "", *(f"- {line}" for line in words)])


MECHANISMS = {"double_pendulum": double_pendulum, "cartpole": cartpole, "arm": arm}


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mechanisms", nargs="*", choices=[*MECHANISMS, []], help="by default all that were studied")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="the cartpole, 8 runs, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        if options.quick:
            return [study(cartpole(), 8)]
        path = RESULTS / "known_truth.json"
        kept = json.loads(path.read_text()) if path.exists() else {"studies": {}, "passive": []}
        for name in options.mechanisms or MECHANISMS:
            kept["studies"][name] = study(MECHANISMS[name](), options.runs)
        kept["passive"] = kept["passive"] or passive_words()
    path.write_text(json.dumps(kept, indent=None))
    studies = [kept["studies"][name] for name in MECHANISMS if name in kept["studies"]]
    text = table(studies, kept["passive"])
    print(text)
    (RESULTS / "known_truth.md").write_text(text + "\n")
    return studies


if __name__ == "__main__":
    main()
