"""Whether a value is traced changes no result: limits, dry friction and restitution as constants and as arguments."""

import runpy
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from tests.contact.scenes import GROUND, ROD, pose

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_traced.py"
TIGHT = 1e-9  # agreement of steps with contact: the solver's tolerance is 1e-8 m/s over a step of milliseconds


def three_runs(model, state, contact, *, dt, steps, control=None):
    """A roll-out with the model as a constant, as native code, and as an argument of jax.jit."""

    def run(model, contact, native=False):
        made: Any = kn.rollout(model, state, control, dt=dt, steps=steps, contact=contact, native=native)
        return (
            np.asarray(made.q),
            np.asarray(made.qd),
            np.asarray(made.contact.limit),
            np.asarray(made.contact.friction),
        )

    def traced(model, contact):
        made: Any = kn.rollout(model, state, control, dt=dt, steps=steps, contact=contact)
        return made.q, made.qd, made.contact.limit, made.contact.friction

    return run(model, contact), run(model, contact, native=True), jax.jit(traced)(model, contact)


def agree(runs, tolerance=TIGHT):
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=tolerance)


def pendulum() -> kn.Model:
    hinge = kn.revolute("y")
    return kn.build([kn.Link("a", joints=hinge, mass=1.0, com=(0, 0, -0.5), inertia=ROD)])


def test_a_limit_that_is_set_later_holds_however_the_model_is_given():
    model = eqx.tree_at(lambda m: m.lower, pendulum(), np.array([np.pi / 4]))
    runs = three_runs(model, kn.State(np.array([1.2]), np.zeros(1)), Impulse(), dt=2e-3, steps=400)
    assert runs[0][0].min() > np.pi / 4 - 1e-6
    agree(runs)


def test_a_limit_that_is_lifted_later_is_gone_however_the_model_is_given():
    hinge = kn.revolute("y", lower=np.pi / 4)
    built = kn.build([kn.Link("a", joints=hinge, mass=1.0, com=(0, 0, -0.5), inertia=ROD)])
    model = eqx.tree_at(lambda m: m.lower, built, np.array([-np.inf]))
    runs = three_runs(model, kn.State(np.array([1.2]), np.zeros(1)), Impulse(), dt=2e-3, steps=400)
    assert runs[0][0].min() < -1.1
    agree(runs)


def test_dry_friction_that_is_set_later_holds_however_the_model_is_given():
    slider = kn.build([kn.Link("a", joints=kn.prismatic("x"), mass=1.0, inertia=ROD)], actuators=[kn.motor("a_joint")])
    model = eqx.tree_at(lambda m: m.friction, slider, np.array([2.0]))
    still = kn.State(np.zeros(1), np.zeros(1))
    runs = three_runs(model, still, Impulse(), dt=1e-3, steps=100, control=np.ones(1))
    assert np.abs(runs[0][0]).max() < 1e-6
    agree(runs)


def test_a_ball_joint_at_the_middle_of_its_cone_has_a_row_that_can_be_solved():
    link = kn.Link("a", joints=kn.ball(), mass=1.0, com=(0, 0, 0.5), inertia=ROD)
    model = eqx.tree_at(lambda m: m.upper, kn.build([link]), np.full(3, 0.5))
    start = kn.State(np.array([1.0, 0, 0, 0]), np.array([0.4, 0.3, 0.1]))
    runs = three_runs(model, start, Impulse(), dt=1e-3, steps=800)
    angle = 2 * np.arccos(np.clip(np.abs(runs[0][0][:, 0]), 0, 1))
    assert angle[-1] == pytest.approx(0.5, abs=1e-3)
    agree(runs, 1e-7)  # an inverted pendulum: rounding grows e^3 fold by t = 0.8 s, the tolerance of the solver with it


def deep_in_the_ground() -> tuple[kn.Model, kn.State]:
    """A slab, tilted, with corners 0.2 m under the ground, that turns at 11 rad/s: its corners accelerate upwards."""
    slab = kn.Link("slab", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.5, 0.2, 0.1))
    tilted = np.array([0.9, 0.3, 0.2, 0.1])
    at = pose([0, 0, 0.05], tilted / np.linalg.norm(tilted))
    return kn.build([slab], world_shapes=GROUND), kn.State(at, np.array([0.3, 0, -0.5, 6, 8, 5]))


