"""A tip that follows a recorded path pushes a plate: values and gradients, by a body and by a joint, in all engines."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse
from knuckle.contact import couple as choice

DT, STEPS = 5e-3, 60
TIMES = np.linspace(0, 0.3, 7)
RECORDED = np.array(
    [[-0.0605, 0.01], [-0.055, 0.011], [-0.045, 0.012], [-0.03, 0.013], [-0.02, 0.012], [-0.005, 0.01], [0, 0.01]]
)
RECTANGLE = kn.shapes.polygon([(-0.05, -0.04), (0.05, -0.04), (0.05, 0.04), (-0.05, 0.04)], friction=(0.3,))
DISC = kn.shapes.sphere(0.01, friction=(0.3,))


def plate(**options) -> kn.Link:
    joint = kn.planar("z", damping=(5.0, 5.0, 0.01), **options)
    return kn.Link("plate", joints=joint, mass=0.8, com=(0, 0, 0), inertia=(1e-3, 1e-3, 2e-3), shapes=RECTANGLE)


BY_BODY = kn.build([plate(), kn.Link("tip", mocap=True, shapes=DISC)], gravity=(0, 0, 0))
BY_JOINT = kn.build([plate(), kn.Link("tip", joints=kn.planar("z", name="tip_xy"), shapes=DISC)], gravity=(0, 0, 0))


def values(recorded, columns: int = 3):
    return jnp.concatenate([recorded, jnp.zeros((len(recorded), columns - 2), recorded.dtype)], axis=1)


def pushed(recorded, friction, mass, model=BY_BODY, contact: Any = Impulse, **options) -> Any:
    """The plate's trajectory."""
    moved = eqx.tree_at(lambda m: m.inertia.mass, model, jnp.asarray(model.inertia.mass).at[0].set(mass))
    state = kn.State(jnp.zeros(model.nq, recorded.dtype), jnp.zeros(model.nv, recorded.dtype))
    name = "tip_xy" if "tip_xy" in model.joint_names else "tip"
    path = kn.Path(TIMES.astype(recorded.dtype), values(recorded))
    options = {"dt": DT, "steps": STEPS, "contact": contact(friction=friction), "prescribed": {name: path}} | options
    return kn.rollout(moved, state, **options)


def score(recorded, friction, mass, **options):
    run = pushed(recorded, friction, mass, **options)
    return run.q[-1, 0] + 2 * run.q[-1, 1] + 0.1 * run.q[-1, 2] + 0.1 * run.qd[-1, 0]


SOFT: Any = partial(Compliant, stiffness=jnp.asarray(1e4))
AT = jnp.asarray(RECORDED), jnp.asarray(0.15), jnp.asarray(0.8)


@pytest.mark.parametrize(
    ("model", "contact"),
    [(BY_BODY, Impulse), (BY_JOINT, Impulse), (BY_BODY, SOFT)],
    ids=["body", "joint", "compliant"],
)
def test_gradient_by_path_friction_and_mass(model, contact):
    function = partial(score, model=model, contact=contact)
    slopes = kn.native.jit(jax.grad(function, (0, 1, 2)))(*AT)
    plain = kn.native.jit(function)
    for number, slope in enumerate(slopes):
        scale = np.abs(slope).max()
        assert scale > 1e-4  # each of them matters
        for k in np.ndindex(AT[number].shape):
            step = jnp.zeros_like(AT[number]).at[k].set(1e-7)
            ends = [plain(*AT[:number], AT[number] + s * step, *AT[number + 1 :]) for s in (1, -1)]
            np.testing.assert_allclose(slope[k], (ends[0] - ends[1]) / 2e-7, rtol=1e-4, atol=1e-5 * scale)


def test_the_plate_is_pushed_along_and_turns():
    run = pushed(*AT, native=True, check=False)
    assert run.contact is not None and bool(run.contact.converged.all())
    gap = np.asarray(run.contact.contacts.gap).min(axis=1)
    assert gap.min() > -1e-5 and np.abs(gap[10:25]).max() < 1e-5  # later the tip is slower than the plate
    assert 0.04 < run.q[-1, 0] < 0.07 and abs(run.q[-1, 2]) > 0.01


