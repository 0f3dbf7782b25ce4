"""The spaces of Newton's step are one operator: of rows, of joints, along the tree of links, of links that touch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.contact import Impulse
from knuckle.contact import couple as choice
from knuckle.contact.constraints import joint_rows
from knuckle.contact.coupling import Coupling, RowSpace, joined, layout_of, small_inverse, split
from knuckle.contact.coupling_graph import GraphSpace
from knuckle.contact.coupling_joint import JointSpace
from knuckle.contact.coupling_tree import TreeSpace
from knuckle.contact.laws import Between, Bounded, Coulomb
from knuckle.contact.packed_space import has_packed_space, packed_space
from knuckle.contact.system import System, block_scales, newton_step, over_rows, refined_solution, slopes
from knuckle.dynamics.aba import factor_mass_matrix
from knuckle.kinematics import articulation

CRAWLER = """<mujoco><default><geom conaffinity="{with_each_other}" density="500"/></default><worldbody>
<geom type="plane" size="0 0 1" conaffinity="1"/>
<body pos="0 0 0.5"><freejoint/><geom type="capsule" size=".1 .2"/>{legs}</body>
<body pos="2 0 0.4"><joint type="slide" axis="0 0 1" frictionloss="0.3"/><geom type="capsule" size=".1 .2"/>
<body pos="0 0 .3"><joint type="ball"/><geom type="sphere" size=".1" pos=".2 0 0"/></body></body></worldbody>
</mujoco>"""
LEG = """<body pos="{x} {y} 0"><joint axis="1 0 0" range="-60 60" frictionloss="0.1"/>
<geom type="capsule" fromto="0 0 0 0 {y} -.1" size=".04"/><body pos="0 {y} -.1">
<joint axis="0 1 0" range="-90 10" armature="0.01"/><geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03"/></body>
</body>"""


def crawler(tmp_path, with_each_other: bool = False) -> kn.Model:
    """A robot with two legs of capsules, and a body on a rail with a ball joint on top."""
    legs = "".join(LEG.format(x=x, y=y) for x, y in ((-0.2, 0.15), (0.2, -0.15)))
    path = tmp_path / "crawler.xml"
    path.write_text(CRAWLER.format(legs=legs, with_each_other=int(with_each_other)))
    return kn.load(path)


def planar(tmp_path) -> kn.Model:
    """A chain in the plane that touches the ground only: contacts of one tangent."""
    walker = """<mujoco><default><geom conaffinity="0"/></default><worldbody>
    <geom type="plane" size="0 0 1" conaffinity="1"/><body pos="0 0 1"><joint type="slide" axis="1 0 0"/>
    <joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/><geom type="capsule" size=".1 .3"/><body pos="0 0 -.3">
    <joint axis="0 1 0" range="-50 50"/><geom type="capsule" fromto="0 0 0 0 0 -.4" size=".05"/><body pos="0 0 -.4">
    <joint axis="0 1 0" range="-50 50"/><geom type="capsule" fromto="-.1 0 0 .2 0 0" size=".05"/></body></body></body>
    </worldbody></mujoco>"""
    path = tmp_path / "walker.xml"
    path.write_text(walker)
    return kn.load(path)


def spaces(model: kn.Model, q, most_contacts: int = 64) -> tuple[Any, ...]:
    """The scene of a model and its coupling in each space that it fits."""
    contact, body = Impulse(most_contacts=most_contacts, self_collision=None), articulation(model, q)
    scene = contact.scene(model, body, q, joint_rows(model))
    factor, J = factor_mass_matrix(model, body.axes, body.inertia), choice.all_rows(model, scene)
    dofs = model.topology.dofs
    layout = choice._layout(scene)
    dense = choice._on_joints(model, scene, factor, layout)
    found = [RowSpace.of(layout, dofs, factor, J), dense, choice._on_graph(model, scene, factor)]
    return scene, *found, *([choice._on_tree(model, scene, factor)] if choice.fits_tree(scene) else [])


def laws_of(scene, numbers):
    """Laws of the rows with some friction, limits and bounds."""
    contacts, axes = scene.near.count(len(scene.contacts)), scene.frame.shape[1]
    limits, rubbing = len(scene.limits.J), len(scene.rubbing)
    laws = [Coulomb(numbers[:contacts], axes - 1)]
    laws += [Between(-numbers[:limits], 0.5 - numbers[-limits:])] if limits else []
    laws += [Bounded(0.2 * numbers[:rubbing])] if rubbing else []
    return tuple(laws)


def heap(tmp_path) -> kn.Model:
    """Robots whose links touch each other, and loose boxes."""
    legs = "".join(LEG.format(x=x, y=y) for x, y in ((-0.2, 0.15), (0.2, -0.15)))
    boxes = '<body><freejoint/><geom type="box" size=".2 .1 .3"/></body>' * 3
    path = tmp_path / "heap.xml"
    path.write_text(CRAWLER.format(legs=legs, with_each_other=1).replace("</worldbody>", boxes + "</worldbody>"))
    return kn.load(path)


@pytest.mark.parametrize(("make", "most"), [(crawler, 64), (crawler, 5), (planar, 64), (heap, 40)])
def test_spaces_are_one_operator(make, most, tmp_path):
    """R is 1e-5 of the diagonal, as by default: Newton's step loses up to 5 of 16 digits in joint space."""
    model = make(tmp_path)

    @kn.native.jit
    def found(q, friction, v, r, u, rhs):
        scene, *couplings = spaces(model, q, most)
        laws, results = laws_of(scene, friction), []
        r, u, rhs = (split(layout_of(laws), x) for x in (r, u, rhs))
        scales = block_scales(System(couplings[0], jax.tree.map(jnp.zeros_like, r), u, laws))
        R = jax.tree.map(lambda x: 1e-5 * x, over_rows(laws, scales))
        at = slopes(laws, r, u, scales)
        for coupling in couplings:
            system = System(coupling, R, u, laws)
            step, (solution, dv) = newton_step(system, r, u, scales), refined_solution(system, at, scales, rhs)
            found: list[Any] = [coupling.velocity(r), coupling.diagonal(), step, solution]
            moved = coupling.contact_velocity(v)
            results.append([coupling.joint_velocity(r), moved, *openings(coupling, moved, v), *map(joined, found), dv])
        return results

    size = len(jax.eval_shape(lambda q: spaces(model, q, most)[1].A, jnp.asarray(model.reference)))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(3, size))
        q, friction, v = rng.normal(size=model.nq), rng.uniform(0, 1.5, size), rng.normal(size=model.nv)
        rows, *others = found(q, friction, v, *vectors)
        for other in others:
            for value, expected, digits in zip(other, rows, (*[1e-12] * 6, 1e-8, 1e-11, 1e-11), strict=True):
                np.testing.assert_allclose(value, expected, atol=digits * np.abs(expected).max())


