"""Time per iteration of iLQR beside crocoddyl's FDDP and beside the same algorithm under jax.jit: a 7-joint reach.

100 knots of 10 ms, the same costs and the same first guess (no torque); single thread each. The peers take turns, and
the least processor time of several turns counts. Crocoddyl may need another Python than ours: name it by --peer-python
(pip install crocoddyl there; 3.2.0 with pin 3.9.0 runs, 3.2.1 with pin 4.1.0 crashes in frame residuals). Run: python
benchmarks/control_speed.py [--quick] [--peer-python PATH] [--no-jax]. Writes benchmarks/results/control_speed.json
(with --quick nothing: 10 knots, ours alone).
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
START, GOAL = np.array([0.4, 0.5, 0.3, 1.1, 0.2, 0.6, 0.0]), np.array([0.4, 0.3, 0.5])
KNOTS, DT, ITERATIONS, TURNS = 100, 0.01, 10, 30
ON_THE_WAY, AT_END = (1.0, 0.01, 1e-4), (100.0, 1.0)  # weights of place, speed and torque


def arm():
    """The built-in arm without damping, which Pinocchio's forward dynamics leave out."""
    import equinox as eqx

    from knuckle import robots

    model = robots.load("arm")
    return eqx.tree_at(lambda m: m.damping, model, np.zeros(model.nv))


def planner(steps: int, native: bool):
    from knuckle import control

    model = arm()
    place, speed, torque = ON_THE_WAY
    running = control.frame(model, "tool", GOAL, weight=place) + control.quadratic(model, qd=speed, control=torque)
    terminal = control.frame(model, "tool", GOAL, weight=AT_END[0]) + control.quadratic(model, qd=AT_END[1])
    made = control.Planner(model, running, terminal, steps=steps, dt=DT, contact=None, limits=None, native=native)
    return made, model.state(START), np.zeros((steps, model.nu))


def timed(made, iterations: int) -> tuple[float, float]:
    """Seconds per iteration, and the cost in the end."""
    began = time.process_time()
    plan = made[0].plan(made[1], made[2], max_iterations=iterations)
    return (time.process_time() - began) / plan.iterations, plan.cost


def peer(path: str) -> None:
    """Crocoddyl in its own process, with a robot file of explicit inertias: a line in, a time and a cost out."""
    crocoddyl: Any = importlib.import_module("crocoddyl")
    pin: Any = importlib.import_module("pinocchio")
    robot = pin.buildModelFromMJCF(path)
    state = crocoddyl.StateMultibody(robot)
    nu, nv = robot.nv, robot.nv
    speeds = crocoddyl.ActivationModelWeightedQuad(np.array([0.0] * nv + [1.0] * nv))
    frame = robot.getFrameId("tool")

    def model(place, speed, torque, dt):
        costs = crocoddyl.CostModelSum(state, nu)
        reach = crocoddyl.ResidualModelFrameTranslation(state, frame, GOAL, nu)
        still = crocoddyl.ResidualModelState(state, state.zero(), nu)
        costs.addCost("reach", crocoddyl.CostModelResidual(state, reach), place)
        costs.addCost("still", crocoddyl.CostModelResidual(state, speeds, still), speed)
        if torque:
            costs.addCost(
                "torque", crocoddyl.CostModelResidual(state, crocoddyl.ResidualModelControl(state, nu)), torque
            )
        actuation = crocoddyl.ActuationModelFull(state)
        free = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, actuation, costs)
        return crocoddyl.IntegratedActionModelEuler(free, dt)

    place, speed, torque = ON_THE_WAY
    running = model(place / DT, speed / DT, torque / DT, DT)
    problem = crocoddyl.ShootingProblem(
        np.concatenate([START, np.zeros(nv)]), [running] * KNOTS, model(AT_END[0], AT_END[1], 0.0, 0.0)
    )
    controls = [np.zeros(nu)] * KNOTS
    states = problem.rollout(controls)
    for _ in sys.stdin:
        solver = crocoddyl.SolverFDDP(problem)
        began = time.process_time()
        solver.solve(states, controls, ITERATIONS, True)
        spent = (time.process_time() - began) / max(solver.iter, 1)
        print(json.dumps([spent, float(solver.cost)]), flush=True)


class Peer:
    """The other process."""

    def __init__(self, python: str):
        import knuckle as kn

        path = str(Path(tempfile.mkdtemp()) / "arm.xml")
        kn.save(arm(), path)
        self.process = subprocess.Popen(
            [python, __file__, "--peer", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(self) -> tuple[float, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("crocoddyl's process ended: try it alone with --peer")
        spent, cost = json.loads(line)
        return spent, cost

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--no-jax", action="store_true")
    given = parser.parse_args(arguments)
    if given.peer:
        peer(given.peer)
        return {}
    import jax

    jax.config.update("jax_enable_x64", True)
    if given.quick:
        spent, cost = timed(planner(10, True), 3)
        return {"ours": spent, "cost": cost}
    ours, other = planner(KNOTS, True), Peer(given.peer_python)
    slow = None if given.no_jax else planner(KNOTS, False)
    times: dict[str, list[float]] = {"ours": [], "crocoddyl": [], "jax.jit": []}
    costs: dict[str, float] = {}
    timed(ours, ITERATIONS)  # compiles
    if slow is not None:
        timed(slow, 1)
    for turn in range(TURNS):
        for name, found in (("ours", timed(ours, ITERATIONS)), ("crocoddyl", other.turn())):
            times[name].append(found[0])
            costs[name] = found[1]
        if slow is not None and turn % 10 == 0:
            spent, costs["jax.jit"] = timed(slow, 2)
            times["jax.jit"].append(spent)
    other.end()
    least = {name: 1e6 * min(rows) for name, rows in times.items() if rows}
    wanted = {"crocoddyl": 3.0, "jax.jit": 20.0}
    claims = []
    for name, bound in wanted.items():
        if name in least:
            ratio = least[name] / least["ours"]
            what = f"7-joint reach, 100 knots: time per iteration of {name} over ours"
            claims.append({"what": what, "measured": ratio, "wanted": bound, "holds": ratio >= bound})
    result = {"claims": claims, "us per iteration": least, "cost after 10 iterations": costs}
    (RESULTS / "control_speed.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    main()
