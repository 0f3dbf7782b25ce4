"""One Levenberg-Marquardt iteration of an identification, beside MuJoCo's own `mujoco.sysid` on the same problem.

A driven double pendulum, 400 steps of 5 ms, angles with 1 mrad of noise, 11 free parameters, the start known. Both fit
the same residuals from the same first guess. `mujoco.sysid` runs with its defaults (optimiser "mujoco", threads on all
cores, models compiled from MjSpec) and with x_scale="jac", as it advises for ill-conditioned problems; and once more
without the compilation, by a `build_model` that writes into a compiled MjModel. An iteration is residuals, Jacobian and
step; the best of several searches counts.
Run: python benchmarks/sysid_speed.py [--quick], with pip install "mujoco[sysid]". Writes results/sysid_speed.{md,json}.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import sysid as peer

import knuckle as kn
from knuckle import sysid
from knuckle.optim import LevenbergMarquardt
from knuckle.sysid.objective import Objective
from knuckle.sysid.parameters import choose
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots, make_shots

RESULTS = Path(__file__).parent / "results"
DT, STEPS, NOISE = 0.005, 400, 1e-3
XML = f"""<mujoco model="driven_double_pendulum">
  <option timestep="{DT}" integrator="Euler"><flag eulerdamp="disable" contact="disable"/></option>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" type="hinge" axis="0 1 0" damping="0.05" stiffness="0.3"/>
      <inertial pos="0 0 -0.4" mass="1.15" diaginertia="0.02 0.02 0.004"/>
      <body name="lower" pos="0 0 -0.5">
        <joint name="elbow" type="hinge" axis="0 1 0" damping="0.03" stiffness="0.2" armature="0.01"/>
        <inertial pos="0 0 -0.33" mass="0.75" diaginertia="0.01 0.01 0.003"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="shoulder_motor" joint="shoulder"/>
    <motor name="elbow_motor" joint="elbow"/>
  </actuator>
  <sensor><jointpos joint="shoulder"/><jointpos joint="elbow"/></sensor>
</mujoco>"""


class Free(NamedTuple):
    """A free parameter: our name, its first guess and truth, and how MuJoCo's spec and model hold it."""

    name: str
    guess: float
    truth: float
    in_spec: Callable[[mujoco.MjSpec, float], None]
    in_model: Callable[[mujoco.MjModel, float], None]


def _body(name: str, field: str, compiled: str, index: int = 0):
    def in_spec(spec, value):
        body = spec.body(name)
        getattr(body, field).__setitem__(index, value) if field == "ipos" else setattr(body, field, value)

    def in_model(model, value):
        row = model.body(name).id
        array = getattr(model, compiled)
        array[(row, index) if array.ndim == 2 else row] = value

    return in_spec, in_model


def _joint(name: str, field: str):
    def in_spec(spec, value):
        held = getattr(spec.joint(name), field)  # damping and stiffness are polynomials in newer releases
        held.__setitem__(0, value) if np.ndim(held) else setattr(spec.joint(name), field, value)

    def in_model(model, value):
        array = getattr(model, {"stiffness": "jnt_stiffness"}.get(field, f"dof_{field}"))
        array[model.joint(name).id] = value

    return in_spec, in_model


FREE = (
    Free("upper.mass", 1.15, 1.40, *_body("upper", "mass", "body_mass")),
    Free("lower.mass", 0.75, 0.60, *_body("lower", "mass", "body_mass")),
    Free("upper.com.z", -0.4, -0.36, *_body("upper", "ipos", "body_ipos", 2)),
    Free("lower.com.z", -0.33, -0.30, *_body("lower", "ipos", "body_ipos", 2)),
    Free("shoulder.damping", 0.05, 0.08, *_joint("shoulder", "damping")),
    Free("elbow.damping", 0.03, 0.015, *_joint("elbow", "damping")),
    Free("shoulder.stiffness", 0.3, 0.5, *_joint("shoulder", "stiffness")),
    Free("elbow.stiffness", 0.2, 0.3, *_joint("elbow", "stiffness")),
    Free("elbow.armature", 0.01, 0.014, *_joint("elbow", "armature")),
    Free(
        "elbow_motor.gain",
        1.0,
        0.9,
        lambda spec, value: spec.actuator("elbow_motor").gainprm.__setitem__(0, value),
        lambda model, value: model.actuator_gainprm.__setitem__((1, 0), value),
    ),
    Free(
        "world.gravity.z",
        -9.81,
        -9.7,
        lambda spec, value: spec.option.gravity.__setitem__(2, value),
        lambda model, value: model.opt.gravity.__setitem__(2, value),
    ),
)
START = np.array([0.6, -0.4])


def drive(steps: int) -> np.ndarray:
    t = DT * np.arange(steps + 1)
    return np.stack([3 * np.sin(2.1 * t) + np.sin(7.3 * t), 1.2 * np.sin(3.7 * t + 1) + 0.6 * np.sin(9.1 * t)], axis=1)


def recorded(steps: int) -> np.ndarray:
    """Angles of the true pendulum at all samples, with noise but at the start."""
    model = mujoco.MjModel.from_xml_string(XML)
    for free in FREE:
        free.in_model(model, free.truth)
    data, q = mujoco.MjData(model), [START]
    data.qpos[:] = START
    for control in drive(steps)[:-1]:
        data.ctrl[:] = control
        mujoco.mj_step(model, data)
        q.append(data.qpos.copy())
    noise = NOISE * np.random.default_rng(0).normal(size=(steps + 1, 2))
    return np.array(q) + np.where(np.arange(steps + 1)[:, None] > 0, noise, 0.0)


class Outcome(NamedTuple):
    """What an identification found, and how long an iteration took [s]."""

    values: np.ndarray
    seconds: float
    iterations: int


