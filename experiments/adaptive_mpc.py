"""Adaptive MPC of cartpoles (Interactive Differentiable Simulation, figures 6 to 8), with MuJoCo as the real system.

Single and double cartpole of the DeepMind Control Suite with a rail without ends and a force of +-200 N. The model
starts with every mass, length, centre of mass and moment of inertia at 2. Horizons of 20 and 40 steps of 0.05 s, 140
steps an episode, fits every 50 steps of the first episode, later after each. Differences to the paper: costs are
squares, not norms, and do not see accelerations; fits are by Levenberg-Marquardt. Baselines of reinforcement learning
are not run. Run: python experiments/adaptive_mpc.py [--quick] [--poles 1 2] [--episodes 3]. Writes adaptive_mpc.json
and .png to experiments/results (with --quick nothing: the built-in cartpole with a wrong pole, one short episode).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import mujoco
import numpy as np

import knuckle as kn
from knuckle import control, robots

RESULTS = Path(__file__).parent / "results"
DT, LENGTH, FORCE, FIRST = 0.05, 140, 200.0, 2.0
HORIZON = {1: 20, 2: 40}


class System:
    """MuJoCo with the interface of Gymnasium: hanging at first, a control held over DT."""

    def __init__(self, path: Path, seed: int = 0):
        self.physics = mujoco.MjModel.from_xml_path(str(path))
        self.data, self.rng = mujoco.MjData(self.physics), np.random.default_rng(seed)
        self.action_space = SimpleNamespace(shape=(self.physics.nu,))
        self.unwrapped = self

    def reset(self):
        mujoco.mj_resetData(self.physics, self.data)
        self.data.qpos[1] = np.pi
        self.data.qpos[:] += 0.05 * self.rng.normal(size=self.physics.nq)
        mujoco.mj_forward(self.physics, self.data)
        return np.array(self.data.qpos), {}

    def step(self, action):
        self.data.ctrl[:] = action
        for _ in range(round(DT / self.physics.opt.timestep)):
            mujoco.mj_step(self.physics, self.data)
        return np.array(self.data.qpos), 0.0, False, False, {}


def suite_file(poles: int) -> Path:
    """The suite's cartpole with a rail without ends and a motor of +-200 N."""
    from dm_control.suite import cartpole

    text, assets = cartpole.get_model_and_assets(poles)
    text = text.decode() if isinstance(text, bytes) else text
    text = text.replace('limited="true" axis="1 0 0" range="-1.8 1.8" solreflimit=".08 1"', 'axis="1 0 0"')
    text = re.sub(r'gear="10" ctrllimited="true" ctrlrange="-1 1"', f'gear="1" ctrlrange="-{FORCE} {FORCE}"', text)
    folder = Path(tempfile.mkdtemp())
    for name, content in {**assets, "model.xml": text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "model.xml"


def ignorant(model: kn.Model) -> kn.Model:
    """The model with masses, lengths, centres of mass and moments of inertia at 2, in the plane of motion."""
    links = len(model.link_names)
    com = np.zeros((links, 3))
    com[1:, 2] = FIRST
    position = np.array(model.position)
    position[2:, 2] = FIRST
    return eqx.tree_at(
        lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment, m.position),
        model,
        (np.full(links, FIRST), com, np.tile([FIRST] * 3 + [0.0] * 3, (links, 1)), position),
    )


def free_of(poles: int) -> dict[str, kn.Prior]:
    wide, far = kn.Prior(spread=3.0), kn.Prior(spread=3.0)
    names = {"cart.mass": wide, "pole_*.mass": wide, "pole_*.com.x": far, "pole_*.com.z": far, "pole_*.inertia": wide}
    return names | ({"hinge_2.placement.z": far} if poles == 2 else {})


def identifiable(model: kn.Model) -> dict[str, float]:
    """Combinations of parameters that the motion depends on: total mass, first moments, moments about the hinges."""
    mass, com, moment = (np.asarray(x, float) for x in (model.inertia.mass, model.inertia.com, model.inertia.moment))
    if len(mass) == 2:
        return {
            "total mass": mass.sum(),
            "pole m c": mass[1] * com[1, 2],
            "pole J": moment[1, 1] + mass[1] * com[1, 2] ** 2,
        }
    length = float(model.position[2][2])
    return {
        "total mass": mass.sum(),
        "first pole m c": mass[1] * com[1, 2] + mass[2] * length,
        "first pole J": moment[1, 1] + mass[1] * com[1, 2] ** 2 + mass[2] * length**2,
        "second pole m c": mass[2] * com[2, 2],
        "second pole J": moment[2, 1] + mass[2] * com[2, 2] ** 2,
        "second pole m c l": mass[2] * com[2, 2] * length,
    }


