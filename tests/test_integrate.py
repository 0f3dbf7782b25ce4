"""Integrators: observed order, drift of energy and momentum, stability where explicit ones blow up."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.dynamics import energy, momentum
from knuckle.integrate import nearest_to_file
from knuckle.model.export_mjcf import write
from tests.random_models import Body, quick_jit, random_model, random_state

INTEGRATORS = {
    "semi-implicit": (kn.SemiImplicitEuler(), 1),
    "explicit": (kn.ExplicitEuler(), 1),
    "implicit": (kn.Implicit(), 1),
    "rk4": (kn.RK4(), 4),
}
TUMBLER = (Body(-1, ("free",)), Body(0, ("ball",)), Body(1, ("revolute",)), Body(0, ("prismatic",)))


@pytest.fixture(scope="module")
def tumbler():
    """A floating tree with ball, hinge and slider, springs and rotors on its joints, no friction and no gravity."""
    model = random_model(np.random.default_rng(0), TUMBLER, conservative=True)
    is_free = np.arange(model.nv) < 6
    where = lambda m: (m.gravity, m.armature)  # noqa: E731
    model = eqx.tree_at(where, model, (np.zeros(3), np.where(is_free, 0.0, model.armature)))
    return model, random_state(np.random.default_rng(1), model)


@pytest.fixture(scope="module")
def runs(tumbler):
    """For each integrator a compiled function: the state after a number of steps of dt, both of them arguments."""
    model, _ = tumbler

    def compiled(integrator):
        def advance(_, carry):
            state, dt = carry
            return kn.step(model, state, dt=dt, integrator=integrator, contact=None), dt

        def run(state, dt, steps):
            return jax.lax.fori_loop(0, steps, advance, (state, dt))[0]

        return quick_jit(run)

    return {name: compiled(integrator) for name, (integrator, _) in INTEGRATORS.items()}


def as_arrays(state):
    return kn.State(jnp.asarray(state.q), jnp.asarray(state.qd))


def distance(model, a, b):
    """Between states, in the tangent space."""
    return np.linalg.norm(np.concatenate([kn.difference(model, a.q, b.q), np.asarray(a.qd) - np.asarray(b.qd)]))


DURATION = 0.5


@pytest.mark.parametrize("name", INTEGRATORS)
def test_observed_order_with_ball_and_free_joints(name, tumbler, runs):
    model, start = tumbler
    order = INTEGRATORS[name][1]
    steps = 32 if order == 4 else 1000
    exact = runs["rk4"](as_arrays(start), DURATION / 1024, 1024)
    errors = [
        distance(model, exact, runs[name](as_arrays(start), DURATION / n, n)) for n in (steps, 2 * steps, 4 * steps)
    ]
    observed = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    # Higher terms of the error and the reference's own (4^-5 of the finest) leave about a tenth.
    assert np.all(np.abs(observed - order) < 0.25), f"errors {errors}, orders {observed}"


def test_quaternions_stay_of_unit_length_over_ten_thousand_steps(tumbler, runs):
    model, start = tumbler
    rows = np.concatenate([model.topology.q_index(kind)[:, -4:] for kind in ("ball", "free")])
    for name in ("semi-implicit", "rk4"):
        q = np.asarray(runs[name](as_arrays(start), 1e-3, 10_000).q)
        assert np.all(np.isfinite(q))
        np.testing.assert_allclose(np.linalg.norm(q[rows], axis=1), 1, atol=4e-16)


def drift(model, start, end):
    """Change of energy, relative to its size at first, and of momentum, relative to its size."""
    invariants = quick_jit(lambda s: (energy(model, s.q, s.qd), momentum(model, s.q, s.qd)))
    (e0, h0), (e1, h1) = invariants(as_arrays(start)), invariants(end)
    return abs(float(e1 - e0)) / abs(float(e0)), float(jnp.linalg.norm(h1 - h0) / jnp.linalg.norm(h0))


# Measured over 2 s, and bounded at about three times that; a sign or a frame wrong anywhere is far outside.
DRIFT = {"rk4": (1e-3, 1e-10, 3e-10), "semi-implicit": (1e-4, 2e-3, 1e-3), "implicit": (1e-4, 3e-4, 1e-3)}


@pytest.mark.parametrize("name", DRIFT)
def test_energy_and_momentum_of_a_tumbling_tree_drift_little(name, tumbler, runs):
    model, start = tumbler
    dt, most_energy, most_momentum = DRIFT[name]
    end = runs[name](as_arrays(start), dt, round(2.0 / dt))
    energy_drift, momentum_drift = drift(model, start, end)
    assert energy_drift < most_energy and momentum_drift < most_momentum


def slider(mass=1.0, actuators=(), **joint):
    link = kn.Link("block", joints=kn.prismatic("x", name="rail", **joint), mass=mass)
    return kn.build([link], gravity=(0, 0, 0), actuators=actuators)


def roll(model, integrator, dt, steps, q=0.0, qd=0.0, controls=None):
    start = model.state(np.full(model.nq, q), np.full(model.nv, qd))
    return kn.rollout(model, start, controls, dt=dt, steps=steps, integrator=integrator, contact=None)


def test_semi_implicit_euler_keeps_the_shifted_energy_of_an_oscillator():
    """v^2/2 + k x^2/2 - dt k x v/2 is constant to rounding: what makes it symplectic for a constant mass matrix."""
    k, dt = 100.0, 0.01
    path = roll(slider(stiffness=k), kn.SemiImplicitEuler(), dt, 10_000, q=1.0)
    x, v = np.asarray(path.q)[:, 0], np.asarray(path.qd)[:, 0]
    shifted = 0.5 * v**2 + 0.5 * k * x**2 - 0.5 * dt * k * x * v
    np.testing.assert_allclose(shifted, 0.5 * k, rtol=1e-11)


def symplectic_defect(model, q, qd, dt) -> float:
    """max |J^T Omega J - Omega| of a step as a map of positions and momenta."""
    n = model.nv

    def after(x):
        q, qd = x[:n], jnp.linalg.solve(kn.dynamics.crba(model, x[:n]), x[n:])
        end = kn.step(model, kn.State(q, qd), dt=dt, contact=None)
        return jnp.concatenate([end.q, kn.dynamics.crba(model, end.q) @ end.qd])

    @kn.native.jit
    def jacobian(q, qd):
        return jax.jacfwd(after)(jnp.concatenate([q, kn.dynamics.crba(model, q) @ qd]))

    J, eye, zero = np.asarray(jacobian(q, qd)), np.eye(n), np.zeros((n, n))
    omega = np.block([[zero, eye], [-eye, zero]])
    return np.abs(J.T @ omega @ J - omega).max()


def test_semi_implicit_euler_is_symplectic_only_with_a_constant_mass_matrix():
    """To rounding on sliders, not at all on a double pendulum at 10 ms: what docs and docstring say."""
    q, qd = jnp.array([1.0, 0.5]), jnp.array([1.0, -2.0])
    rail = kn.prismatic("x", stiffness=100.0)
    sliders = kn.build([kn.Link("a", joints=rail, mass=1.0), kn.Link("b", "a", rail, mass=2.0)])
    rod = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (0.021, 0.021, 0.001)}
    hinges = kn.build(
        [kn.Link("a", joints=kn.revolute("y"), **rod), kn.Link("b", "a", kn.revolute("y"), (0, 0, -0.5), **rod)]
    )
    assert symplectic_defect(sliders, q, qd, 0.01) < 1e-13
    assert symplectic_defect(hinges, q, qd, 0.01) > 1e-3


def test_a_tumbling_box_gains_energy_at_first_order():
    """The figures of docs/usage.md: 11 % in 5 s with steps of 10 ms, 1 % with steps of 1 ms; RK4 keeps it to 1e-6."""
    box = kn.build([kn.Link("box", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.1, 0.2, 0.3))], gravity=(0, 0, 0))
    start = kn.State(np.array([0, 0, 0, 1.0, 0, 0, 0]), np.array([0, 0, 0, 1.0, 5, 0.5]))
    moments = np.asarray(box.inertia.moment)[0, :3]

    def gain(dt, **options) -> float:
        w = np.asarray(kn.rollout(box, start, dt=dt, steps=round(5 / dt), native=True, **options).qd)[:, 3:]
        energies = 0.5 * w**2 @ moments
        return energies[-1] / (0.5 * np.asarray(start.qd)[3:] ** 2 @ moments) - 1

    assert gain(0.01) == pytest.approx(0.11, abs=0.005)
    assert gain(0.001) == pytest.approx(0.01, abs=0.0005)
    assert abs(gain(0.01, integrator=kn.RK4())) < 1e-6


def test_explicit_euler_gains_energy_as_its_formula_says():
    k, dt, steps = 100.0, 1e-3, 2000
    path = roll(slider(stiffness=k), kn.ExplicitEuler(), dt, steps, q=1.0)
    gain = (path.qd[-1, 0] ** 2 + k * path.q[-1, 0] ** 2) / k
    np.testing.assert_allclose(gain, (1 + dt**2 * k) ** steps, rtol=1e-9)


STIFF = {
    "spring": {"stiffness": 1e6},
    "damper": {"damping": 1e4},
    "spring and damper": {"stiffness": 1e8, "damping": 1e3},
    "position servo": {"actuators": [kn.position_servo("rail", kp=1e6, kv=1e3)]},
    "velocity servo": {"actuators": [kn.velocity_servo("rail", kv=1e4)]},
}


@pytest.mark.parametrize("name", STIFF)
def test_implicit_is_stable_where_semi_implicit_blows_up(name):
    model = slider(**STIFF[name])
    controls = np.zeros(model.nu)
    stable = roll(model, kn.Implicit(), 0.01, 300, q=0.1, qd=1.0, controls=controls)
    wild = roll(model, kn.SemiImplicitEuler(), 0.01, 300, q=0.1, qd=1.0, controls=controls)
    assert not np.abs(wild.qd[-1, 0]) < 1e6
    assert np.all(np.abs(stable.qd) <= 20.0) and np.abs(stable.qd[-1, 0]) < 1e-3


def test_implicit_is_stable_on_a_stiff_tree():
    skeleton = (Body(-1, ("free",)), Body(0, ("revolute", "revolute")), Body(1, ("ball",)))
    model = random_model(np.random.default_rng(5), skeleton, conservative=True)
    is_free = np.arange(model.nv) < 6
    stiff = np.where(is_free, 0.0, 1e7), np.where(is_free, 0.0, 1e4), np.zeros(3)
    model = eqx.tree_at(lambda m: (m.stiffness, m.damping, m.gravity), model, stiff)
    start = model.state(np.array(model.rest), 0.1 * np.ones(model.nv))
    path = quick_jit(lambda: kn.rollout(model, start, dt=0.01, steps=500, integrator=kn.Implicit(), contact=None))()
    assert np.all(np.abs(path.qd) < 1), "nothing drives it: it must stay as slow as it was"
    assert np.all(np.abs(path.qd[-1, 6:]) < 1e-3), "stiff and damped joints come to rest"


@pytest.mark.parametrize("speed", [0.3, -2.0, 1e-3])
def test_friction_slows_but_never_reverses_with_implicit(speed):
    model = slider(friction=50.0)
    velocities = np.asarray(roll(model, kn.Implicit(), 0.01, 200, qd=speed).qd)[:, 0]
    assert np.all(velocities * np.sign(speed) >= 0)
    assert np.all(np.diff(np.abs(np.concatenate([[speed], velocities]))) <= 0)
    assert abs(velocities[-1]) < 1e-3 * abs(speed)


def test_friction_does_reverse_without_implicit_so_that_the_test_above_means_something():
    velocities = np.asarray(roll(slider(friction=50.0), kn.SemiImplicitEuler(), 0.01, 200, qd=0.3).qd)[:, 0]
    assert np.any(velocities < 0)


def test_friction_never_feeds_energy_into_coupled_joints():
    skeleton = (Body(-1, ("revolute",)), Body(0, ("revolute", "prismatic")), Body(1, ("ball",)))
    model = random_model(np.random.default_rng(6), skeleton, conservative=True)
    quiet = (np.zeros(model.nv), np.full(model.nv, 20.0), np.zeros(3))
    model = eqx.tree_at(lambda m: (m.stiffness, m.friction, m.gravity), model, quiet)
    start = model.state(qd=0.05 * np.ones(model.nv))

    @quick_jit
    def energies():
        path = kn.rollout(model, start, dt=1e-3, steps=300, integrator=kn.Implicit(), contact=None)
        return jax.vmap(lambda q, qd: energy(model, q, qd))(path.q, path.qd)

    found = np.asarray(energies())
    assert np.all(np.diff(found) <= 1e-15) and found[-1] < 1e-3 * found[0]


def stepped(integrator: str | None, joint: str, actuator: str = "") -> kn.Model:
    option = f'<option timestep="0.004" integrator="{integrator}"/>'
    arm = f'<body pos="0 0 -0.5"><joint axis="1 0 0" {joint}/><geom size="0.1" pos="0 0 -0.4"/></body>'
    root = f'<body><joint name="j" axis="0 1 0" {joint}/><geom size="0.1" pos="0 0 -0.5"/>{arm}</body>'
    return kn.load(f"<mujoco>{option}<worldbody>{root}</worldbody><actuator>{actuator}</actuator></mujoco>")


@pytest.mark.parametrize(
    ("asked", "joint", "actuator", "contact", "expected", "differs"),
    [
        ("Euler", "", "", True, kn.SemiImplicitEuler(), ""),
        ("Euler", 'damping="1"', '<motor joint="j"/>', True, kn.Implicit(), ""),
        ("Euler", 'damping="1" stiffness="1"', "", True, kn.Implicit(), "joint springs and servos"),
        ("Euler", 'damping="1"', '<position joint="j"/>', False, kn.Implicit(), "joint springs and servos"),
        ("implicitfast", "", "", True, kn.Implicit(), ""),
        ("implicit", "", "", True, kn.Implicit(), "and nothing else"),
        ("RK4", "", "", False, kn.RK4(), ""),
        ("RK4", "", "", True, kn.SemiImplicitEuler(), "RK4 has no contact"),
        ("RK4", 'damping="1"', "", True, kn.Implicit(), "RK4 has no contact"),
    ],
)
def test_the_integrator_nearest_to_the_files_is_taken_and_what_differs_is_said(
    asked, joint, actuator, contact, expected, differs
):
    model = stepped(asked, joint, actuator)
    assert (model.timestep, model.integrator) == (0.004, asked)
    chosen, words = nearest_to_file(model, contact=contact)
    assert chosen == expected and differs in words and bool(differs) == bool(words)


@pytest.mark.parametrize("damping", [0.0, 5.0])
def test_without_springs_and_servos_it_is_mujocos_euler(damping):
    """Step for step, to rounding; damping of 5 N m s is so stiff that explicit damping differs at once."""
    model = stepped("Euler", f'damping="{damping}"')
    integrator, _ = nearest_to_file(model, contact=False)
    start = np.array([0.3, -0.4]), np.array([2.0, -3.0])
    run = kn.rollout(model, kn.State(*start), dt=0.004, steps=100, integrator=integrator, contact=None, native=True)
    theirs = mujoco.MjModel.from_xml_string(write(model))
    data = mujoco.MjData(theirs)
    data.qpos[:], data.qvel[:] = start
    mujoco.mj_step(theirs, data, 100)
    np.testing.assert_allclose(run.q[-1], data.qpos, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(run.qd[-1], data.qvel, rtol=1e-10, atol=1e-11)


def test_models_without_a_file_that_asks_take_the_default():
    built = kn.build([kn.Link("rod", joints=kn.revolute("y", damping=1.0), mass=1.0, com=(0, 0, -1))])
    assert (built.timestep, built.integrator) == (None, None)
    assert nearest_to_file(built, contact=True) == (kn.SemiImplicitEuler(), "")
    with pytest.raises(ValueError, match="timestep must be a positive number of seconds, got 0"):
        kn.build([kn.Link("rod", joints=kn.revolute("y"), mass=1.0)], timestep=0)