def test_a_tip_by_a_joint_is_a_tip_by_a_body():
    """The joint's contacts are between two links, so they are solved in other spaces."""
    body, joint = pushed(*AT, native=True), pushed(*AT, model=BY_JOINT, native=True)
    np.testing.assert_allclose(joint.q[:, :3], body.q, atol=1e-9)
    np.testing.assert_allclose(joint.qd[:, :3], body.qd, atol=1e-7)
    np.testing.assert_allclose(joint.q[:, 3:5], jax.vmap(kn.Path(TIMES, values(AT[0])))(joint.time)[:, :2], atol=1e-14)


def test_native_code_and_jit_agree():
    native, compiled = (fast(lambda *at: pushed(*at).q)(*AT) for fast in (kn.native.jit, jax.jit))
    np.testing.assert_allclose(native, compiled, atol=1e-9)


def test_a_batch_of_paths_is_one_after_the_other():
    several = jnp.stack([AT[0], AT[0] + jnp.asarray([[0.0, 0.005]]), AT[0] * jnp.asarray([[1.0, -1.0]])])
    together = kn.native.vmap(lambda recorded: pushed(recorded, *AT[1:]).q)(several)
    alone = kn.native.jit(lambda recorded: pushed(recorded, *AT[1:]).q)
    np.testing.assert_allclose(together, [alone(recorded) for recorded in several], atol=1e-9)


def test_single_precision():
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), BY_BODY)
    at = [x.astype(jnp.float32) for x in AT]
    run = pushed(*at, model=single, native=True, dt=np.float32(DT))
    assert run.q.dtype == np.float32
    np.testing.assert_allclose(run.q[-1], pushed(*AT, native=True).q[-1], atol=2e-4)


CRAWLER = """<mujoco><default><geom conaffinity="0" density="500" friction="0.2"/></default><worldbody>
<geom type="plane" size="0 0 1" conaffinity="1"/><body name="trunk" pos="0 0 0.4"><freejoint name="base"/>
<geom type="capsule" size=".1 .2"/>
<body pos="-.2 .15 0"><joint axis="1 0 0" range="-60 60" frictionloss="0.1"/>
<geom type="capsule" fromto="0 0 0 0 .15 -.1" size=".04"/><body pos="0 .15 -.1"><joint axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03"/></body></body>
<body pos=".2 -.15 0"><joint axis="1 0 0" range="-60 60" frictionloss="0.1"/>
<geom type="capsule" fromto="0 0 0 0 -.15 -.1" size=".04"/><body pos="0 -.15 -.1"><joint axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03"/></body></body></body></worldbody></mujoco>"""


def test_a_moving_base_in_all_spaces_of_newtons_step(monkeypatch, tmp_path):
    """The trunk sinks and turns as given; the legs follow by contact, limits and friction."""
    (tmp_path / "crawler.xml").write_text(CRAWLER)
    model = kn.load(tmp_path / "crawler.xml")

    def path(t):
        turn = jnp.stack([jnp.cos(0.2 * t), 0 * t, 0 * t, jnp.sin(0.2 * t)])
        return jnp.concatenate([jnp.stack([0.3 * t, 0 * t, 0.41 - 0.5 * t]), turn])

    ends = []
    for few, on_tree in ((16, True), (1000, True), (16, False)):
        monkeypatch.setattr(choice, "FEW_ROWS", few)
        monkeypatch.setattr(choice, "fits_tree", (lambda scene: True) if on_tree else (lambda scene: False))
        contact = Impulse(tolerance=1e-11)
        run = kn.native.jit(
            lambda q, contact=contact: kn.rollout(
                model, kn.State(q, jnp.zeros(model.nv)), dt=2e-3, steps=60, contact=contact, prescribed={"base": path}
            )
        )(jnp.asarray(model.reference))
        assert bool(run.contact.converged.all()) and np.asarray(run.contact.impulse)[-1, :, 0].max() > 0
        ends.append(np.concatenate([run.q[-1], run.qd[-1]]))
    np.testing.assert_allclose(ends[0][:7], path(jnp.asarray(0.12)), atol=1e-12)
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], atol=1e-6)