def run(poles: int, path: Path, model: kn.Model, free, length: int, episodes: int, steps: int, substeps: int = 5):
    """Algorithm 1 on one system; angles count by sine and cosine."""
    q = np.array([0.1] + [1.0] * poles)
    running = control.quadratic(model, q=q, qd=0.02, control=1e-5, periodic=True)
    terminal = control.quadratic(model, q=20 * q, qd=1.0, periodic=True)
    return control.adaptive_mpc(
        model,
        System(path),
        running,
        terminal,
        free=free,
        steps=steps,
        dt=DT,
        substeps=substeps,
        episodes=episodes,
        length=length,
        fit_every=50,
        integrator=kn.RK4(),
        contact=None,
        iterations=20,
        limits=(-FORCE, FORCE),
    )


def upright(episode) -> float:
    """How far the poles are from upright in the last second, at most [rad]."""
    angles = np.array(episode.q)[-20:, 1:].cumsum(axis=1)
    return float(np.max(np.abs((angles + np.pi) % (2 * np.pi) - np.pi)))


def off(found: kn.Model, truth: kn.Model) -> float:
    """The largest relative error of what can be identified."""
    a, b = identifiable(found), identifiable(truth)
    return max(abs(a[name] / b[name] - 1) for name in b)


def suite(poles: int, episodes: int) -> tuple[dict, control.Adapted, kn.Model]:
    path = suite_file(poles)
    truth = kn.load(path, strict=False)[0]
    found = run(poles, path, ignorant(truth), free_of(poles), LENGTH, episodes, HORIZON[poles])
    fits = [
        {"transitions": f.transitions, "off": off(f.model, truth), "values": identifiable(f.model)} for f in found.fits
    ]
    good = [f["transitions"] for f in fits if f["off"] < 0.02]
    row = {
        "poles": poles,
        "fits": fits,
        "truth": identifiable(truth),
        "mean cost": [float(np.mean(e.costs)) for e in found.episodes],
        "off upright": [upright(e) for e in found.episodes],
        "first good": good[0] if good else None,
    }
    return row, found, truth


def claims_of(row: dict) -> list[dict]:
    name, best, last = f"{row['poles']} pole(s)", row["first good"], row["off upright"][-1]
    return [
        {
            "what": f"{name}: transitions after which identifiable parameters are within 2 %",
            "measured": best,
            "wanted": 100,
            "holds": best is not None and best < 100,
        },
        {"what": f"{name}: off upright in the last second [rad]", "measured": last, "wanted": 0.2, "holds": last < 0.2},
    ]


def picture(rows: list[tuple[dict, control.Adapted, kn.Model]]) -> None:
    """Figures 6 (parameters), 7 (mean cost) and 8 (predicted and real motion)."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(rows), 3, figsize=(13, 3.6 * len(rows)), squeeze=False)
    for (row, found, _), (left, middle, right) in zip(rows, axes, strict=True):
        for name, true in row["truth"].items():
            left.plot([f["values"][name] / true for f in row["fits"]], "o-", label=name)
        left.set(xlabel="fit", ylabel="value / true value", yscale="log", title=f"{row['poles']} pole(s): parameters")
        left.legend(fontsize=7)
        middle.plot(LENGTH * np.arange(1, len(row["mean cost"]) + 1), [-c for c in row["mean cost"]], "o-")
        middle.set(xlabel="steps of the environment", ylabel="mean reward of an episode")
        last = found.episodes[-1]
        real = np.array(last.q)
        controls = np.repeat(np.array(last.controls), 5, axis=0)
        start = kn.State(np.array(last.q[0]), np.array(last.qd[0]))
        options = {"dt": DT / 5, "integrator": kn.RK4(), "contact": None, "native": True}
        predicted = np.asarray(kn.rollout(found.model, start, controls, **options).q)[4::5]
        for k in range(1, real.shape[1]):
            right.plot(DT * np.arange(len(real)), real[:, k], f"C{k}", label=f"hinge {k}, MuJoCo")
            right.plot(DT * np.arange(1, 41), predicted[:40, k], f"C{k}--", label=f"hinge {k}, model")
        right.set(xlabel="time [s]", ylabel="angle [rad]", title="last episode")
        right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "adaptive_mpc.png", dpi=110)


def quick() -> dict:
    path = robots.path("cartpole")
    truth = robots.load("cartpole")
    wrong = eqx.tree_at(lambda m: m.inertia.mass, truth, np.array([2.0, 0.6]))
    found = run(1, path, wrong, {"cart.mass": None, "pole.mass": None}, 50, 1, 15, substeps=1)
    return {"error": found.fits[-1].error, "mass": found.values["cart.mass"], "truth": float(truth.inertia.mass[0])}


def main(arguments: list[str] | None = None) -> dict:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--poles", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--episodes", type=int, default=3)
    given = parser.parse_args(arguments)
    if given.quick:
        return quick()
    rows = [suite(poles, given.episodes) for poles in given.poles]
    result = {"claims": [claim for row, _, _ in rows for claim in claims_of(row)], "rows": [row for row, _, _ in rows]}
    (RESULTS / "adaptive_mpc.json").write_text(json.dumps(result, indent=1))
    picture(rows)
    for claim in result["claims"]:
        print(claim)
    return result


if __name__ == "__main__":
    main()
