"""Torsional and rolling friction (condim 1, 3, 4, 6) against closed forms, MuJoCo and differences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint, PerPair, Rule
from knuckle.contact import couple as choice
from knuckle.contact.resolve import ContactModel

G, RADIUS, DT = 9.81, 0.1, 1e-3
SLIDING, TORSIONAL, ROLLING = 0.5, 0.005, 0.002
MOMENT = 0.4 * RADIUS**2  # of a solid sphere of 1 kg
IMPULSE = Impulse()
AT_REST = np.array([0, 0, RADIUS, 1.0, 0, 0, 0])


def balls(*condims: int, ground: int = 3) -> kn.Model:
    """Solid spheres of 1 kg that touch the ground but not each other."""
    links = [
        kn.Link(
            f"ball{k}",
            joints=kn.free(),
            mass=1.0,
            shapes=kn.shapes.sphere(
                RADIUS, friction=(SLIDING, TORSIONAL, ROLLING), condim=condim, conaffinity=0, name=f"ball{k}"
            ),
        )
        for k, condim in enumerate(condims)
    ]
    return kn.build(links, world_shapes=[kn.shapes.plane(friction=(0.0, 0.0, 0.0), condim=ground, name="ground")])


def roll(model: kn.Model, q, qd, steps: int, contact: ContactModel = IMPULSE, dt: float = DT) -> Any:
    run = kn.rollout(model, kn.State(q, np.asarray(qd, float)), dt=dt, steps=steps, contact=contact, native=True)
    assert run.contact is not None and bool(run.contact.converged.all())
    return run


def test_a_spinning_ball_is_slowed_by_torsional_friction_and_stops():
    """I w' = -mu_t m g, and the torque of each contact is that."""
    run = roll(balls(4), AT_REST, [0, 0, 0, 0, 0, 10.0], 1000)
    slowing = TORSIONAL * G / MOMENT
    spin = np.asarray(run.qd[:, 5])
    np.testing.assert_allclose(spin[:800], 10 - slowing * DT * np.arange(1, 801), atol=1e-6)
    assert np.all(np.abs(spin[820:]) < 1e-4)  # held, but for the regularisation
    assert run.contact is not None and run.contact.torque is not None
    np.testing.assert_allclose(run.contact.torque[100, 0], [0, 0, -TORSIONAL * G * DT], atol=1e-9)


@pytest.mark.parametrize("ground", [3, 6])
def test_a_rolling_ball_stops_after_the_distance_that_rolling_friction_gives(ground):
    """(m + I/R^2) v' = -mu_r m g / R. On the elliptic cone rolling creeps by (mu_r/mu)^2 f/r v, 1e-3 of v."""
    run = roll(balls(6 if ground == 3 else 1, ground=ground), AT_REST, [1.0, 0, 0, 0, 1.0 / RADIUS, 0], 7600)
    slowing = ROLLING * G / RADIUS / 1.4
    assert float(run.q[-1, 0]) == pytest.approx(1 / (2 * slowing), rel=2e-3)
    assert float(run.qd[3000, 0]) == pytest.approx(1 - 3.0 * slowing, rel=2e-3)
    assert abs(float(run.qd[-1, 0])) < 1e-6


def test_a_ball_without_friction_slides_on_and_one_with_sliding_friction_spins_on():
    """condim 1 beside condim 3, in one scene with a ball of condim 6: each as its own condim says."""
    q = np.concatenate([AT_REST, AT_REST + 3 * np.eye(7)[1], AT_REST + 6 * np.eye(7)[1]])
    qd = [1.0, 0, 0, 0, 0, 5.0, 0, 0, 0, 0, 0, 5.0, 0, 0, 0, 0, 0, 5.0]
    run = roll(balls(1, 3, 6, ground=1), q, qd, 200)
    np.testing.assert_allclose(run.qd[-1, :6], qd[:6], atol=1e-8)  # to which a step is solved
    np.testing.assert_allclose(run.qd[-1, 6:12], qd[6:12], atol=1e-6)
    assert float(run.qd[-1, 17]) == pytest.approx(5 - 0.2 * TORSIONAL * G / MOMENT, abs=1e-6)


MJCF = """<mujoco><option timestep="0.0005" cone="elliptic" impratio="100"/>
<default><geom solref="0.002 1" solimp="0.999 0.9999 0.0001"/></default><worldbody>
<geom name="ground" type="plane" size="0 0 1" friction="0.01 0.0001 0.0001"/>
<body pos="0 0 0.1"><freejoint/><geom name="ball" size="0.1" mass="1" condim="{condim}" friction="0.5 0.005 0.002"/>
</body></worldbody></mujoco>"""


@pytest.mark.parametrize("condim", [1, 3, 4, 6])
def test_a_thrown_ball_ends_up_as_in_mujoco(condim, tmp_path):
    """Slides, spins and rolls for 0.5 s; MuJoCo's contact gives way, by about a part in a thousand."""
    path = tmp_path / "ball.xml"
    path.write_text(MJCF.format(condim=condim))
    model, theirs = kn.load(path), mujoco.MjModel.from_xml_path(str(path))
    assert model.geometry.condim == (3, condim)
    kn.save(model, tmp_path / "saved.xml")
    assert kn.load(tmp_path / "saved.xml").geometry.condim == (3, condim)
    data = mujoco.MjData(theirs)
    data.qvel[:] = qd = [1.0, 0.3, 0, 0, 0, 8.0]
    for _ in range(1000):
        mujoco.mj_step(theirs, data)
    run = roll(model, AT_REST, qd, 500)
    np.testing.assert_allclose(run.qd[-1, [0, 1]], data.qvel[:2], atol=0.01)
    R = np.zeros(9)
    mujoco.mju_quat2Mat(R, np.array(run.q[-1, 3:7]))
    spin = R.reshape(3, 3) @ np.asarray(run.qd[-1, 3:])
    mujoco.mju_quat2Mat(R, data.qpos[3:7])
    np.testing.assert_allclose(spin, R.reshape(3, 3) @ data.qvel[3:], atol=0.15)


