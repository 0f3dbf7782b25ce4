"""The same work done by other engines, as closures that a benchmark times."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Work = tuple[str, Callable[[], Callable[[], object]]]
MISSING: list[str] = []


def _import(name: str):
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        reason = f"{name} ({error})"
        if reason not in MISSING:
            MISSING.append(reason)
        return None


def double_pendulum_steps(folder: Path, q, qd, steps: int, dt: float) -> Iterator[Work]:
    mujoco = _import("mujoco")
    yield "MuJoCo C", lambda: _mujoco_steps(mujoco, folder / "dp.xml", q, qd, steps)
    if casadi := _import("casadi"):
        yield "CasADi generated C", lambda: _casadi_call(casadi, _casadi_rollout(casadi, steps, dt), q, qd)
    if mjx := _import("mujoco.mjx"):
        yield "MJX", lambda: _mjx_steps(mujoco, mjx, folder / "dp.xml", q, qd, steps)


def double_pendulum_gradients(folder: Path, q, qd, steps: int, dt: float) -> Iterator[Work]:
    mujoco = _import("mujoco")
    yield "MuJoCo finite differences", lambda: _mujoco_gradient(mujoco, folder / "dp.xml", q, qd, steps)
    if casadi := _import("casadi"):
        yield (
            "CasADi generated C",
            lambda: _casadi_call(casadi, _casadi_gradient(casadi, steps, dt), np.ones(2), q, qd),
        )


def quadruped_aba(folder: Path, q, qd, tau) -> Iterator[Work]:
    if pin := _import("pinocchio"):
        yield "Pinocchio from Python", lambda: _pinocchio(pin, folder, q, qd, tau)[0]


def quadruped_derivatives(folder: Path, q, qd, tau) -> Iterator[Work]:
    if pin := _import("pinocchio"):
        yield "Pinocchio from Python", lambda: _pinocchio(pin, folder, q, qd, tau)[1]


def batch_steps(folder: Path, name: str, q, qd, steps: int) -> Iterator[Work]:
    mujoco = _import("mujoco")
    yield "MuJoCo rollout", lambda: _mujoco_batch(mujoco, folder / f"{name}.xml", q, qd, steps)
    mjx = _import("mujoco.mjx")
    if mjx and name == "dp":
        yield "MJX", lambda: _mjx_batch(mujoco, mjx, folder / f"{name}.xml", q, qd, steps)


def _mujoco_model(mujoco, path: Path):
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    return model


def _mujoco_steps(mujoco, path, q, qd, steps):
    model = _mujoco_model(mujoco, path)
    data = mujoco.MjData(model)

    def run():
        data.qpos[:], data.qvel[:] = q, qd
        mujoco.mj_step(model, data, steps)

    return run


def _mujoco_gradient(mujoco, path, q, qd, steps):
    """One-sided differences over the initial state and the masses: seven roll-outs."""
    model = _mujoco_model(mujoco, path)
    data = mujoco.MjData(model)
    x0, mass0 = np.concatenate([q, qd]), model.body_mass.copy()

    def loss(x, mass):
        model.body_mass[1:] = mass
        data.qpos[:], data.qvel[:] = x[:2], x[2:]
        mujoco.mj_step(model, data, steps)
        return data.qpos @ data.qpos + 0.1 * data.qvel @ data.qvel

    def run():
        base, h = loss(x0, mass0[1:]), 1e-6
        by_state = [(loss(x0 + h * e, mass0[1:]) - base) / h for e in np.eye(4)]
        return by_state + [(loss(x0, mass0[1:] + h * e) - base) / h for e in np.eye(2)]

    return run


def _mujoco_batch(mujoco, path, q, qd, steps):
    from mujoco import rollout

    model = _mujoco_model(mujoco, path)
    datas = [mujoco.MjData(model)]
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    start = np.zeros((len(q), size))
    start[:, 1 : 1 + model.nq], start[:, 1 + model.nq : 1 + model.nq + model.nv] = q, qd
    return lambda: rollout.rollout(model, datas, start, nstep=steps)


def _mjx_steps(mujoco, mjx, path, q, qd, steps):
    import jax

    model = mjx.put_model(_mujoco_model(mujoco, path))

    @jax.jit
    def run(q, qd):
        data = mjx.make_data(model).replace(qpos=q, qvel=qd)
        return jax.lax.scan(lambda d, _: (mjx.step(model, d), None), data, None, length=steps)[0].qpos

    return lambda: run(q, qd).block_until_ready()


def _mjx_batch(mujoco, mjx, path, q, qd, steps):
    import jax

    model = mjx.put_model(_mujoco_model(mujoco, path))

    @jax.jit
    @jax.vmap
    def run(q, qd):
        data = mjx.make_data(model).replace(qpos=q, qvel=qd)
        return jax.lax.scan(lambda d, _: (mjx.step(model, d), None), data, None, length=steps)[0].qpos

    return lambda: run(q, qd).block_until_ready()


def _pinocchio(pin, folder: Path, q, qd, tau):
    model = pin.buildModelFromUrdf(str(folder / "quad.urdf"), pin.JointModelFreeFlyer())
    data = model.createData()
    joints = np.concatenate([q[:3], np.zeros(3), q[7:]])  # at home the base is not turned
    at = pin.integrate(model, pin.neutral(model), joints)
    return (lambda: pin.aba(model, data, at, qd, tau)), (lambda: pin.computeABADerivatives(model, data, at, qd, tau))


def _casadi_step(casadi, x, mass, dt):
    """Semi-implicit Euler of two rods of 0.5 m about y, centre of mass at mid-rod, from Lagrange's equations."""
    length, inertia = 0.5, 0.0208333333
    a, b = x[0], x[1]
    va, vb = x[2], x[3]
    c, s = casadi.cos(b), casadi.sin(b)
    r = length / 2
    m1, m2 = mass[0], mass[1]
    h22 = inertia + m2 * r**2
    h12 = h22 + m2 * length * r * c
    h11 = inertia + m1 * r**2 + m2 * length**2 + 2 * m2 * length * r * c + h22
    coriolis = m2 * length * r * s
    g = 9.81
    swing = casadi.sin(a + b)
    f1 = coriolis * (2 * va * vb + vb**2) - g * ((m1 * r + m2 * length) * casadi.sin(a) + m2 * r * swing)
    f2 = -coriolis * va**2 - g * m2 * r * swing
    det = h11 * h22 - h12**2
    wa = va + dt * (h22 * f1 - h12 * f2) / det
    wb = vb + dt * (h11 * f2 - h12 * f1) / det
    return casadi.vertcat(a + dt * wa, b + dt * wb, wa, wb)


