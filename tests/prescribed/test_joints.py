"""Joints that follow paths: hybrid dynamics against closed forms, an independent integrator and identities."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import knuckle as kn
from knuckle.contact import Impulse, couple
from knuckle.dynamics import aba, crba, rnea
from knuckle.prescribed import as_paths, locked
from tests.random_models import random_model, random_skeleton

LENGTH, GRAVITY = 0.7, 9.81
BOB = kn.shapes.sphere(0.05, friction=(0.3,))


def cart_pendulum(**slider) -> kn.Model:
    """A point mass on a rod below a slider along x."""
    cart = kn.Link("cart", joints=kn.prismatic("x", name="slider", **slider), mass=2.0, inertia=(0.1, 0.1, 0.1))
    rod = kn.Link("rod", "cart", kn.revolute((0, -1, 0), name="hinge"), mass=0.5, com=(0, 0, -LENGTH))
    return kn.build([cart, rod], gravity=(0, 0, -GRAVITY))


def sway(t):
    return jnp.stack([0.3 * jnp.sin(3 * t)])


def swung(end: float) -> float:
    """L a'' = -g sin a - x'' cos a, by SciPy."""

    def rate(t, y):
        pull = -2.7 * np.sin(3 * t)
        return y[1], (-GRAVITY * np.sin(y[0]) - pull * np.cos(y[0])) / LENGTH

    return solve_ivp(rate, (0, end), [0.4, 0.0], rtol=1e-11, atol=1e-12).y[0, -1]


def swing(integrator, steps: int, path=sway, end: float = 1.0, **options):
    model = cart_pendulum()
    state = kn.State(np.array([5.0, 0.4]), np.array([7.0, 0.0]))  # the path wins over the slider's own state
    return kn.rollout(
        model, state, dt=end / steps, steps=steps, integrator=integrator, prescribed={"slider": path}, **options
    )


def test_a_pendulum_on_a_given_cart_against_scipy():
    run = swing(kn.RK4(), 100, native=True)
    np.testing.assert_allclose(run.q[-1, 1], swung(1.0), atol=3e-8)  # h^4 of 1e-2
    np.testing.assert_allclose(run.q[:, 0], 0.3 * np.sin(3 * np.asarray(run.time)), atol=1e-14)
    np.testing.assert_allclose(run.qd[:, 0], 0.9 * np.cos(3 * np.asarray(run.time)), atol=1e-13)


@pytest.mark.parametrize("integrator", [kn.SemiImplicitEuler(), kn.Implicit(), kn.ExplicitEuler()])
def test_first_order_methods_converge(integrator):
    errors = [abs(float(swing(integrator, n, native=True).q[-1, 1]) - swung(1.0)) for n in (200, 400)]
    assert errors[1] < 0.6 * errors[0] < 0.02


def test_samples_of_a_path_do_as_its_function():
    times = np.linspace(0, 1, 401)
    path = kn.Path(times, 0.3 * np.sin(3 * times))
    run = swing(kn.RK4(), 100, path, native=True)
    np.testing.assert_allclose(run.q[-1, 1], swung(1.0), atol=1e-5)  # velocities at samples are off by 8e-6 m/s
    kicked = kn.Path([0.0, 0.5, 1.0], [0.0, 0.0, 1.0], interpolation="linear")
    jump = swing(kn.SemiImplicitEuler(), 4000, kicked, native=True)
    at = int(np.argmin(np.abs(np.asarray(jump.time) - 0.5)))
    change = jump.qd[at + 2, 1] - jump.qd[at - 1, 1]
    np.testing.assert_allclose(change, -2.0 * np.cos(jump.q[at, 1]) / LENGTH, rtol=5e-3)  # a kick of 2 m/s


def test_derivative_by_the_path_mass_and_state():
    model, times = cart_pendulum(), np.linspace(0, 0.2, 5)

    def end(values, mass, angle):
        moved = eqx.tree_at(lambda m: m.inertia.com, model, jnp.asarray(model.inertia.com) * mass)
        state = kn.State(jnp.stack([jnp.zeros_like(angle), angle]), jnp.zeros(2))
        run = kn.rollout(moved, state, dt=0.01, steps=20, prescribed={"slider": kn.Path(times, values)})
        return run.q[-1, 1] + 0.1 * run.qd[-1, 1]

    at = (jnp.asarray([0.0, 0.1, 0.05, 0.2, 0.3]), jnp.asarray(1.1), jnp.asarray(0.4))
    slopes = kn.native.jit(jax.grad(end, (0, 1, 2)))(*at)
    plain = kn.native.jit(end)
    for number, slope in enumerate(slopes):
        for k in np.ndindex(at[number].shape):
            step = jnp.zeros_like(at[number]).at[k].set(1e-6)
            ends = [plain(*at[:number], at[number] + s * step, *at[number + 1 :]) for s in (1, -1)]
            np.testing.assert_allclose(slope[k], (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_hybrid_dynamics_solve_the_equations_of_the_free_joints(seed):
    """M qdd + bias = tau in the rows of free joints, and the given accelerations in the others (RBDA 9.2)."""
    rng = np.random.default_rng(seed)
    model = random_model(rng, random_skeleton(rng, 5, floating=seed == 0))
    tau, given, qd, step = rng.normal(size=(4, model.nv))
    q = kn.retract(model, jnp.asarray(model.reference), step)
    names = [name for k, name in enumerate(model.joint_names) if k % 2 == 0]
    paths = as_paths(model, {name: neutral_path(model, name) for name in names})
    held = locked(model, paths)
    marks = held.topology.is_prescribed
    given = np.where(marks, given, 0.0)
    forward = kn.native.jit(lambda given: aba(held, q, qd, tau, None, given))
    qdd = forward(given)
    np.testing.assert_allclose(np.asarray(qdd)[marks], given[marks])
    free = ~marks
    scale = np.abs(np.asarray(crba(model, q))).max() * np.abs(qdd).max()
    np.testing.assert_allclose(np.asarray(rnea(model, q, qd, qdd))[free], tau[free], atol=1e-12 * scale)
    direction = np.where(marks, rng.normal(size=model.nv), 0.0)
    slope = kn.native.jit(lambda g, d: jax.jvp(forward, (g,), (d,))[1])(given, direction)
    change = forward(given + direction) - qdd  # linear in accelerations
    np.testing.assert_allclose(slope, change, atol=1e-9 * (1 + np.abs(change).max()))


def neutral_path(model: kn.Model, name: str) -> np.ndarray:
    kind = model.topology.kind[model.topology.joint(name)]
    return {"ball": np.eye(4)[0], "free": np.eye(7)[3], "planar": np.zeros(3)}.get(kind, np.zeros(1))


def test_a_joint_held_at_a_number_is_a_weld():
    arm = [
        kn.Link("upper", joints=kn.revolute("y", name="shoulder"), mass=1.0, com=(0, 0, -0.2), inertia=(0.02,) * 3),
        kn.Link("lower", "upper", kn.revolute("y", name="elbow"), (0, 0, -0.4), mass=0.5, com=(0, 0, -0.1)),
    ]
    turn = (np.cos(0.3), 0.0, np.sin(0.3), 0.0)
    stiff = [arm[0], kn.Link("lower", "upper", (), (0, 0, -0.4), turn, mass=0.5, com=(0, 0, -0.1))]
    options = {"dt": 2e-3, "steps": 100, "native": True}
    bent = kn.rollout(kn.build(arm), kn.State(np.array([0.5, 0.0]), np.zeros(2)), prescribed={"elbow": 0.6}, **options)
    welded = kn.rollout(kn.build(stiff), kn.State(np.array([0.5]), np.zeros(1)), **options)
    np.testing.assert_allclose(bent.q[:, 0], welded.q[:, 0], atol=1e-12)
    np.testing.assert_array_equal(bent.q[:, 1], 0.6)


def test_limits_and_friction_of_a_prescribed_joint_do_not_hold_it():
    model = cart_pendulum(lower=-0.1, upper=0.1, friction=5.0)
    run = kn.rollout(
        model,
        model.state(),
        dt=2e-3,
        steps=250,
        contact=Impulse(),
        prescribed={"slider": sway},
        native=True,
        check=True,
    )
    np.testing.assert_allclose(run.q[-1, 0], 0.3 * np.sin(1.5), atol=1e-12)


def test_rk4_refuses_a_path_whose_velocity_jumps():
    with pytest.raises(ValueError, match="'slider': RK4 needs a path of continuous velocity"):
        swing(kn.RK4(), 10, kn.Path([0.0, 1.0], [0.0, 1.0], interpolation="linear"))


def test_a_prescribed_pusher_among_many_boxes_moves_them_as_with_a_dense_matrix(monkeypatch):
    """31 degrees of freedom: contacts over the graph of links that touch, against the matrix over all joints."""
    box = {"mass": 1.0, "shapes": kn.shapes.box(0.1, 0.1, 0.05)}
    links = [kn.Link(f"box{k}", joints=kn.free(), **box) for k in range(5)]
    links += [kn.Link("pusher", joints=kn.prismatic("x"), position=(-0.2, 0, 0.06), shapes=kn.shapes.sphere(0.05))]
    model = kn.build(links, world_shapes=[kn.shapes.plane()])
    q = np.concatenate([*([0.02 * k, 0.01 * k, 0.05 + 0.1 * k, 1.0, 0, 0, 0] for k in range(5)), [0.0]])
    path = kn.Path([0.0, 0.1], [[0.0], [0.1]])

    def run() -> kn.Trajectory:
        moved = {"pusher_joint": path}
        rolled = kn.native.jit(lambda q: kn.rollout(model, model.state(q), dt=2e-3, steps=40, prescribed=moved))
        return rolled(q)

    over_graph = run()
    monkeypatch.setattr(couple, "FEW_JOINTS", model.nv)
    dense = run()
    assert over_graph.contact is not None and bool(over_graph.contact.converged.all())
    np.testing.assert_allclose(over_graph.q[-1, -1], 0.08, rtol=1e-12)
    assert over_graph.q[-1, 0] > 0.01  # the lowest box is pushed along
    np.testing.assert_allclose(over_graph.q, dense.q, rtol=0, atol=1e-7)  # residuals of 1e-8 m/s, over 40 steps