def openings(coupling: Coupling, moved, v) -> list[Any]:
    """Normal velocities of all contacts and of the last alone: as packed contacts have them, where they are packed."""
    if not has_packed_space(coupling):
        return [moved[:, 0], moved[-1, 0]]
    space = packed_space(coupling)
    moving = space.moving(space.carriers_at(v))
    return [space.opening(moving), space.opening_at(moving, jnp.asarray(len(moved) - 1))]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_inverse_by_cofactors(size):
    G = np.random.default_rng(size).normal(size=(20, size, size))
    np.testing.assert_allclose(small_inverse(jnp.asarray(G)), np.linalg.inv(G), rtol=1e-9)


def test_the_space_is_chosen_by_what_couples(tmp_path):
    """Few rows: a matrix of rows. Contacts with the ground: the tree. Between links: the joints, of many the graph."""

    def space(model: kn.Model, **options):
        def couple(q):
            scene = Impulse().scene(model, articulation(model, q), q, joint_rows(model))
            return choice.couple(model, scene, **options)

        return jax.eval_shape(couple, jnp.asarray(model.reference))

    assert isinstance(space(robots.load("double_pendulum")), RowSpace)
    assert isinstance(space(crawler(tmp_path)), TreeSpace)
    assert isinstance(space(crawler(tmp_path), as_matrix=True), RowSpace)
    assert isinstance(space(crawler(tmp_path, with_each_other=True)), JointSpace)
    assert isinstance(space(heap(tmp_path)), GraphSpace)
    tied = (tmp_path / "heap.xml").read_text().replace('<body pos="2', '<body name="rail" pos="2')
    held = '<equality><connect body1="rail" anchor="0 0 0"/></equality></mujoco>'
    (tmp_path / "tied.xml").write_text(tied.replace("</mujoco>", held))
    assert isinstance(space(kn.load(tmp_path / "tied.xml")), JointSpace)


@pytest.mark.parametrize("space", [TreeSpace, JointSpace, GraphSpace])
def test_steps_and_gradients_are_the_same_in_all_spaces(space, tmp_path, monkeypatch):
    """A robot falls on its legs; from some states one step and its derivative are taken in a space and in row space."""
    monkeypatch.setattr(choice, "FEW_JOINTS", 0 if space is GraphSpace else 24)
    model, contact = crawler(tmp_path, space is not TreeSpace), Impulse(tolerance=1e-11)
    state = kn.State(jnp.asarray(model.reference).at[2].set(0.25), jnp.zeros(model.nv))

    def after(qd, state):
        moved = kn.step(model, kn.State(state.q, qd), dt=0.004, contact=contact)
        return jnp.concatenate([moved.q, moved.qd])

    weights = jnp.asarray(np.random.default_rng(0).normal(size=model.nq + model.nv))

    def with_derivative():
        return kn.native.jit(lambda s: (after(s.qd, s), jax.grad(lambda qd: jnp.sum(weights * after(qd, s)))(s.qd)))

    ours, rows = with_derivative(), with_derivative()
    run = kn.rollout(model, state, dt=0.004, steps=60, contact=contact, native=True)
    assert run.contact is not None
    assert bool(run.contact.converged.all()) and float(run.contact.impulse[-1, :, 0].sum()) > 0
    pushing = np.flatnonzero(np.asarray(run.contact.impulse[1:, :, 0]).sum(axis=1) > 0)
    margin = np.asarray(run.contact.margin[1:])[pushing]
    for k in pushing[np.argsort(margin)[-3:]]:  # far from changes of mode, where derivatives are one-sided
        at = kn.State(jnp.asarray(run.q[k]), jnp.asarray(run.qd[k]))
        value, slope = ours(at)
        with monkeypatch.context() as patch:
            patch.setattr(choice, "FEW_ROWS", 10_000)
            expected, expected_slope = rows(at)
        np.testing.assert_allclose(value, expected, atol=1e-9)
        np.testing.assert_allclose(slope, expected_slope, atol=1e-6 * float(np.abs(expected_slope).max()))


def test_a_model_of_single_precision_stays_so(tmp_path):
    """In native code the numbers of the contact model are arguments of double precision."""
    model = jax.tree.map(lambda x: np.asarray(x, np.float32), crawler(tmp_path))
    state = kn.State(np.asarray(model.reference), np.zeros(model.nv, np.float32))
    dt, contact = jnp.asarray(0.004, jnp.float32), Impulse(tolerance=1e-4)
    run = kn.rollout(model, state, dt=dt, steps=60, contact=contact, native=True)
    assert run.contact is not None and run.q.dtype == np.float32
    assert bool(run.contact.converged.all()) and np.all(np.isfinite(run.q))
