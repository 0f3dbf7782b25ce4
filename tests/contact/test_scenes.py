"""Random scenes, and each class of fault that they have shown."""

import sys
from collections import Counter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.contact import INACTIVE_GAP, Compliant, Impulse, PerPair, Rule, collide, contact_pairs
from knuckle.contact.laws import Coulomb, length, unit
from knuckle.contact.laws_smooth import Relaxed
from knuckle.contact.outcome import Outcome
from knuckle.contact.search import search
from knuckle.contact.system import System
from tests.contact.scenes import GROUND, pose, random_contacts

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import check_contact_scenes as check
from contact_scenes import audit, draw, energy, judge, maps

SIZES = (0.4, 0.63, 0.43), (0.51, 0.29, 0.4)


def body(shape, mass: float = 1.0, gravity: float = 9.81) -> kn.Model:
    link = kn.Link("body", joints=kn.free(), mass=mass, shapes=shape)
    return kn.build([link], gravity=(0, 0, -gravity), world_shapes=GROUND)


def roll(model: kn.Model, q, qd, contact, dt: float, steps: int) -> kn.Trajectory:
    return kn.rollout(
        model, kn.State(np.array(q), np.array(qd, float)), dt=dt, steps=steps, contact=contact, native=True
    )


def outcome(run: kn.Trajectory) -> Outcome:
    assert run.contact is not None
    return run.contact


def test_random_scenes_have_no_fault(capsys):
    assert check.main(["--quick"]) == 0
    assert "box/newton" in capsys.readouterr().out


@pytest.mark.parametrize("number", [84087, 85048])
def test_a_chain_held_inside_the_ground_is_solved_or_flagged(number):
    """Links that hinges hold deep in the ground: impulses of 1e7 N s along a normal that hardly moves.

    Rounding of what they do along the tangents, which they do not push, counted as that of the normal: steps with an
    error of 1e-7 m/s were called converged.
    """
    scene = draw.draw(number, check.SEED)
    found = judge.judge(scene, audit.record(scene, audit.run(scene)))
    assert scene.family == "chain of hinges"
    assert not any(found[fault] for fault in judge.FAULTS)


GAINING = {  # scene: a step, the energy that its residual adds [J], and the contact and axis of the impulse that does
    79083: (3, 2.2e-10, (4, 1)),  # friction of a contact that slides at 0.1 m/s and pushes nothing
    90004: (0, 1e-6, (1, 1)),  # friction of a contact that is 1.3 m apart, and a tie that pulls by 89 N s
    19171: (9, 3e-11, (0, 0)),  # a relaxed contact that keeps the impulses of the last step
}


@pytest.fixture(scope="module", params=GAINING)
def gaining(request):
    """A step of a scene, and what it gained: the judge's allowance for residuals left out e |u| / d."""
    scene = draw.draw(request.param, check.SEED)
    return scene, audit.record(scene, audit.run(scene)), *GAINING[request.param]


def has_fault(scene, found, step, fault) -> bool:
    return bool(judge.judge(scene, jax.tree.map(lambda x: x[step : step + 1], found))[fault])


def test_energy_is_that_of_recovery_and_of_the_solvers_tolerance(gaining):
    scene, found, at, size, _ = gaining
    assert not any(judge.judge(scene, found)[fault] for fault in judge.FAULTS)
    assert np.max(judge.Step(scene, found).law_error()) < Impulse().tolerance
    step = judge.Step(scene, jax.tree.map(lambda x: x[at : at + 1], found))
    assert 0 <= energy.allowed_gain(step) - energy.gain(step) < size