def _casadi_end(casadi, mass, x, steps, dt):
    state, parameter = casadi.SX.sym("x", 4), casadi.SX.sym("m", 2)
    step = casadi.Function("step", [state, parameter], [_casadi_step(casadi, state, parameter, dt)])
    return step.mapaccum("roll", steps)(x, casadi.repmat(mass, 1, steps))[:, -1]


def _casadi_rollout(casadi, steps, dt):
    q, qd = casadi.MX.sym("q", 2), casadi.MX.sym("qd", 2)
    end = _casadi_end(casadi, casadi.DM.ones(2), casadi.vertcat(q, qd), steps, dt)
    return casadi.Function("work", [q, qd], [end[:2], end[2:]])


def _casadi_gradient(casadi, steps, dt):
    mass, q, qd = casadi.MX.sym("mass", 2), casadi.MX.sym("q", 2), casadi.MX.sym("qd", 2)
    end = _casadi_end(casadi, mass, casadi.vertcat(q, qd), steps, dt)
    loss = casadi.sumsqr(end[:2]) + 0.1 * casadi.sumsqr(end[2:])
    inputs = casadi.vertcat(mass, q, qd)
    return casadi.Function("work", [mass, q, qd], [loss, casadi.jacobian(loss, inputs)])


def _casadi_call(casadi, function, *inputs):
    """The function as generated C, compiled at -O3 -march=native, called without copies."""
    folder = Path(tempfile.mkdtemp())
    generator = casadi.CodeGenerator("work.c")
    generator.add(function)
    generator.generate(f"{folder}/")
    flags = ["-O3", "-march=native", "-shared", "-fPIC", "-ffast-math"]
    subprocess.run(["cc", *flags, "-o", str(folder / "work.so"), str(folder / "work.c")], check=True)
    library = ctypes.CDLL(str(folder / "work.so"))
    work = np.zeros(function.sz_w() + 1)
    integers = np.zeros(function.sz_iw() + 1, np.int64)
    outputs = [np.zeros(function.size_out(i)) for i in range(function.n_out())]
    arguments = (ctypes.c_void_p * max(function.sz_arg(), 1))(*(x.ctypes.data for x in inputs))
    results = (ctypes.c_void_p * max(function.sz_res(), 1))(*(x.ctypes.data for x in outputs))

    def run(_alive=(inputs, outputs)):
        library.work(arguments, results, integers.ctypes.data_as(ctypes.c_void_p),
                     work.ctypes.data_as(ctypes.c_void_p), 0)  # fmt: skip
        return outputs

    return run
