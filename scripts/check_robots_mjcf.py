"""Compare a MJCF robot with MuJoCo: kinematics, dynamics, joint forces and one step, at random states.

MuJoCo's smooth dynamics are the reference: constraints off (limits, contact, equalities, and frictionloss, which is a
constraint in MuJoCo and a smooth joint force here, so it is left out on both sides).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from knuckle import dynamics, forces, kinematics
from knuckle.integrate import SemiImplicitEuler
from knuckle.model.load import load
from knuckle.model.model import Model, State
from knuckle.model.report import LoadError, LoadWarning
from knuckle.simulate import step

DT = 0.002
JACOBIANS = 6  # bodies and sites whose Jacobian is compared, spread over the robot


def check_mjcf(path: Path, states: int = 3, seed: int = 0, compiler: Callable = jax.jit) -> dict:
    """How a file loads, what MuJoCo and we say of it, and the largest relative error per quantity.

    `compiler` is what our functions go through.
    """
    reference = mujoco.MjModel.from_xml_path(str(path))
    row: dict = {"file": path.name}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoadWarning)
            model = load(path)
    except LoadError as error:
        return {**row, "loads": "refused", "reason": "; ".join(map(str, error.problems)) or str(error)}
    row |= {"loads": "strict", "nv": model.nv, "mass": float(model.mass)}
    return {**row, "errors": compare(model, reference, states, seed, compiler)}


def compare(
    model: Model, reference: mujoco.MjModel, states: int = 3, seed: int = 0, compiler: Callable = jax.jit
) -> dict[str, float]:
    """The largest relative error per quantity over random states; MuJoCo's model is left with constraints off."""
    reference.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    reference.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    reference.opt.timestep = DT
    model = eqx.tree_at(lambda m: m.friction, model, np.zeros(model.nv))
    data = mujoco.MjData(reference)
    random = np.random.default_rng(seed)
    names = _names(model, reference)
    ours_at = compiler(partial(_quantities, model, names.with_jacobian))
    worst: dict[str, float] = {}
    for _ in range(states):
        q, qd, control = random_state(reference, random)
        data.qpos[:], data.qvel[:], data.ctrl[:] = q, qd, control
        mujoco.mj_forward(reference, data)
        ours = jax.tree.map(np.asarray, ours_at(q, qd, control))
        pairs = _pairs(names, reference, data, ours)
        for name, error in pairs.items():
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def random_state(reference: mujoco.MjModel, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates anywhere on the manifold, speeds and controls of order one."""
    q = np.zeros(reference.nq)
    mujoco.mj_integratePos(reference, q, random.normal(size=reference.nv), 1.0)
    for joint in range(reference.njnt):
        start = reference.jnt_qposadr[joint]
        rotation = {int(mujoco.mjtJoint.mjJNT_FREE): 3, int(mujoco.mjtJoint.mjJNT_BALL): 0}
        offset = rotation.get(int(reference.jnt_type[joint]))
        if offset is not None:
            quaternion = random.normal(size=4)
            q[start + offset : start + offset + 4] = quaternion / np.linalg.norm(quaternion)
    return q, random.normal(size=reference.nv), random.normal(size=reference.nu)


@dataclass(frozen=True)
class Names:
    """MuJoCo's bodies and sites by number, the row of each name in our poses, and those with a Jacobian to compare."""

    bodies: dict[int, str]
    sites: dict[int, str]
    row: dict[str, int]

    @property
    def with_jacobian(self) -> tuple[str, ...]:
        return tuple(name for table in (self.bodies, self.sites) for name in _spread(list(table.values())))


def _spread(items: list) -> list:
    return items[:: max(1, -(-len(items) // JACOBIANS))]


def _names(model: Model, reference: mujoco.MjModel) -> Names:
    """Names as the reader gives them: made up for unnamed bodies, changed for sites named like a body.

    Unnamed sites are passed over.
    """
    row = {name: k for k, name in enumerate((*model.link_names, *model.frames.names))}
    bodies = {i: mujoco.mj_id2name(reference, int(mujoco.mjtObj.mjOBJ_BODY), i) for i in range(1, reference.nbody)}
    sites = {i: mujoco.mj_id2name(reference, int(mujoco.mjtObj.mjOBJ_SITE), i) for i in range(reference.nsite)}
    named = {i: name or f"body{i}" for i, name in bodies.items()}
    renamed = {i: f"{name}_site" if name in named.values() else name for i, name in sites.items()}
    return Names(named, {i: name for i, name in renamed.items() if name in row}, row)


def _quantities(model: Model, names: tuple[str, ...], q, qd, control) -> dict:
    tau = forces.actuator_force(model, q, qd, control) + forces.passive_force(model, q, qd)
    after = step(model, State(q, qd), control, dt=DT, integrator=SemiImplicitEuler(), contact=None)
    poses = [kinematics.poses(model, q), *([kinematics.frame_poses(model, q)] if model.frames.names else [])]
    return {
        "position": jnp.concatenate([p.position for p in poses]),
        "rotation": jnp.concatenate([p.rotation for p in poses]),
        "mass matrix": dynamics.crba(model, q),
        "bias force": dynamics.bias_force(model, q, qd),
        "passive force": forces.passive_force(model, q, qd),
        "actuator force": forces.actuator_force(model, q, qd, control),
        "forward dynamics": dynamics.aba(model, q, qd, tau),
        "step": jnp.concatenate([after.q, after.qd]),
        "jacobian": jnp.stack([kinematics.jacobian(model, q, name) for name in names]),
    }


def _pairs(names: Names, reference: mujoco.MjModel, data: mujoco.MjData, ours: dict) -> dict[str, float]:
    M = np.zeros((reference.nv, reference.nv))
    mujoco.mj_fullM(reference, data, M)
    qdd, C = ours["forward dynamics"], data.qfrc_bias
    tau = data.qfrc_passive + data.qfrc_actuator
    terms = np.abs(M) @ np.abs(qdd) + np.abs(C) + np.abs(tau)
    found = {
        "mass matrix": relative(ours["mass matrix"], M),
        "bias force": relative(ours["bias force"], C),
        "passive force": relative(ours["passive force"], data.qfrc_passive),
        "actuator force": relative(ours["actuator force"], data.qfrc_actuator),
        "forward dynamics": relative(qdd, data.qacc),
        "backward error": float(np.max(np.abs(M @ qdd + C - tau)) / max(np.max(terms), 1e-300)),
        **_kinematic_errors(names, reference, data, ours),
    }
    mujoco.mj_step(reference, data)
    found["step"] = relative(ours["step"], np.concatenate([data.qpos, data.qvel]))
    return found


def _kinematic_errors(names: Names, reference: mujoco.MjModel, data: mujoco.MjData, ours: dict) -> dict[str, float]:
    bodies, sites = list(names.bodies), list(names.sites)
    rows = [names.row[name] for name in (*names.bodies.values(), *names.sites.values())]
    position = np.concatenate([data.xpos[bodies], data.site_xpos[sites]])
    rotation = np.concatenate([data.xmat[bodies], data.site_xmat[sites]]).reshape(-1, 3, 3)
    jacobians = [_jacobian(reference, data, mujoco.mj_jacBody, i) for i in _spread(bodies)]
    jacobians += [_jacobian(reference, data, mujoco.mj_jacSite, i) for i in _spread(sites)]
    return {
        "position": relative(ours["position"][rows], position),
        "rotation": relative(ours["rotation"][rows], rotation),
        "jacobian": max(relative(x, y) for x, y in zip(ours["jacobian"], jacobians, strict=True)),
    }


def _jacobian(reference: mujoco.MjModel, data: mujoco.MjData, fill, number: int) -> np.ndarray:
    linear, angular = np.zeros((3, reference.nv)), np.zeros((3, reference.nv))
    fill(reference, data, linear, angular, number)
    return np.concatenate([angular, linear])


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference over the largest entry; infinite if anything is not finite."""
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes differ: ours {ours.shape}, MuJoCo's {theirs.shape}")
    if ours.size == 0:
        return 0.0
    if not np.all(np.isfinite(ours)):
        return float("inf")
    difference, size = np.max(np.abs(ours - theirs)), np.max(np.abs(theirs))
    return float(difference / size) if size > 0 else float(difference)