@pytest.mark.parametrize("shape", [maps.on_cone, maps.on_square, maps.on_diamond])
def test_the_bound_of_frictions_work_holds_for_any_residual(shape):
    """Impulses and slips that have nothing to do with each other, of sizes from 1e-9 to 10."""
    rng, count = np.random.default_rng(0), 20_000
    d, mu = 10 ** rng.uniform(-3, 3, count), rng.choice([0, 0.3, 1, 1000.0], count)
    r, s = (rng.normal(size=(count, 3)) * 10 ** rng.uniform(-9, 1, (count, 3)) for _ in range(2))
    push = np.column_stack([d * r[:, 0] - s[:, 0], d[:, None] * r[:, 1:] - s[:, 1:]])
    if shape is maps.on_cone:
        push[:, 0] -= mu * maps.length(s[:, 1:])
        kept = shape(push, mu)[:, 1:]
    else:
        kept = shape(push[:, 1:], mu * np.maximum(push[:, 0], 0.0))
    sizes = [maps.length(x) for x in (r[:, 1:], s[:, 1:], d[:, None] * r[:, 1:] - kept)]
    most = energy.friction_work(*sizes, d, shortens=shape is maps.on_cone)
    assert np.all(np.sum(r[:, 1:] * s[:, 1:], axis=1) <= most + 1e-15 * (d * sizes[0] ** 2 + sizes[1] ** 2 / d))


def test_a_gain_of_the_same_size_that_no_impulse_explains_is_seen(gaining):
    scene, found, at, size, _ = gaining
    kinetic = np.einsum("a,ab,b", found.after[at], found.M[at], found.after[at]) / 2
    assert has_fault(scene, found._replace(after=(1 + size / (2 * kinetic)) * found.after), at, "energy")


def test_a_gain_by_impulses_beyond_the_solvers_tolerance_is_seen(gaining):
    """Three times as wrong as the solver allows, with all that they do: the check of the law itself lets them pass."""
    scene, found, at, _, (contact, axis) = gaining
    step = judge.Step(scene, found)
    push = np.zeros_like(step.r)
    push[:, contact, axis] = 3e-8 / step.d[:, contact] * np.sign(step.u[:, contact, axis])
    flat = push.reshape(len(push), -1)
    faster = np.einsum("sab,sib,si->sa", step.inverse, found.J, flat)
    more = np.einsum("sij,sj->si", step.A, flat).reshape(push.shape)
    outcome = eqx.tree_at(lambda o: (o.impulse, o.velocity), found.outcome, (step.r + push, step.u + more))
    wrong = found._replace(after=found.after + faster, outcome=outcome)
    assert not has_fault(scene, wrong, at, "law") and not has_fault(scene, wrong, at, "momentum")
    assert has_fault(scene, wrong, at, "energy")


def test_random_scenes_under_two_laws_have_no_fault():
    """Two spheres on springs that strike each other rigidly; masses to 1e6 apart, overlap and friction up to 1000."""
    rules = PerPair(ground=Rule("*|world", Compliant()), blow=Rule("s?|s?", Impulse()))
    first, faults = draw.EACH * draw.CATEGORIES.index(("two spheres", "plastic")), Counter()
    for number in range(first, first + 24):
        scene = draw.draw(number, check.SEED)._replace(contact=rules)
        faults += judge.judge(scene, audit.record(scene, audit.run(scene)))
    assert not [fault for fault in judge.FAULTS if faults[fault]]
    assert faults["in contact"] > 400 and faults["not converged"] == 0


@pytest.mark.parametrize("size", [1e-158, 1e-162, 1e-200, 5e-324])
def test_a_slip_whose_square_underflows_has_finite_derivatives(size):
    """Impulses of tangents that nothing moves decay step by step until their squares are subnormal numbers.

    XLA flushes those to zero; native code does not, and 1 / root gave NaN in the gradient of a roll-out.
    """

    def both(x):
        return length(x), unit(x)

    at = jnp.array([[size, 0.0]])
    for run in (jax.jit(jax.jacfwd(both)), kn.native.jit(jax.jacfwd(both)), kn.native.jit(jax.jacrev(both))):
        for slope in run(np.asarray(at)):
            assert np.all(np.isfinite(np.asarray(slope) * 1e100))


