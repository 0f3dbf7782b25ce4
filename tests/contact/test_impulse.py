"""Rigid contact against closed forms: values, and gradients through bounces, sliding and rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint
from tests.contact.scenes import ball, boxes, pose
from tests.derivatives import by_rows

G = 9.81


def roll(model, q, qd, contact, *, dt, steps, native=False):
    return kn.rollout(model, kn.State(q, qd), dt=dt, steps=steps, contact=contact, native=native)


def test_a_bounce_has_the_value_and_the_gradient_of_the_motion():
    """x(T) = e (v T - h0) without gravity; one contact is not redundant and needs no regularisation R."""
    model = ball(gravity=0.0)

    def height(h0, v, e):
        q = jnp.asarray(pose([0, 0, 0.1])).at[2].add(h0)
        qd = jnp.zeros(6).at[2].set(-v)
        return roll(model, q, qd, Impulse(restitution=e, mixing=0.0), dt=0.01, steps=100).q[-1, 2] - 0.1

    h0, v, e = 0.5, 2.0, 0.7
    value, gradient = kn.native.jit(jax.value_and_grad(height, (0, 1, 2)))(h0, v, e)
    assert float(value) == pytest.approx(e * (v - h0), abs=1e-6)
    np.testing.assert_allclose(gradient, (-e, e, v - h0), atol=1e-6)
    np.testing.assert_allclose(kn.native.jit(jax.jacfwd(height, (0, 1, 2)))(h0, v, e), gradient, atol=1e-9)


def test_a_head_on_elastic_collision_hands_over_position_and_velocity():
    """Equal balls swap velocities: final x_a = x_b0 + v_b0 T - 2R and so on; published engines are off by a quarter."""
    R, T = 0.1, 1.0
    links = [kn.Link(n, joints=kn.prismatic("x"), mass=1.0, shapes=kn.shapes.sphere(R)) for n in "ab"]
    model = kn.build(links, gravity=(0, 0, 0))

    def final(start):
        run = roll(model, start[:2], start[2:], Impulse(restitution=1.0, friction=0.0, mixing=0.0), dt=0.02, steps=50)
        return jnp.concatenate([run.q[-1], run.qd[-1]])

    start = jnp.array([-0.5, 0.5, 1.3, -0.9])
    swap = np.array([[0, 1, 0, T], [1, 0, T, 0], [0, 0, 0, 1], [0, 0, 1, 0.0]])
    end = kn.native.jit(final)(start)
    np.testing.assert_allclose(end, swap @ start + np.array([-2 * R, 2 * R, 0, 0]), atol=1e-6)
    np.testing.assert_allclose(kn.native.jit(jax.jacrev(final))(start), swap, atol=1e-5)


def test_bounces_with_gravity_converge_to_the_motion_with_the_step():
    """The gradient's error falls with dt: first order."""
    model = ball(gravity=G)

    def height(h0, steps):
        q = jnp.asarray(pose([0, 0, 0.1])).at[2].add(h0)
        return roll(model, q, jnp.zeros(6), Impulse(restitution=0.8), dt=0.7 / steps, steps=steps).q[-1, 2] - 0.1

    h0, e, T = 1.0, 0.8, 0.7
    fall = np.sqrt(2 * h0 / G)
    exact = e * G * fall * (T - fall) - G / 2 * (T - fall) ** 2
    slope = (e * G * (T - 2 * fall) + G * (T - fall)) * np.sqrt(1 / (2 * h0 * G))
    errors = []
    for steps in (70, 700):
        value, gradient = kn.native.jit(jax.value_and_grad(height), static_argnums=1)(h0, steps)
        errors.append((abs(float(value) - exact), abs(float(gradient) - slope)))
    assert errors[1][0] < 0.15 * errors[0][0]
    assert errors[1][1] < 0.15 * errors[0][1] < 0.02


@pytest.mark.parametrize(("ratio", "moves"), [(0.98, False), (1.02, True)])
def test_a_block_starts_to_slide_where_the_slope_reaches_its_friction(ratio, moves):
    mu, phi = 0.5, np.arctan(0.5 * ratio)
    model = boxes(1, friction=mu, gravity=(G * np.sin(phi), 0.0, -G * np.cos(phi)))
    run = roll(model, jnp.asarray(pose([0, 0, 0.5])), jnp.zeros(6), Impulse(), dt=1e-3, steps=500, native=True)
    acceleration = G * (np.sin(phi) - mu * np.cos(phi)) if moves else 0.0
    assert float(run.qd[-1, 0]) == pytest.approx(acceleration * 0.5, abs=1e-5)
    assert run.contact is not None and bool(run.contact.converged.all())