@pytest.mark.parametrize(("law", "time_of_impact"), [("newton", True), ("passive", True), ("newton", False)])
def test_a_restitution_of_zero_is_plastic_though_it_is_traced(law, time_of_impact):
    """An overlap is undone at Baumgarte's pace, not within a step (which made this slab turn at 351 rad/s)."""
    contact = Impulse(restitution_law=law, time_of_impact=time_of_impact)
    runs = three_runs(*deep_in_the_ground(), contact, dt=1e-3, steps=20)
    assert np.abs(runs[0][1]).max() < 100
    agree(runs, 1e-7)  # after 20 steps of a stiff contact; single steps are held to 1e-9 by scripts/check_traced.py


def test_restitution_that_tends_to_zero_undoes_no_overlap_in_one_step():
    run = kn.rollout(*deep_in_the_ground(), dt=1e-3, steps=20, contact=Impulse(restitution=1e-12), native=True)
    assert np.abs(np.asarray(run.qd)).max() < 100


def test_models_of_a_batch_may_have_limits_at_different_joints():
    two = kn.build(
        [
            kn.Link("a", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
            kn.Link("b", "a", kn.revolute("y"), position=(0, 0, -1), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
        ]
    )
    lower = np.array([[0.2, -np.inf], [-np.inf, 0.1], [-np.inf, -np.inf]])
    friction = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.3]])
    start = kn.State(np.array([0.3, 0.2]), np.array([-1.0, 0.5]))

    def run(lower, friction):
        model = eqx.tree_at(lambda m: (m.lower, m.friction), two, (lower, friction))
        return kn.rollout(model, start, dt=2e-3, steps=50, contact=Impulse()).q

    alone = [run(*case) for case in zip(lower, friction, strict=True)]
    np.testing.assert_allclose(jax.vmap(run)(lower, friction), np.stack(alone), rtol=0, atol=TIGHT)


def test_gradients_are_finite_where_a_traced_limit_is_infinite():
    start = kn.State(np.array([1.2]), np.zeros(1))

    def end(q, lower):
        model = eqx.tree_at(lambda m: m.lower, pendulum(), lower)
        return jnp.sum(kn.rollout(model, kn.State(q, start.qd), dt=2e-3, steps=20, contact=Impulse()).q[-1])

    by_q, by_lower = kn.native.jit(jax.grad(end, argnums=(0, 1)))(start.q, np.array([-np.inf]))
    assert np.isfinite(by_q).all() and float(by_lower[0]) == 0.0


TURNED = np.array([0.5, 0.1, -0.7, 0.4]) / np.linalg.norm([0.5, 0.1, -0.7, 0.4])


def closed_loop(up: float, tilt: float, kind: str, rotation: np.ndarray = TURNED) -> kn.Model:
    """A double pendulum and a body that move in one plane, their tips held together though `up` apart across it."""
    placed: Any = {"rotation": tuple(rotation)}
    links = [
        kn.Link("a", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.5), inertia=ROD, **placed),
        kn.Link("b", "a", kn.revolute("y"), (0, 0, -1), mass=0.7, com=(0, 0, -0.4), inertia=ROD),
        kn.Link("c", joints=kn.planar("y"), mass=0.4, inertia=ROD, com=(0.05, 0, 0), **placed),
    ]
    weld = kn.Weld("c", "b", (0.1, up, -1), (np.cos(tilt / 2), np.sin(tilt / 2), 0, 0))
    return kn.build(links, equalities=[kn.Connect("c", "b", (0.1, up, 0), (0, 0, -1)) if kind == "connect" else weld])


def step_of_a_loop(model: kn.Model) -> dict[str, Any]:
    """With the loop open by 1.7 m, so that it closes at the correction speed."""
    start = kn.State(np.array([0.3, 0.2, 0.9, -1.5, 0.4]), np.array([0.5, -0.3, 0.8, 0.2, -0.6]))
    run = kn.rollout(model, start, dt=2e-3, steps=1, contact=Impulse())
    names = ("equality", "slack", "violation", "converged")
    return {"q": run.q, "qd": run.qd} | {name: getattr(run.contact, name) for name in names}


@pytest.mark.parametrize(
    ("up", "tilt", "kind", "holds"),
    [(0.0, 0.0, "connect", True), (0.05, 0.0, "connect", False), (0.0, 0.0, "weld", True), (0.0, 0.1, "weld", False)],
)
def test_equalities_in_a_turned_plane_are_the_same_whether_or_not_the_plane_is_traced(up, tilt, kind, holds):
    """And those that cannot hold, as nothing moves across the plane, say so."""
    model = closed_loop(up, tilt, kind)
    constant, traced = jax.jit(lambda: step_of_a_loop(model))(), jax.jit(step_of_a_loop)(model)
    for name, value in constant.items():
        value, other = np.asarray(value, float), np.asarray(traced[name], float)
        np.testing.assert_allclose(other, value, rtol=0, atol=TIGHT * (1 + np.abs(value).max()), err_msg=name)
    assert bool(constant["converged"][0]) == holds