Search = Callable[[], Outcome]


def ours(q: np.ndarray) -> tuple[Search, Search]:
    """Searches with the start known; then with the start found too, as `kn.fit` does by default."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "double_pendulum.xml"
        path.write_text(XML)
        model = kn.load(path)
    log = sysid.Recording.of(model, DT * np.arange(len(q)), q=q, control=drive(len(q) - 1))
    shots = make_shots(model, [log], length=None, noise={"q": NOISE})
    start = np.concatenate([START, np.zeros(2)])[None]
    shots = eqx.tree_at(lambda s: (s.q, s.qd), shots, (start[:, :2], start[:, 2:]))
    simulator = Simulator(model, choose(model, [f.name for f in FREE]), None, kn.SemiImplicitEuler(), None, 1, {})
    return _search(Objective(simulator, _weighed(shots, q), fixed_starts=True)), _search(Objective(simulator, shots))


def _weighed(shots: Shots, q: np.ndarray) -> Shots:
    """Weights of `mujoco.sysid`, 1 over the norm of each signal, times a constant, so that priors do not count.

    It leaves out the start, and by rounding of its clock the last sample.
    """
    weight = np.tile(1e7 / np.linalg.norm(q[1:-1], axis=0), (1, len(q), 1))
    weight[:, [0, -1]] = 0
    return eqx.tree_at(lambda s: s.weight["q"], shots, weight)


def _search(objective: Objective) -> Search:
    objective(objective.first)  # compiles
    solver, problem = LevenbergMarquardt(value_tolerance=1e-12), objective.problem()

    def search() -> Outcome:
        result = solver(problem, objective.first)
        z = jnp.asarray(result.x)
        values = {p.name: float(np.ravel(p.value(z))[0]) for p in objective.simulator.parameters}
        found = np.array([values[free.name] for free in FREE])
        return Outcome(found, result.seconds / result.iterations, result.iterations)

    return search


def theirs(q: np.ndarray, compile_models: bool) -> Search:
    spec = mujoco.MjSpec.from_string(XML)
    model = spec.compile()
    times = DT * np.arange(len(q))
    signals = [(f"{joint}_qpos", 1, peer.SignalType.MjStateQPos) for joint in ("shoulder", "elbow")]
    start = peer.create_initial_state(model, START, np.zeros(2), np.zeros(0))
    control, measured = peer.TimeSeries(times, drive(len(q) - 1)), peer.TimeSeries.from_custom_map(times, q, signals)
    sequences = peer.ModelSequences("pendulum", spec, "log", start, control, measured)
    parameters = peer.ParameterDict()
    for free in FREE:
        low, high = sorted((free.guess / 4, free.guess * 4))
        parameters.add(peer.Parameter(free.name, free.guess, low, high, modifier=_modifier(free)))
    options: dict[str, Any] = {} if compile_models else {"build_model": _without_compilation(model)}
    residuals = peer.build_residual_fn(models_sequences=[sequences], **options)

    def search() -> Outcome:
        traces: list = []
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            found, _ = peer.optimize(parameters, residuals, verbose=False, x_scale="jac", iter_callback=traces.append)
        iterations = len(traces)
        return Outcome(found.as_vector(), (time.perf_counter() - began) / iterations, iterations)

    return search


def _modifier(free: Free):
    return lambda spec, parameter: free.in_spec(spec, parameter.value[0])


def _without_compilation(model: mujoco.MjModel):
    def build(parameters: peer.ParameterDict, spec: mujoco.MjSpec) -> mujoco.MjModel:
        made = copy.copy(model)
        for free in FREE:
            free.in_model(made, parameters[free.name].value[0])
        return made

    return build


def timed(searches: dict[str, Search], rounds: int) -> dict[str, Outcome]:
    """All in turn, several times: what else the machine does falls on all of them. The quickest of each."""
    found: dict[str, list[Outcome]] = {name: [] for name in searches}
    for _ in range(rounds):
        for name, search in searches.items():
            found[name] += [search() for _ in range(3)]
    return {name: min(outcomes, key=lambda outcome: outcome.seconds) for name, outcomes in found.items()}


def table(rows: dict[str, Outcome]) -> str:
    first = next(iter(rows.values()))
    lines = ["| | iteration [ms] | ratio | iterations |", "|---|--:|--:|--:|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {1e3 * row.seconds:.3f} | {row.seconds / first.seconds:.1f} | {row.iterations} |")
    lines += ["", "| parameter | truth | " + " | ".join(rows) + " |", "|---|--:|" + "--:|" * len(rows)]
    for k, free in enumerate(FREE):
        lines.append(
            f"| {free.name} | {free.truth} | " + " | ".join(f"{r.values[k]:.6f}" for r in rows.values()) + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each once, nothing written")
    options = parser.parse_args(arguments)
    if not hasattr(peer, "optimize"):
        raise ImportError('mujoco.sysid lacks what it needs: pip install "mujoco[sysid]"')
    q = recorded(STEPS)
    with jax.enable_x64(True):
        known, free = ours(q)
        searches = {
            "knuckle": known,
            "mujoco.sysid": theirs(q, compile_models=True),
            "mujoco.sysid without compilation": theirs(q, compile_models=False),
            "knuckle, start found too": free,
        }
        rows = timed(searches, 1 if options.quick else 6)
    print(table(rows))
    if not options.quick:
        (RESULTS / "sysid_speed.md").write_text(table(rows))
        numbers = {name: {**row._asdict(), "values": row.values.tolist()} for name, row in rows.items()}
        (RESULTS / "sysid_speed.json").write_text(json.dumps(numbers, indent=1))
    return rows


if __name__ == "__main__":
    main()