def test_the_judge_sees_what_is_wrong():
    """Impulses and velocities of a good run, changed one at a time."""
    scene = next(s for s in (draw.draw(n, check.SEED) for n in range(100)) if s.situation == "deep")
    good = audit.record(scene, audit.run(scene))
    assert not any(judge.judge(scene, good)[fault] for fault in judge.FAULTS)

    def faults(wrong):
        return {fault for fault in judge.FAULTS if judge.judge(scene, wrong)[fault]}

    def pushed(r):
        return good._replace(outcome=eqx.tree_at(lambda o: o.impulse, good.outcome, r))

    r, v = good.outcome.impulse, good.after
    assert "momentum" in faults(pushed(1.01 * r))
    assert {"law", "momentum"} <= faults(pushed(r + np.abs(r).max()))
    assert "energy" in faults(good._replace(after=v + 1.0))
    assert "silent NaN" in faults(good._replace(after=np.where(np.arange(len(v))[:, None] == 7, np.nan, v)))


@pytest.mark.parametrize("restitution", [0.0, 0.5])
def test_a_deep_overlap_is_undone_at_the_recovery_speed(restitution):
    """It left the floor at 18 m/s, and at 450 m/s with restitution."""
    model = body(kn.shapes.box(0.2, 0.2, 0.2), gravity=0.0)
    run = roll(model, pose([0, 0, 0.0]), np.zeros(6), Impulse(restitution=restitution), 1e-3, 5)
    assert np.max(np.abs(run.qd)) == pytest.approx(0.1, rel=1e-3)
    faster = Impulse(restitution=restitution, recovery_speed=2.0)
    assert np.max(np.abs(roll(model, pose([0, 0, 0.0]), np.zeros(6), faster, 1e-3, 5).qd)) == pytest.approx(
        2.0, rel=1e-3
    )


@pytest.mark.parametrize("depth", [0.02, 0.1])
def test_a_start_with_overlap_does_not_eject_a_stack(depth):
    """Three boxes, each so deep in what carries it: speeds of recovery add up, so the k-th may hop (k v)^2 / (2 g)."""
    boxes = [kn.Link(f"b{k}", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.1, 0.1, 0.1)) for k in range(3)]
    model = kn.build(boxes, world_shapes=[kn.shapes.plane()])
    q = np.concatenate([[0, 0, 0.1 - depth + k * (0.2 - depth), 1, 0, 0, 0] for k in range(3)])
    start = kn.State(q, np.zeros(18))
    run = kn.rollout(model, start, dt=0.002, steps=1000, contact=Impulse(), native=True)
    assert bool(outcome(run).converged.all())
    heights = np.asarray(run.q).reshape(1000, 3, 7)[:, :, 2]
    np.testing.assert_allclose(heights[-1], [0.1, 0.3, 0.5], atol=1e-5)
    hops = (0.1 * np.arange(1, 4)) ** 2 / (2 * 9.81)
    assert np.all(np.max(heights - heights[-1], axis=0) < 1.1 * hops)


def test_a_quadruped_that_starts_with_its_feet_in_the_floor_stays():
    """18 mm deep, as a keyframe of a public file is: it left at 0.97 m/s. MuJoCo's rises by 5.2 mm above its rest."""
    model = robots.load("quadruped")
    state = model.state("standing")
    lowest = float(np.min(Impulse().contacts(model, state.q).gap))
    q = np.array(state.q)
    q[2] -= lowest + 0.018
    start = kn.State(q, np.zeros(18))
    run = kn.rollout(model, start, state.control, dt=0.002, steps=1000, contact=Impulse(), native=True)
    assert bool(outcome(run).converged.all())
    height = np.asarray(run.q[:, 2])
    assert np.max(height) - height[-1] < 3e-3
    assert np.max(np.abs(run.qd[:, 2])) < 0.15


def test_a_steep_cone_does_not_hide_that_a_body_sinks():
    sinking = jnp.array([[-1.3e-6, 6e-6, 0.0]])
    error = Coulomb(jnp.array([257.0])).error(jnp.zeros((1, 3)), sinking, jnp.ones(1))
    assert np.max(np.abs(error)) >= 1.3e-6