def test_an_open_loop_closes_at_the_correction_speed_in_any_direction():
    models = (closed_loop(0.0, 0.0, "connect", rotation) for rotation in (np.array([1.0, 0, 0, 0]), TURNED))
    floating = [eqx.tree_at(lambda m: m.gravity, model, np.zeros(3)) for model in models]
    straight, turned = (jax.jit(step_of_a_loop)(model) for model in floating)
    np.testing.assert_allclose(turned["qd"], straight["qd"], rtol=0, atol=TIGHT)


def test_a_traced_chain_without_shapes_has_a_step():
    """18 rows of limits and friction for 9 joints, and no contact."""
    joint: Any = {"joints": kn.revolute("y"), "mass": 1.0, "com": (0, 0, -0.5), "inertia": ROD}
    links = [kn.Link(str(i), str(i - 1) if i else "world", position=(0, 0, -1.0), **joint) for i in range(9)]
    chain = kn.build(links, equalities=[kn.Mimic("0_joint", "1_joint")])
    start = kn.State(np.linspace(0.1, 0.5, 9), np.zeros(9))

    def step(model):
        return kn.rollout(model, start, dt=1e-3, steps=1, contact=Impulse()).qd

    np.testing.assert_allclose(jax.jit(step)(chain), jax.jit(lambda: step(chain))(), rtol=0, atol=TIGHT)


def test_a_step_in_the_space_of_the_joints_loses_no_digits():
    """Traced, every joint may have a limit and friction: more rows than are solved as a matrix, here without R."""
    check = runpy.run_path(str(SCRIPT))
    model, state, *_ = check["planar"](Impulse())

    def step(model):
        made: Any = kn.rollout(model, state, dt=2e-3, steps=1, contact=Impulse(mixing=0.0))
        return made.qd[0], made.contact.residual[0]

    (constant, _), (traced, residual) = jax.jit(lambda: step(model))(), jax.jit(step)(model)
    np.testing.assert_allclose(traced, constant, rtol=0, atol=TIGHT)
    assert float(residual) < 1e-10  # of a piecewise linear problem: rounding, where the tolerance is 1e-8


def test_random_states_of_a_box_agree_though_traced_models_are_solved_in_another_space():
    """12 rows as a matrix; traced, 18 rows over the joints. Searches ended anywhere below the tolerance.

    Of 1500 states 59 were apart by more than 1e-9, in impulses by up to 1.6e-6.
    """
    shape = kn.shapes.box(0.1, 0.15, 0.2, friction=(0.6,))
    model = kn.build([kn.Link("box", joints=kn.free(), mass=1.3, shapes=shape)], world_shapes=GROUND)

    def step(model, q, qd):
        made: Any = kn.rollout(model, kn.State(q, qd), dt=2e-3, steps=1, contact=Impulse())
        return made.q[0], made.qd[0], made.contact.impulse[0], made.contact.converged[0]

    constant, traced = kn.native.jit(lambda q, qd: step(model, q, qd)), kn.native.jit(step)
    lowest = kn.native.jit(lambda q: jnp.min(Impulse().contacts(model, q).gap))
    rng = np.random.default_rng(1)
    for _ in range(300):
        turn = (
            rng.normal(size=4) * [1, 0.3, 0.3, 0.3] if rng.random() < 0.5 else np.eye(4)[0] + 1e-3 * rng.normal(size=4)
        )
        q = pose([0, 0, 0.3], turn / np.linalg.norm(turn))
        q[2] -= lowest(q) + rng.choice([1e-4, 1e-7, 1e-2])
        qd = rng.normal(size=6) * rng.choice([0, 0.1, 1, 3])
        for a, b in zip(constant(q, qd), traced(model, q, qd), strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=TIGHT * (1 + np.max(np.abs(a))))


@pytest.mark.parametrize("name", ["mechanism, Implicit", "planar, Impulse(pyramid)"])
def test_a_step_is_the_same_whether_or_not_its_values_are_traced(name):
    """Two scenes of scripts/check_traced.py as they are built: all values as constants, under jax.jit, and natively."""
    check = runpy.run_path(str(SCRIPT))
    scene = check["scenes"]()[name]
    for found in check["compare"](name, scene, quick=True):
        assert found.error <= (check["WITHOUT"] if scene.contact is None else check["WITH"]), found