def test_spaces_and_models_in_a_plane_agree(monkeypatch):
    """A ball that rolls and spins, by a matrix of rows and along the tree; a disc in a plane as the ball in space."""
    q, qd = AT_REST, [1.0, 0.2, 0, 0.5, 6.0, 3.0]
    rows = roll(balls(6), q, qd, 150)
    monkeypatch.setattr(choice, "FEW_ROWS", 0)
    np.testing.assert_allclose(roll(balls(6), q, qd, 150).q, rows.q, atol=1e-9)
    upright = kn.shapes.plane(rotation=(0.5**0.5, -(0.5**0.5), 0, 0), friction=(0.0, 0.0, 0.0), name="ground")
    shape = kn.shapes.sphere(RADIUS, friction=(SLIDING, TORSIONAL, ROLLING), condim=6)
    disc = kn.Link("disc", joints=kn.planar("z"), mass=1.0, inertia=(MOMENT,) * 3, shapes=shape)
    flat = kn.build([disc], gravity=(0, -G, 0), world_shapes=[upright])
    start = kn.State(np.array([0, RADIUS, 0]), np.array([1.0, 0, -6.0]))
    planar = roll(flat, start.q, start.qd, 150)
    traced = kn.native.jit(lambda m: kn.rollout(m, start, dt=DT, steps=150, contact=Impulse()).q)(
        jax.tree.map(jnp.asarray, flat)
    )
    np.testing.assert_allclose(traced, planar.q, atol=1e-9)
    space = roll(balls(6), q, [1.0, 0, 0, 0, 6.0, 0], 150)
    np.testing.assert_allclose(planar.q[-1, :2], space.q[-1, [0, 2]], atol=1e-7)


@pytest.mark.parametrize("contact", [Impulse(tolerance=1e-12), Compliant(stiffness=1e5, tolerance=1e-12)])
def test_derivatives_match_differences(contact):
    """By sliding, torsional and rolling friction of the ball and by its speed, while it slides, spins and rolls."""
    model = balls(6)

    def after(friction, qd):
        rough = eqx.tree_at(lambda m: m.geometry.friction, model, jnp.zeros((2, 3)).at[1].set(friction))
        run = kn.rollout(
            rough, kn.State(jnp.asarray(AT_REST) - 2e-4 * np.eye(7)[2], qd), dt=DT, steps=6, contact=contact
        )
        return jnp.sum(run.qd[-1] * jnp.arange(1.0, 7.0))

    assert model.geometry.names == ("ground", "ball0")
    at = jnp.array([SLIDING, 0.05, 0.03, 1.0, 0.2, 0, 0.5, 6.0, 3.0])
    value = lambda z: after(z[:3], z[3:])  # noqa: E731
    slopes = kn.native.jit(lambda z: (jax.grad(value)(z), kn.native.jacfwd(value)(z)))
    reverse, forward = slopes(at)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)
    assert np.all(np.abs(np.asarray(reverse)[:3]) > 1e-3)
    only = kn.native.jit(value)
    step = 1e-6
    differences = [(only(at + e) - only(at - e)) / (2 * step) for e in step * np.eye(9)]
    np.testing.assert_allclose(reverse, differences, rtol=1e-5, atol=1e-5)  # each step is solved to 1e-12


def test_rules_have_torsional_friction_too():
    """Two balls spin, one under rigid contact and one on springs."""
    q = np.concatenate([AT_REST, AT_REST + 3 * np.eye(7)[1] - 1e-4 * np.eye(7)[2]])
    contact = PerPair(hard=Rule("ball0", Impulse()), soft=Rule("*", Compliant(stiffness=9.81e6, dissipation=0.0)))
    run = roll(balls(4, 4), q, [0, 0, 0, 0, 0, 10.0] * 2, 100, contact)
    expected = 10 - 0.1 * TORSIONAL * G / MOMENT
    assert float(run.qd[-1, 5]) == pytest.approx(expected, abs=1e-6)
    assert float(run.qd[-1, 11]) == pytest.approx(expected, rel=1e-3)  # 9.81e6 (1e-4)^1.5 is m g
    assert run.contact is not None and run.contact.of_rule("soft").torque.shape == (100, 1, 3)


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="InteriorPoint has no torsional and rolling friction"):
        kn.step(balls(4), kn.State(AT_REST, np.zeros(6)), dt=DT, contact=InteriorPoint())
    with pytest.raises(ValueError, match="shape 'a': condim must be 1, 3, 4 or 6, got 2"):
        kn.shapes.sphere(0.1, condim=2, name="a")
    shape = jax.eval_shape(lambda q: Impulse().begin(balls(3), kn.State(q, q[:6])).impulse, jnp.asarray(AT_REST))
    assert shape.shape == (3 + 6,)  # no rows for friction that is not there, and one of dry friction for each joint
