"""Swing-up by iLQR from random initial states: cartpole, and double cartpole and acrobot of the DeepMind Control Suite.

Each start is planned in Knuckle, with restarts from other first guesses, and executed in MuJoCo with the feedback of
the plan. A regulator (LQR) takes over at the end and holds the robot for 2 s. A start counts if the robot is then
within 0.1 rad and 0.1 rad/s of upright, and if the cart never left its rail. Bounds were set before the runs. Run:
python experiments/swing_up.py [--quick] [--robots NAME ...] [--starts N]. Writes experiments/results/swing_up.json
(with --quick nothing: 4 starts of the cartpole).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import knuckle as kn
from knuckle import control, robots

RESULTS = Path(__file__).parent / "results"
HOLD, ANGLE, SPEED = 2.0, 0.1, 0.1  # [s], [rad], [rad/s]


@dataclass
class Task:
    """A robot, its costs, and how a search goes."""

    name: str
    path: Path
    model: kn.Model
    dt: float
    steps: int
    running: control.costs.SummableCost
    terminal: control.costs.SummableCost
    limits: tuple[float, float]
    first: Callable[[np.random.Generator], np.ndarray]  # coordinates of a random start
    rail: float  # [m]
    restarts: int
    wanted: float  # share of the starts
    pumped: bool = False  # first guesses by a policy that adds energy

    def __post_init__(self):
        options = {"dt": self.dt, "contact": None, "integrator": kn.RK4()}
        self.substeps = 2
        self.planner = control.Planner(
            self.model, self.running, self.terminal, steps=self.steps, substeps=2, limits=self.limits, **options
        )
        options["dt"] = self.dt / 2
        model, top = self.model, kn.dynamics.potential_energy(self.model, jnp.asarray(self.model.reference) * 0)

        def pump(state: kn.State, noise):
            """Torque along the speed of the last joint while there is too little energy."""

            def knot(s, n):
                energy = kn.dynamics.kinetic_energy(model, s.q, s.qd) + kn.dynamics.potential_energy(model, s.q)
                u = self.limits[1] * jnp.clip(jnp.tanh(2 * (top - energy)) * jnp.tanh(3 * s.qd[-1:]) + n, -1.0, 1.0)
                return kn.step(model, kn.step(model, s, u, **options), u, **options), u

            return jax.lax.scan(knot, state, noise)[1]

        self.pump = kn.native.jit(pump)
        self.regulator = self._regulator(options)

    def _regulator(self, options) -> np.ndarray:
        """The gain of an infinite horizon about upright, at half a knot."""
        upright = self.model.state(np.zeros(self.model.nq))
        nv, nu = self.model.nv, self.model.nu
        A, B = kn.native.jit(lambda s: kn.linearize(self.model, s, np.zeros(nu), **options))(upright)
        return control.lqr(A, B, np.eye(2 * nv), 0.1 * np.eye(nu)).gain

    def guess(self, state: kn.State, rng: np.random.Generator) -> np.ndarray:
        """Smooth noise, or energy pumped in with noise."""
        window = np.exp(-0.5 * (np.arange(-20, 21) / 6) ** 2)
        noise = np.convolve(rng.normal(size=self.steps), window / np.sqrt(np.sum(window**2)), "same")[:, None]
        return self.pump(state, 0.3 * noise) if self.pumped else 0.3 * self.limits[1] * noise


def on_rail(length: float) -> control.costs.SummableCost:
    """A wall of squares towards the ends of a rail."""
    return control.squares(lambda time, state, u: jnp.maximum(jnp.abs(state.q[:1]) - 0.85 * length, 0.0), 1e3)


def cartpole() -> Task:
    """Of the built-in robots: a rail of +-0.9 m, +-20 N."""
    model = robots.load("cartpole")
    return Task(
        "cartpole",
        robots.path("cartpole"),
        model,
        0.02,
        150,
        control.quadratic(model, q=[0.02, 0.05], qd=1e-3, control=2e-4, periodic=True) + on_rail(0.9),
        control.quadratic(model, q=[40.0, 100.0], qd=10.0, periodic=True),
        (-20.0, 20.0),
        lambda rng: np.array([rng.uniform(-0.4, 0.4), rng.uniform(-np.pi, np.pi)]),
        rail=0.9,
        restarts=5,
        wanted=1.0,
    )


def suite_file(module: str, *arguments) -> Path:
    """The MJCF of a domain of the suite with what it includes, in a folder of its own."""
    import importlib

    found = importlib.import_module(f"dm_control.suite.{module}").get_model_and_assets(*arguments)
    folder = Path(tempfile.mkdtemp())
    for name, text in {**found[1], "model.xml": found[0]}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "model.xml"


def double_cartpole() -> Task:
    """`cartpole` of the suite with two poles: a rail of +-1.8 m, +-10 N."""
    path = suite_file("cartpole", 2)
    model = kn.load(path, strict=False)[0]
    return Task(
        "double cartpole",
        path,
        model,
        0.02,
        200,
        control.quadratic(model, q=[0.2, 0.02, 0.02], qd=1e-3, control=0.02, periodic=True) + on_rail(1.8),
        control.quadratic(model, q=[50.0, 300.0, 300.0], qd=30.0, periodic=True),
        (-1.0, 1.0),
        lambda rng: np.array([rng.uniform(-0.5, 0.5), *rng.uniform(-np.pi, np.pi, 2)]),
        rail=1.8,
        restarts=20,
        wanted=0.95,
    )


def acrobot(torque: float) -> Task:
    """`acrobot` of the suite, whose gear is 2: a control of +-0.5 is +-1 N m, its own +-1 is +-2 N m."""
    path = suite_file("acrobot")
    model = kn.load(path, strict=False)[0]
    return Task(
        f"acrobot, {torque:g} N m",
        path,
        model,
        0.04,
        350 if torque < 2 else 250,
        control.quadratic(model, q=1e-3, qd=1e-3, control=0.05, periodic=True),
        control.quadratic(model, q=3000.0, qd=300.0, periodic=True),
        (-torque / 2, torque / 2),
        lambda rng: rng.uniform(-np.pi, np.pi, 2),
        rail=np.inf,
        restarts=60,
        wanted=0.95,
        pumped=True,
    )


def executed(task: Task, plan: control.Plan, physics: mujoco.MjModel) -> tuple[bool, float]:
    """Whether MuJoCo's robot is held upright after the plan, and how far its cart went [m]."""
    data = mujoco.MjData(physics)
    data.qpos[:], data.qvel[:] = plan.states.q[0], plan.states.qd[0]
    per_knot = round(task.dt / physics.opt.timestep)
    angles = [k for k, kind in enumerate(task.model.topology.kind) if kind == "revolute"]
    farthest = 0.0
    for k in range(task.steps + round(HOLD / task.dt)):
        for part in range(per_knot):
            change = np.concatenate([data.qpos, data.qvel])
            if k < task.steps:
                if part == 0:
                    change = change - np.concatenate([plan.states.q[k], plan.states.qd[k]])
                    data.ctrl[:] = np.clip(plan.controls[k] + plan.gains[k] @ change, *task.limits)
            elif part % max(per_knot // 2, 1) == 0:
                change[angles] = (change[angles] + np.pi) % (2 * np.pi) - np.pi
                data.ctrl[:] = np.clip(-task.regulator @ change, *task.limits)
            mujoco.mj_step(physics, data)
            farthest = max(farthest, abs(data.qpos[0])) if np.isfinite(task.rail) else 0.0
    off = np.abs((data.qpos[angles] + np.pi) % (2 * np.pi) - np.pi)
    return bool(off.max() < ANGLE and np.abs(data.qvel[angles]).max() < SPEED and farthest < task.rail), farthest


def solve(task: Task, seed: int) -> dict:
    """One start: plans from different guesses until one is executed with success."""
    rng = np.random.default_rng(seed)
    state = task.model.state(task.first(rng))
    physics = mujoco.MjModel.from_xml_path(str(task.path))
    began, iterations, plans, good, farthest = time.perf_counter(), 0, 0, False, 0.0
    while not good and plans <= task.restarts:
        plan = task.planner.plan(state, task.guess(state, rng), max_iterations=400, tolerance=1e-5)
        iterations, plans = iterations + plan.iterations, plans + 1
        near = float(task.terminal(0.0, _last(plan))) < 0.05 * _far(task)
        good, farthest = executed(task, plan, physics) if near else (False, 0.0)
    found = {"seed": seed, "upright": good, "plans": plans, "iterations": iterations, "rail": float(farthest)}
    return found | {"seconds": time.perf_counter() - began}


def _last(plan: control.Plan) -> kn.State:
    return kn.State(plan.states.q[-1], plan.states.qd[-1])


def _far(task: Task) -> float:
    """The terminal cost of hanging."""
    return float(task.terminal(0.0, task.model.state(np.where(_is_angle(task.model), np.pi, 0.0))))


def _is_angle(model: kn.Model) -> np.ndarray:
    return np.array([kind == "revolute" for kind in model.topology.kind])


TASKS = {
    "cartpole": cartpole,
    "double_cartpole": double_cartpole,
    "acrobot": lambda: acrobot(2.0),
    "weak_acrobot": lambda: acrobot(1.0),
}


def main(arguments: list[str] | None = None) -> dict:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--robots", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--starts", type=int, default=100)
    given = parser.parse_args(arguments)
    path = RESULTS / "swing_up.json"
    kept = json.loads(path.read_text()) if path.exists() and not given.quick else {"tasks": {}, "claims": []}
    names, starts = (["cartpole"], 4) if given.quick else (given.robots, given.starts)
    for name in names:
        task = TASKS[name]()
        rows = [solve(task, seed) for seed in range(starts)]
        count = sum(row["upright"] for row in rows)
        print(f"{task.name}: {count} of {starts} upright, {np.mean([r['plans'] for r in rows]):.1f} plans each")
        kept["tasks"][task.name] = rows
        what = f"{task.name}: starts of {starts} that end upright and held in MuJoCo"
        claim = {
            "what": what,
            "measured": count,
            "wanted": task.wanted * starts,
            "holds": count >= task.wanted * starts,
        }
        kept["claims"] = [c for c in kept["claims"] if not c["what"].startswith(f"{task.name}:")] + [claim]
        if not given.quick:
            path.write_text(json.dumps(kept, indent=1))
    return kept


if __name__ == "__main__":
    main()