def test_a_sliding_block_stops_where_friction_says_with_the_gradient():
    """v^2 / (2 mu g), and a step of semi-implicit Euler adds v dt / 2: d/dv and d/dmu of the sum."""
    model, dt = boxes(1), 1e-3

    def distance(v, mu):
        q, qd = jnp.asarray(pose([0, 0, 0.5])), jnp.zeros(6).at[0].set(v)
        return roll(model, q, qd, Impulse(friction=mu), dt=dt, steps=400).q[-1, 0]

    v, mu = 1.5, 0.5
    value, gradient = kn.native.jit(jax.value_and_grad(distance, (0, 1)))(v, mu)
    assert float(value) == pytest.approx(v**2 / (2 * mu * G), abs=v * dt)
    assert float(gradient[0]) == pytest.approx(v / (mu * G), abs=2 * dt)
    assert float(gradient[1]) == pytest.approx(-(v**2) / (2 * mu**2 * G), rel=2e-2)


def test_a_sliding_ball_ends_up_rolling_at_five_sevenths():
    model = ball(friction=0.3)
    run = roll(model, jnp.asarray(pose([0, 0, 0.1])), jnp.zeros(6).at[0].set(1.0), Impulse(), dt=1e-3, steps=400)
    assert float(run.qd[-1, 0]) == pytest.approx(5 / 7, abs=1e-3)  # R = 1e-6 lets it creep a little
    assert float(run.qd[-1, 4]) == pytest.approx(5 / 7 / 0.1, rel=1e-4)


@pytest.mark.parametrize(("mu", "tangent", "spin"), [(0.1, 2.82, 0.45), (2.0, 15 / 7, 15 / 7)])
def test_an_oblique_bounce_slips_or_grips(mu, tangent, spin):
    """Sphere at (3, -1) with e = 0.8: slips if v_t > 3.5 mu (1 + e) v_n."""
    model = ball(gravity=0.0)
    qd = jnp.zeros(6).at[0].set(3.0).at[2].set(-1.0)
    contact = Impulse(restitution=0.8, friction=mu, mixing=0.0)
    after = roll(model, jnp.asarray(pose([0, 0, 0.1])), qd, contact, dt=1e-3, steps=1, native=True).last
    np.testing.assert_allclose([after.qd[0], 0.1 * after.qd[4], after.qd[2]], [tangent, spin, 0.8], atol=1e-6)


def test_a_billiard_break_shares_the_blow():
    """e = 1: the cue leaves with -0.2, the two others with (0.6, +-0.34641)."""
    R = 0.1
    links = [
        kn.Link(n, joints=kn.planar("z"), mass=1.0, shapes=kn.shapes.sphere(R), position=p)
        for n, p in (("cue", (-0.5, 0, 0)), ("up", (0, R, 0)), ("down", (0, -R, 0)))
    ]
    model = kn.build(links, gravity=(0, 0, 0))
    near = 0.5 - np.sqrt(3) * R - 1e-9
    q, qd = jnp.zeros(9).at[0].set(near), jnp.zeros(9).at[0].set(1.0)
    contact = Impulse(restitution=1.0, friction=0.0, mixing=0.0)
    after = roll(model, q, qd, contact, dt=1e-3, steps=1, native=True).last
    expected = [-0.2, 0, 0, 0.6, 0.34641016, 0, 0.6, -0.34641016, 0]
    np.testing.assert_allclose(after.qd, expected, atol=1e-6)


def test_a_stack_of_boxes_rests():
    model = boxes(3)
    q = jnp.asarray(np.concatenate([pose([0, 0, 0.5 + i]) for i in range(3)]))
    run = kn.native.jit(lambda q: roll(model, q, jnp.zeros(18), Impulse(), dt=0.01, steps=300))(q)
    assert run.contact is not None and bool(run.contact.converged.all())
    np.testing.assert_allclose(run.q[-1], q, atol=1e-4)


def test_friction_has_no_axes():
    """A tumbling box on the ground, and the same scene turned about the vertical."""
    model, angle = boxes(1), 0.7
    turn = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
    R = kn.spatial.rotation_of_quaternion(jnp.asarray(turn))
    rng = np.random.default_rng(3)
    start = kn.spatial.normalize(jnp.asarray([1.0, 0.2, -0.1, 0.3]))
    velocity, spin = jnp.asarray([1.0, 0.3, -0.5]), jnp.asarray(rng.normal(size=3))
    q = jnp.concatenate([jnp.array([0, 0, 0.9]), start])
    q_turned = jnp.concatenate([jnp.array([0, 0, 0.9]), kn.spatial.quaternion_product(jnp.asarray(turn), start)])
    run = kn.native.jit(lambda q, qd: roll(model, q, qd, Impulse(restitution=0.3), dt=5e-3, steps=200))
    plain, turned = run(q, jnp.concatenate([velocity, spin])), run(q_turned, jnp.concatenate([R @ velocity, spin]))
    np.testing.assert_allclose(turned.q[:, :3], plain.q[:, :3] @ R.T, atol=1e-8)


