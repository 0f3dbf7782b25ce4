"""A real pendulum with a motor, fitted from measured torques, beside the fit that its makers published.

Data: DFKI Underactuated Lab, torque-limited simple pendulum. `kn.fit` finds mass, centre of mass, inertia, damping,
Coulomb friction and a constant torque, once from the run that is meant for identification, once from two swing-ups
as well. All models then predict runs that no fit saw: the torque that a motion needs (both sides smoothed alike), and
the motion of 1 s that a torque makes, from a start found by least squares in its first 0.1 s.
Run: python experiments/simple_pendulum.py [--quick]. Writes experiments/results/simple_pendulum.{md,json,png}.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import savgol_filter

import knuckle as kn
from knuckle import native, sysid
from knuckle.dynamics import rnea
from knuckle.forces import passive_force
from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.sysid import datasets

RESULTS = Path(__file__).parent / "results"
RATE, SUBSTEPS, G = 200.0, 5, 9.81
PIECE, SEEN = 1.0, 0.1  # [s]
SMOOTH = 41  # samples of the cubic filter on both sides of the torque balance
PUBLISHED, ONE_RUN, THREE_RUNS = "published fit", "ours, from one run", "ours, from three runs"
FREE = ("*.mass", "*.com", "*.inertia", "*.damping", "*.friction", "*.bias")
TRAIN = {
    "control_method_pd/system_identification/data_measured": 4.0,
    "control_method_ddp/data_measured": 6.0,
    "control_method_direct_collocation/data_measured": 4.0,
}
TEST = {  # short names, and until when [s] nobody pushes the pendulum
    "control_method_energy_shaping/data_measured": ("energy shaping", 8.0),
    "control_method_ilqr/data_measured": ("iLQR", 10.0),
    "control_method_sac/data_measured": ("soft actor-critic", 10.0),
    "control_method_pd/1nm_torque_limited_swingup_failure/data_measured": ("PD within 1 N m", 4.0),
    "filter_method_fft/measured_data": ("recorded for filters", 100.0),
}


class Arctangent(eqx.Module):
    """The published friction, -Fv qd - Fc atan(100 qd)."""

    viscous: float
    coulomb: float

    def __call__(self, x):
        return -self.viscous * x - self.coulomb * jnp.arctan(100 * x)


class Candidate(NamedTuple):
    """A model that predicts, with its friction if that is not the model's own."""

    model: kn.Model
    friction: Arctangent | None = None

    @property
    def blueprint(self) -> kn.Blueprint | None:
        if self.friction is None:
            return None
        augment = kn.Augment(self.friction, "qd", "replace", zero_start=False)
        return kn.Blueprint({"joint/passive_force": augment})

    def torque(self, q, qd, qdd):
        """What the motor must give, by inverse dynamics."""
        passive = passive_force(self.model, q, qd) if self.friction is None else self.friction(qd)
        return rnea(self.model, q, qd, qdd) - passive - jnp.asarray(self.model.actuators.bias)[:, 0]

    @property
    def numbers(self) -> dict[str, float]:
        mass, (x, _, z) = float(self.model.inertia.mass[0]), np.asarray(self.model.inertia.com[0])
        inertia = float(self.model.inertia.moment[0, 1]) + mass * (x**2 + z**2) + float(self.model.armature[0])
        friction = self.friction
        return {
            "inertia [kg m^2]": inertia,
            "gravity torque [N m]": G * mass * float(np.hypot(x, z)),
            "damping [N m s/rad]": float(self.model.damping[0]) if friction is None else friction.viscous,
            "Coulomb friction [N m]": float(self.model.friction[0])
            if friction is None
            else friction.coulomb * np.pi / 2,
            "constant torque [N m]": float(self.model.actuators.bias[0, 0]),
        }


def pendulum(mass=0.6, length=0.4, moment=0.02, bias=0.0, **joint) -> kn.Model:
    hinge = kn.revolute("y", name="pendulum", **joint)
    rod = kn.Link("rod", joints=hinge, mass=mass, com=(0, 0, -length), inertia=(moment,) * 3)
    return kn.build([rod], gravity=(0, 0, -G), actuators=[kn.motor("pendulum", name="motor", bias=(bias, 0, 0))])