@pytest.mark.parametrize("friction", [0.0, 300.0])
def test_relaxed_errors_of_impulse_and_velocity_are_in_metres_per_second(friction):
    """Frictionless, an impulse that was wrong by 1 mm/s counted as 1e-15 m/s."""
    law = Relaxed(jnp.array([friction]), jnp.array([1e-2]), jnp.array([2.0]))
    push, speed = 0.4, (0.5e-2) ** 2 / 0.8  # relaxed: d r u = (smoothing / 2)^2
    right = jnp.array([[push, 0.0, 0.0]]), jnp.array([[speed, 0.0, 0.0]]), jnp.ones(1)
    assert np.max(np.abs(law.imbalance(*right))) < 1e-12
    wrong = right[0] + jnp.array([[0.0, 0.0, 0.0]]), right[1] + jnp.array([[1e-3, 0.0, 0.0]]), right[2]
    assert np.abs(law.imbalance(*wrong)[0, 0]) > 2e-4


def test_smooth_contact_is_solved_without_friction():
    """A box that spins into the ground: half of the steps were not solved."""
    model = body(kn.shapes.box(0.07, 0.09, 0.11, friction=(0.0,)), 114.0)
    ground = eqx.tree_at(lambda m: m.geometry.friction, model, np.zeros_like(model.geometry.friction))
    turn = np.array([0.6, -0.1, 0.7, 0.3])
    start = pose([0, 0, 0.05], turn / np.linalg.norm(turn)), [9, -20, -30, 90, -60, 40]
    run = roll(ground, *start, Impulse(smoothing=5e-3), 4e-4, 20)
    assert bool(outcome(run).converged.all())


def test_impulses_of_a_failed_search_add_no_energy():
    """Of 40 problems after two iterations, the best iterate gained energy in several."""

    @jax.jit
    def work(A, b, friction):
        system = System.of_matrix(A, b, (Coulomb(friction),))
        found = search(system, jnp.zeros_like(b), tolerance=1e-8, most_iterations=2)
        r = found.impulse
        return r @ b + 0.5 * r @ A @ r, found.converged

    problems = [random_contacts(np.random.default_rng(seed), 3, 6, 1e4) for seed in range(40)]
    found = [work(p.A, p.b, p.friction) for p in problems]
    assert sum(not converged for _, converged in found) > 10
    assert max(float(gain) for gain, _ in found) <= 1e-12


def test_springs_are_solved_at_high_friction():
    """A cylinder deep in the ground was never pushed: no step was solved."""
    shape = kn.shapes.cylinder(0.27, 0.32, friction=(1000.0,))
    contact = Compliant(stiffness=1.2e6, dissipation=0.45, transition=0.0076)
    run = roll(body(shape, 10.4), pose([0, 0, 0.0]), [0.3, 0.2, 0, 1, 2, 3], contact, 1e-3, 10)
    assert bool(outcome(run).converged.all())


def test_substeps_that_are_too_long_are_refused():
    """They ended in NaN, or gained energy without a mark."""
    model = body(kn.shapes.sphere(0.1), mass=0.01)
    start = pose([0, 0, 0.0999]), [0.0, 0, -1, 0, 0, 0]
    unstable = roll(model, *start, Compliant(stiffness=1e8, exponent=1.0, substeps=4), 5e-3, 20)
    assert np.all(np.isfinite(unstable.qd)) and not bool(outcome(unstable).converged[0])
    assert np.max(np.abs(unstable.qd)) < 3
    with pytest.raises(ArithmeticError, match="not solved"):
        outcome(unstable).check()
    stable = roll(model, *start, Compliant(stiffness=1e3, exponent=1.0, substeps=4), 1e-4, 20)
    assert bool(outcome(stable).converged.all())


def test_slots_without_a_contact_lie_between_the_shapes():
    """Of faces that are nearly at right angles they lay kilometres away, where a turning body is fast."""
    links = [kn.Link(f"b{k}", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(*size)) for k, size in enumerate(SIZES)]
    model = kn.build(links)
    q = np.concatenate(
        [
            pose([15.45, 0.8576, 0.4318], np.array([0.248175452, 1.16927814e-09, 2.46537078e-09, 0.9687151])),
            pose(
                [5.96238556, -6.67209585, -0.164828314],
                np.array([0.631713784, -0.631713784, 0.317706932, -0.317706932]),
            ),
        ]
    )
    found = kn.native.jit(lambda q: collide(model, q, contact_pairs(model)))(q)
    empty = np.asarray(found.gap) >= INACTIVE_GAP
    assert np.any(empty) and np.max(np.abs(np.asarray(found.point)[empty])) < 20
