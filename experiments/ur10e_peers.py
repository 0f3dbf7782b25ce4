"""MuJoCo's `mujoco.sysid` on the log that `ur10e.py` trains on: least squares on roll-outs, from guessed friction."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import mujoco
import numpy as np
from mujoco import sysid as peer
from mujoco.sysid._src import model_modifier

import knuckle as kn
from knuckle.model import export_mjcf

GUESS = {"armature": (1.0, 0.0, 40.0), "damping": (5.0, 0.0, 60.0), "frictionloss": (3.0, 0.0, 40.0)}
BIAS = (0.0, -5.0, 5.0)  # N m
REACH = (0.7, 1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3)  # of log-Cholesky coordinates about the description
PLACES = (4, 8, 12, 5, 6, 9)  # of xx, yy, zz, xy, xz, yz in pi with a flat 3x3 moment


class Identified(NamedTuple):
    """Inertial parameters (link, 10) about the joints, and numbers by joint."""

    pi: np.ndarray
    armature: np.ndarray
    viscous: np.ndarray
    coulomb: np.ndarray
    offset: np.ndarray
    seconds: float


def identified(model: kn.Model, stages: Sequence[tuple[Any, float]], step: float, iterations: int) -> Identified:
    """What `mujoco.sysid` finds on windows (q, qd, effort, measured) of growing length, each with its seconds.

    Inertia in its own log-Cholesky coordinates, rotor inertia, damping, frictionloss and a constant torque are free.
    Residuals are position errors at 10 ms in radians. Initial states are those of the windows, and held.
    """
    began = time.perf_counter()
    xml = _xml(model, step)
    parameters = _parameters(model, xml)
    for windows, seconds in stages:
        steps, every = round(seconds / step), round(0.01 / step)
        times = step * np.arange(steps + 1)
        spec = mujoco.MjSpec.from_string(xml)
        compiled = spec.compile()
        rest, signals = np.zeros(0), [(f"{j}_qpos", 1, peer.SignalType.MjStateQPos) for j in model.joint_names]
        measured = [
            np.stack([np.interp(times[1:], 0.01 * np.arange(1, len(w) + 1), x) for x in w.T], axis=1)
            for w in windows.measured
        ]
        sequences = peer.ModelSequences(
            "arm",
            spec,
            [f"window {k}" for k in range(len(windows.q))],
            [peer.create_initial_state(compiled, q, qd, rest) for q, qd in zip(windows.q, windows.qd, strict=True)],
            [peer.TimeSeries(times, np.concatenate([u[:steps], u[steps - 1 : steps]])) for u in windows.effort],
            [
                peer.TimeSeries.from_custom_map(times, np.concatenate([q[None], m]), signals)
                for q, m in zip(windows.q, measured, strict=True)
            ],
        )

        def residual(params, predicted, target, made, everything, state, every=every, steps=steps, **options):
            off = state[:steps, 1 : 1 + model.nv] - target.data[1 : steps + 1]
            return np.clip(off[every - 1 :: every], -10, 10), target, target

        with contextlib.redirect_stdout(io.StringIO()):
            parameters, _ = peer.optimize(
                parameters.move_off_bounds(),
                peer.build_residual_fn(models_sequences=[sequences], modify_residual=residual),
                verbose=False,
                x_scale="jac",
                max_iters=iterations,
            )
        print(f"  mujoco.sysid, windows of {seconds:g} s: {time.perf_counter() - began:.0f} s", flush=True)
    pi = np.array([model_modifier.pi_from_theta(parameters[f"{link}.inertia"].value) for link in model.link_names])
    own = [
        np.array([parameters[f"{joint}.{field}"].value[0] for joint in model.joint_names])
        for field in ("armature", "damping", "frictionloss", "bias")
    ]
    armature, viscous, coulomb, bias = own
    inertial = np.concatenate([pi[:, :4], pi[:, PLACES]], axis=1)
    return Identified(inertial, armature, viscous, coulomb, -bias, time.perf_counter() - began)


def _xml(model: kn.Model, step: float) -> str:
    guesses = [np.full(model.nv, GUESS[field][0]) for field in ("armature", "damping", "frictionloss")]
    guessed = eqx.tree_at(lambda m: (m.armature, m.damping, m.friction), model, tuple(guesses))
    spec = mujoco.MjSpec.from_string(export_mjcf.write(guessed))
    spec.option.timestep = step
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.disableflags = mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT
    for actuator in spec.actuators:
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    for joint in model.joint_names:
        kind, of = mujoco.mjtSensor.mjSENS_JOINTPOS, mujoco.mjtObj.mjOBJ_JOINT
        spec.add_sensor(name=f"{joint}_qpos", type=kind, objtype=of, objname=joint)
    spec.compile()
    return spec.to_xml()


def set_inertia(body: Any, pi: np.ndarray) -> None:
    """Mass, centre and principal moments of (m, m c, moment about the body's origin as a flat 3x3 matrix)."""
    mass, centre = pi[0], pi[1:4] / pi[0]
    moment = pi[4:].reshape(3, 3) - mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
    values, axes = np.linalg.eigh(moment)
    axes = axes * np.sign(np.linalg.det(axes))
    turn = np.zeros(4)
    mujoco.mju_mat2Quat(turn, axes.ravel())
    body.explicitinertial = True
    body.mass, body.ipos, body.inertia, body.iquat = mass, centre, values, turn
    body.fullinertia = np.full((6, 1), np.nan)


def _parameters(model: kn.Model, xml: str) -> Any:
    found, spec = peer.ParameterDict(), mujoco.MjSpec.from_string(xml)
    spec.compile()
    for link in model.link_names:
        theta = model_modifier.theta_inertia_from_body(spec, link)

        def move(spec, parameter, link=link):
            set_inertia(spec.body(link), model_modifier.pi_from_theta(parameter.value))

        found.add(peer.Parameter(f"{link}.inertia", theta, theta - REACH, theta + np.array(REACH), modifier=move))
    for k, joint in enumerate(model.joint_names):
        for field, (guess, low, high) in GUESS.items():

            def write(spec, parameter, joint=joint, field=field):
                held = getattr(spec.joint(joint), field)
                if np.ndim(held):
                    held[0] = parameter.value[0]
                else:
                    setattr(spec.joint(joint), field, parameter.value[0])

            found.add(peer.Parameter(f"{joint}.{field}", guess, low, high, modifier=write))

        def push(spec, parameter, k=k):
            spec.actuators[k].biasprm[0] = parameter.value[0]

        found.add(peer.Parameter(f"{joint}.bias", *BIAS, modifier=push))
    return found