def published() -> Candidate:
    """The fit in the folder of the data: J qdd + m c g sin q + Fv qd + Fc atan(100 qd) + offset = torque."""
    text = (datasets.find("dfki_simple_pendulum") / "system_identification.txt").read_text()
    number = {k.strip(): float(v) for k, v in re.findall(r"^(\S+)\s*= ([+-]\S+)$", text, re.M)}
    arm = 0.5 * number["J"] / number["m*cx"]  # any that leaves half of J as moment: only m c and J are seen
    mass = number["m*cx"] / arm
    model = pendulum(mass, arm, number["J"] - mass * arm**2, -number["offset"])
    return Candidate(model, Arctangent(number["Fv"], number["Fc"]))


def part(run: sysid.Recording, until: float) -> sysid.Recording:
    keep = run.time <= run.time[0] + until
    channels = {key: sysid.Channel(c.values[keep], c.valid[keep], c.names) for key, c in run.channels.items()}
    return sysid.Recording(run.time[keep] - run.time[0], channels, run.name, run.source)


def fitted(runs: list[sysid.Recording]) -> Candidate:
    found = kn.fit(pendulum(damping=0.01, friction=0.1), runs, FREE, held_out=0, integrator=kn.Implicit())
    return Candidate(found.model)


def torque_errors(torque: Callable, run: sysid.Recording) -> np.ndarray:
    """Root mean square error of the torque in each piece [N m], where the filter has all its samples."""
    dt = 1 / RATE

    def smooth(x, derivative=0):
        return np.asarray(savgol_filter(x, SMOOTH, 3, deriv=derivative, delta=dt, axis=0))[SMOOTH // 2 : -SMOOTH // 2]

    motion = [smooth(run["q"].values, k) for k in range(3)]
    off = np.asarray(torque(*motion)) - smooth(run["tau"].values)
    count = int(PIECE * RATE)
    return np.array([np.sqrt(np.mean(o**2)) for o in np.array_split(off, max(len(off) // count, 1))])


class Roller:
    """Motions of a candidate over a piece, from the start that fits its first samples best."""

    def __init__(self, candidate: Candidate):
        seen, blueprint = int(SEEN * RATE), candidate.blueprint

        def motion(start, torque):
            state = kn.State(start[:1], start[1:])
            run = kn.rollout(
                candidate.model,
                state,
                jnp.repeat(torque, SUBSTEPS, 0),
                dt=1 / RATE / SUBSTEPS,
                contact=None,
                blueprint=blueprint,
            )
            return jnp.concatenate([start[:1], run.q[SUBSTEPS - 1 :: SUBSTEPS, 0]])

        def residuals(start, torque, q):
            return motion(start, torque[:seen])[:seen] - q[:seen]

        def with_jacobian(start, torque, q):
            return residuals(start, torque, q), jax.jacfwd(residuals)(start, torque, q)

        self.motion, self.residuals = native.jit(motion), native.jit(with_jacobian)

    def __call__(self, torque: np.ndarray, q: np.ndarray) -> np.ndarray:
        seen = int(SEEN * RATE)
        slope, first = np.polyfit(np.arange(seen) / RATE, q[:seen], 1)
        problem = LeastSquares(lambda x: tuple(map(np.asarray, self.residuals(x, torque, q))), 2)
        start = LevenbergMarquardt()(problem, [first, slope]).x
        return np.asarray(self.motion(start, torque))


def pieces(run: sysid.Recording) -> list[tuple[np.ndarray, np.ndarray]]:
    """Torques and angles of all pieces."""
    count = int(PIECE * RATE)
    tau, q = run["tau"].values, run["q"].values[:, 0]
    return [(tau[a : a + count], q[a : a + count + 1]) for a in range(0, len(q) - count, count)]


def motion_errors(roller: Roller, run: sysid.Recording) -> np.ndarray:
    """Root mean square error of the angle after what was seen [rad], of each piece."""
    seen = int(SEEN * RATE)
    return np.array([np.sqrt(np.mean((roller(tau, q) - q)[seen:] ** 2)) for tau, q in pieces(run)])


def interval(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Difference of the mean over runs of the mean over pieces, and its 95 % interval: pieces drawn again in pairs."""
    rng = np.random.default_rng(0)
    gaps = [np.subtract(a, b) for a, b in zip(ours, theirs, strict=True)]
    means = np.mean([rng.choice(gap, (10_000, len(gap))).mean(1) for gap in gaps], axis=0)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.mean([gap.mean() for gap in gaps])), float(low), float(high)


def experiment(quick: bool) -> dict[str, Any]:
    runs = {run.name: run for run in datasets.dfki_simple_pendulum()}
    train = [part(runs[name], until) for name, until in TRAIN.items()]
    unseen = {short: part(runs[name], 2.1 if quick else until) for name, (short, until) in TEST.items()}
    test = {short: sysid.resample(run, rate=RATE) for short, run in unseen.items()}
    candidates = {PUBLISHED: published()}
    candidates |= {ONE_RUN: fitted(train[-1:])} if quick else {ONE_RUN: fitted(train[:1]), THREE_RUNS: fitted(train)}
    torques = {name: native.vmap(candidate.torque) for name, candidate in candidates.items()}
    rollers = {name: Roller(candidate) for name, candidate in candidates.items()}
    return {
        "numbers": {name: candidate.numbers for name, candidate in candidates.items()},
        "torque": {name: {k: torque_errors(c, r) for k, r in test.items()} for name, c in torques.items()},
        "motion": {name: {k: motion_errors(c, r) for k, r in test.items()} for name, c in rollers.items()},
        "example": {k: examples(rollers, run) for k, run in test.items()},
    }


def examples(rollers: dict[str, Roller], run: sysid.Recording) -> dict[str, np.ndarray]:
    """The motions of the first two pieces, one after the other."""
    chosen = pieces(run)[:2]
    shown = {name: np.stack([roller(*piece) for piece in chosen]) for name, roller in rollers.items()}
    return {"measured": np.stack([q for _, q in chosen]), **shown}


def table(found: dict[str, Any]) -> str:
    names, runs = list(found["numbers"]), list(found["torque"][PUBLISHED])
    lines = ["| parameter | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for key in found["numbers"][PUBLISHED]:
        lines.append(f"| {key} | " + " | ".join(f"{found['numbers'][name][key]:.3f}" for name in names) + " |")
    for what, title in (("torque", "Error of the torque [N m]"), ("motion", "Error of the motion over 1 s [rad]")):
        lines += ["", f"{title}, root mean square of each piece of 1 s, on runs that no fit saw:", ""]
        lines += ["| run | pieces | " + " | ".join(names) + " |", "|---|--:|" + "--:|" * len(names)]
        for run in runs:
            values = [found[what][name][run] for name in names]
            lines.append(f"| {run} | {len(values[0])} | " + " | ".join(f"{v.mean():.3f}" for v in values) + " |")
        means = [np.mean([found[what][name][run].mean() for run in runs]) for name in names]
        lines.append("| mean of runs | | " + " | ".join(f"{m:.3f}" for m in means) + " |")
        for name in names[1:]:
            gap = interval(*([found[what][n][run] for run in runs] for n in (name, PUBLISHED)))
            lines += ["", f"{name}, less the published fit: {gap[0]:+.3f} ({gap[1]:+.3f} to {gap[2]:+.3f})."]
    return "\n".join(lines) + "\n"


def picture(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    colours = {"measured": "#b9c0c9", PUBLISHED: "#d4862a", THREE_RUNS: "#2a6f97"}
    figure = Figure((12, 2.9), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(found["example"]))
    for axis, (run, motions) in zip(axes, found["example"].items(), strict=True):
        for name, colour in colours.items():
            for k, q in enumerate(motions[name]):
                time = PIECE * k + np.arange(len(q)) / RATE
                style: dict[str, Any] = {"lw": 5} if name == "measured" else {"lw": 1.5}
                axis.plot(time, q, color=colour, label=name if k == 0 else None, **style)
        measured = motions["measured"]
        reach = max(np.ptp(measured), 0.5)
        axis.set(title=run, xlabel="time [s]", ylim=(measured.min() - reach / 2, measured.max() + reach / 2))
        axis.title.set_fontsize(9.5)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="angle [rad]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, a fit to one swing-up, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        found = experiment(options.quick)
    print(table(found))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "simple_pendulum.md").write_text(table(found))
        kept = {k: found[k] for k in ("numbers", "torque", "motion")}
        (RESULTS / "simple_pendulum.json").write_text(json.dumps(kept, default=np.ndarray.tolist))
        picture(found, RESULTS / "simple_pendulum.png")
    return found


if __name__ == "__main__":
    main()