def test_gradients_of_a_box_on_four_corners_match_differences():
    """More rows than freedoms: at rest, sliding, spinning; central differences with h = 1e-5.

    Rounding leaves the shares of redundant corners open by about 1e-16 / R, and sliding turns shares into velocities:
    a noise of 1e-11, which differences raise to 1e-6.
    """
    model = boxes(1)
    q = jnp.asarray(pose([0, 0, 0.5]))

    def final(x):
        qd, mu, force = x[:6], x[6], x[7:]
        wrench = jnp.zeros((1, 6)).at[0, 3:].set(force)
        contact = Impulse(friction=mu, tolerance=1e-12)
        run = kn.rollout(model, kn.State(q, qd), dt=1e-3, steps=5, contact=contact, wrench=wrench)
        return jnp.concatenate([run.q[-1], run.qd[-1]])

    gradient, many, h = by_rows(final, model.nq + model.nv), kn.native.vmap(final), 1e-5
    cases = {
        "rest": jnp.array([0, 0, 0, 0, 0, 0, 0.5, 1.0, 0.3, -2.0]),
        "slide": jnp.array([1.0, -0.4, 0, 0, 0, 0, 0.5, 0, 0, 0]),
        "spin": jnp.array([0.1, 0.2, 0, 0, 0, 4.0, 0.5, 0.3, 0, 1.0]),
    }
    smooth = [k for k in range(10) if k not in (2, 3, 4)]  # the others lift corners: a change of mode
    for name, x in cases.items():
        offsets = h * np.eye(10)[smooth]
        differences = (many(x[None] + offsets) - many(x[None] - offsets)).T / (2 * h)
        np.testing.assert_allclose(gradient(x)[:, smooth], differences, atol=5e-6, rtol=1e-5, err_msg=name)


BAD_NUMBERS = [
    (Impulse, {"friction": (-0.1, np.nan, np.inf), "restitution": (-0.1, 1.5, np.nan), "beta": (np.inf,)}),
    (
        Impulse,
        {"smoothing": (np.nan, 0.0), "tolerance": (np.nan, 0.0), "most_iterations": (-1,), "correction": (np.inf,)},
    ),
    (Impulse, {"most_contacts": (0, -3, 2.5), "correction_speed": (np.nan, -1.0), "correction": (np.inf,)}),
    (Compliant, {"stiffness": (np.inf, np.nan), "substeps": (0, 2.5), "tolerance": (np.nan,), "exponent": (0.0,)}),
    (InteriorPoint, {"directions": (4.0, 3, 0)}),
]


@pytest.mark.parametrize(("kind", "numbers"), BAD_NUMBERS)
def test_numbers_that_cannot_be_meant_are_refused(kind, numbers):
    """2.5 substeps were three of a length for 2.5; fewer than one contact let bodies fall."""
    for name, values in numbers.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must"):
                kind(**{name: value})
    Impulse(correction_speed=np.inf, restitution=1.0, friction=jnp.array([0.0, 1000.0]))


def test_steps_of_time_backwards_and_parts_of_steps_are_refused():
    """With contact a step of -1 ms was solved, converged, as if it meant something."""
    model = ball()
    for dt in (-1e-3, 0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="with contact dt must be positive"):
            kn.rollout(model, model.state(), dt=dt, steps=2, contact=Impulse(), native=True)
        with pytest.raises(ValueError, match="with contact dt must be positive"):
            kn.step(model, model.state(), dt=dt, contact=Impulse())
    for steps in (2.5, True, -1, "3"):
        with pytest.raises(ValueError, match="steps must be a whole number"):
            kn.rollout(model, model.state(), dt=1e-3, steps=steps)  # type: ignore[arg-type]
    whole = kn.State(np.array([0, 0, 1, 1, 0, 0, 0]), np.zeros(6))
    with pytest.raises(ValueError, match=r"state\.q must be of a floating-point type, got int64"):
        kn.step(model, whole, dt=1e-3)


def test_bad_numbers_and_integrators_are_refused():
    with pytest.raises(ValueError, match="friction must not be negative"):
        Impulse(friction=-0.1)
    model = ball()
    with pytest.raises(ValueError, match="SemiImplicitEuler or Implicit, not RK4"):
        kn.step(model, model.state(), dt=1e-3, contact=Impulse(), integrator=kn.RK4())
