"""Several contact models in one step: rules by pair, solved together, each as it is alone."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint, PerPair, Rule
from knuckle.contact import couple as choice
from knuckle.contact.constraints import joint_rows
from knuckle.contact.coupling import RowSpace
from knuckle.contact.coupling_joint import JointSpace
from knuckle.contact.coupling_tree import TreeSpace
from knuckle.kinematics import articulation
from tests.contact.scenes import ball, boxes, planar_chain, pose

G, DT = 9.81, 1e-3
GROUND = kn.shapes.plane(name="ground", friction=(0.4,))
SOFT = Compliant(stiffness=2e5, dissipation=0.3, tolerance=1e-10)
BOUNCY = Impulse(restitution=0.6, restitution_law="passive", tolerance=1e-10)


def box(name: str = "box", position=(0.0, 0.0, 0.0), **options) -> kn.Link:
    shape = kn.shapes.box(0.1, 0.1, 0.05, friction=(0.4,), name=name, **options)
    return kn.Link(name, joints=kn.free(), mass=1.0, position=position, shapes=shape)


def sphere(**options) -> kn.Link:
    shape = kn.shapes.sphere(0.1, friction=(0.4,), name="ball", **options)
    return kn.Link("ball", joints=kn.free(), mass=2.0, shapes=shape)


def roll(model: kn.Model, q, qd, contact, steps: int, dt: float = DT, **options) -> Any:
    state = kn.State(np.asarray(q, float), np.asarray(qd, float))
    run = kn.rollout(model, state, dt=dt, steps=steps, contact=contact, native=True, **options)
    assert run.contact is not None and bool(run.contact.converged.all())
    return run


@pytest.mark.parametrize(
    ("contact", "model"),
    [
        (Impulse(restitution=0.5, restitution_law="passive", most_contacts=3), boxes(1)),
        (Impulse(smoothing=0.1, smooth="derivative"), ball()),
        (Impulse(pyramid=True, friction=0.3), planar_chain()),
        (Compliant(), planar_chain()),
    ],
)
def test_one_rule_is_the_same_program_as_its_model_alone(contact, model):
    """Values, derivatives and speed are the same."""
    state = model.state()

    def traced(contact):
        def after(qd, friction):
            used = contact if isinstance(contact, PerPair) else PerPair(all=Rule("*", contact))
            used = eqx.tree_at(lambda c: c["all"].friction, used, friction, is_leaf=lambda x: x is None)
            used = used if isinstance(contact, PerPair) else used["all"]
            return kn.step(model, kn.State(state.q, qd), dt=DT, contact=used).qd

        found = jax.make_jaxpr(after)(jnp.asarray(state.qd), 0.3)
        return re.sub("0x[0-9a-f]+", "", str(found))  # addresses of functions

    assert traced(PerPair(all=Rule("*", contact))) == traced(contact)


@pytest.mark.parametrize("space", [RowSpace, TreeSpace, JointSpace])
def test_laws_of_bodies_that_do_not_touch_each_other_are_each_as_alone(space, monkeypatch):
    """A box slides on springs beside a ball that bounces, in all spaces of Newton's step."""
    if space is TreeSpace:
        monkeypatch.setattr(choice, "FEW_ROWS", 0)
    bits = {} if space is JointSpace else {"contype": 2, "conaffinity": 2}
    ground = kn.shapes.plane(name="ground", friction=(0.4,), contype=3, conaffinity=3)
    both = kn.build([box(), sphere(**bits)], world_shapes=[ground])
    between: Any = {"between": Rule("ball|box", Impulse())} if space is JointSpace else {}
    contact = PerPair(slide=Rule("link:box|world", SOFT), bounce=Rule("ball|ground", BOUNCY), **between)
    q = np.array([0, 0, 0.05, 1.0, 0, 0, 0]), np.array([1.0, 0, 0.11, 1.0, 0, 0, 0])
    qd = np.array([0.8, 0.1, 0, 0, 0, 1.0]), np.array([0.5, 0, -1.5, 0, 3.0, 0])

    def coupling(q):
        scene = contact.scene(both, articulation(both, q), q, joint_rows(both))
        return choice.couple(both, scene)

    assert isinstance(jax.eval_shape(coupling, jnp.concatenate(q)), space)
    run = roll(both, np.concatenate(q), np.concatenate(qd), contact, 250)
    for k, (link, own) in enumerate(((box(), SOFT), (sphere(), BOUNCY))):
        alone = roll(kn.build([link], world_shapes=[GROUND]), q[k], qd[k], own, 250)
        part = np.asarray(run.q).reshape(250, 2, 7)[:, k]
        np.testing.assert_allclose(part, alone.q, atol=1e-8)  # 250 steps, each solved to 1e-8 m/s
        mine = run.contact.of_rule(("slide", "bounce")[k])
        assert mine.contacts.names == alone.contact.contacts.names
        np.testing.assert_allclose(mine.impulse, alone.contact.impulse, atol=1e-7)


def test_a_block_on_springs_is_pushed_by_a_rigid_tip():
    """Both accelerate by (F - mu m g) / (m + m_tip); the block sits as deep as four springs let it."""
    force, mass, mu, k = 6.0, 1.0, 0.3, 1e5
    tip = kn.Link(
        "tip",
        joints=kn.prismatic("x"),
        mass=0.2,
        position=(-0.12, 0, 0.05),
        shapes=kn.shapes.sphere(0.02, name="tip", contype=2, conaffinity=2),
    )
    model = kn.build([box(contype=3, conaffinity=3), tip], world_shapes=[GROUND])
    contact = PerPair(
        push=Rule("tip|box*", Impulse(friction=0.0)), ground=Rule("box|ground", Compliant(stiffness=k, friction=mu))
    )
    depth = (mass * G / 4 / k) ** (2 / 3)
    wrench = jnp.zeros((2, 6)).at[1, 3].set(force)
    run = roll(model, [0, 0, 0.05 - depth, 1.0, 0, 0, 0, 0], [0.5, 0, 0, 0, 0, 0, 0.5], contact, 300, wrench=wrench)
    a = (force - mu * mass * G) / (mass + 0.2)
    assert float(run.qd[-1, 0]) - float(run.qd[99, 0]) == pytest.approx(0.2 * a, rel=1e-3)  # while it tilts on springs
    assert float(run.q[-1, 2]) == pytest.approx(0.05 - depth, abs=0.01 * depth)
    push = run.contact.of_rule("push").impulse[-1, 0, 0] / DT
    assert float(push) == pytest.approx(mass * a + mu * mass * G, rel=1e-3)


def test_each_pair_of_a_stack_has_its_own_friction():
    """A pulled block slips under another: mu12 g above, (F - mu g (m1 + m2) - mu12 g m2) / m1 below."""
    force, mu, mu12 = 12.0, 0.5, 0.1
    model = kn.build([box("low"), box("high")], world_shapes=[GROUND])
    contact = PerPair(between=Rule("high|low", Impulse(friction=mu12)), rest=Impulse(friction=mu))
    q = np.concatenate([pose((0, 0, 0.05)), pose((0, 0, 0.15))])
    wrench = jnp.zeros((2, 6)).at[0, 3].set(force)
    run = roll(model, q, np.zeros(12), contact, 100, wrench=wrench)
    low, high = (float(run.qd[-1, k]) / 0.1 for k in (0, 6))
    assert high == pytest.approx(mu12 * G, rel=1e-4)  # regularisation of 1e-5
    assert low == pytest.approx(force - mu * 2 * G - mu12 * G, rel=1e-4)


def test_soft_and_softer_feet_carry_half_each():
    """A trunk on two pairs of feet sinks at each end as deep as its springs let it, and its belly never touches."""
    stiff = {"front": 4e5, "rear": 5e4}
    shapes = [kn.shapes.sphere(0.02, position=(x, y, -0.1), name=f"{end}{side}")
              for end, x in (("front", 0.2), ("rear", -0.2)) for side, y in (("L", 0.1), ("R", -0.1))]  # fmt: skip
    belly = kn.shapes.sphere(0.05, name="belly")
    trunk = kn.Link("trunk", joints=kn.free(), mass=3.0, inertia=(0.02, 0.05, 0.06), shapes=[*shapes, belly])
    model = kn.build([trunk], world_shapes=[GROUND])
    rules: Any = {end: Rule(f"{end}?|ground", Compliant(stiffness=k, dissipation=20.0)) for end, k in stiff.items()}
    run = roll(model, pose((0, 0, 0.12)), np.zeros(6), PerPair(**rules, rest=Impulse()), 600, dt=2e-3)
    for end, k in stiff.items():
        gap = np.asarray(run.contact.of_rule(end).contacts.gap[-1])
        np.testing.assert_allclose(-gap, (3.0 * G / 4 / k) ** (2 / 3), rtol=2e-2)  # tilted by 3 mrad
    assert np.all(np.asarray(run.contact.of_rule("rest").impulse) == 0)


def test_the_nearest_contacts_of_each_rule_are_solved():
    """A box at rest needs the four contacts that it stands on; those of another rule do not count against them."""
    model = kn.build([box(), sphere()], world_shapes=[GROUND])
    rules: Any = {
        "hard": Rule("box|ground", Impulse(most_contacts=4)),
        "soft": Rule("ball", Compliant(most_contacts=1)),
    }
    q = np.concatenate([pose((0, 0, 0.05)), pose((1, 0, 0.1))])
    run = roll(model, q, np.zeros(12), PerPair(**rules), 50)
    assert run.contact.contacts.rules == (("hard", 4), ("soft", 2))
    assert float(run.contact.of_rule("hard").impulse[-1, :, 0].sum()) == pytest.approx(G * DT, rel=1e-4)
    assert float(run.contact.of_rule("soft").impulse[-1, :, 0].sum()) > 0


class Constant(eqx.Module):
    """A network that always gives the same."""

    value: jax.Array

    def __call__(self, x):
        return self.value


def test_networks_act_on_the_contacts_of_a_rule():
    """A friction in place of a rule's own is as if its model had it; all contacts together have taps too."""
    model = kn.build([box(), sphere()], world_shapes=[GROUND])
    state = kn.State(np.concatenate([pose((0, 0, 0.05)), pose((0, 0, 0.2))]), np.eye(12)[6] - 0.2 * np.eye(12)[8])

    def contact(mu):
        return PerPair(between=Rule("ball|box", Impulse(friction=mu)), ground=Rule("*", Compliant()))

    def after(contact, blueprint=None):
        return kn.native.jit(lambda: kn.step(model, state, dt=DT, contact=contact, blueprint=blueprint).qd)()

    network = kn.Augment(Constant(jnp.full(1, 0.05)), ("contact.between/depth",), "replace", share="rows")
    replaced = after(contact(0.7), kn.Blueprint({"contact.between/friction": network}))
    np.testing.assert_allclose(replaced, after(contact(0.05)), atol=1e-9)
    assert np.abs(replaced - after(contact(0.7))).max() > 1e-3
    taps = [tap.name for tap in kn.list_taps(model, contact=contact(0.7))]
    assert {"contact/friction", "contact.ground/friction", "contact.between/bias", "contact.ground/slip"} <= set(taps)
    assert not {"contact/bias", "contact.ground/bias"} & set(taps)  # springs have none
    with pytest.raises(
        ValueError, match=r"this step has no contact\.other/friction; it has .*contact\.between/friction"
    ):
        after(contact(0.7), kn.Blueprint({"contact.other/friction": network}))
    with pytest.raises(ValueError, match=r"there is no tap 'contact\.between/stickiness'"):
        kn.Blueprint({"contact.between/stickiness": network})


def test_the_first_rule_that_matches_holds_a_pair_in_either_order():
    model = kn.build([box("box0"), box("box1"), sphere()], world_shapes=[GROUND])
    contact = PerPair(
        first=Rule(("ground|box0", "ball|box?"), Impulse()), second=Rule("box*|world", SOFT), rest=Impulse()
    )
    held = {
        rule: {"|".join(model.geometry.names[k] for k in (pair.a, pair.b)) for pair in pairs}
        for rule, (_, pairs) in contact.by_rule(model).items()
    }
    assert {frozenset(name.split("|")) for name in held["first"]} == {
        frozenset(pair) for pair in (("box0", "ground"), ("ball", "box0"), ("ball", "box1"))
    }
    assert held["second"] == {"box1|ground"} and len(held["rest"]) == 2
    contacts = jax.eval_shape(lambda q: contact.contacts(model, q), jnp.asarray(model.reference))
    assert [name for name, _ in contacts.rules] == ["first", "second", "rest"]
    assert contacts.names[contacts.rows_of("second")] == tuple(f"box1|ground#{k}" for k in range(4))
    with pytest.raises(ValueError, match="there is no rule 'third'; there are 'first', 'second', 'rest'"):
        contacts.rows_of("third")
    with pytest.raises(KeyError, match="PerPair has no rule 'third'; it has first, second, rest"):
        contact["third"]


BAD = {
    "expected rules by name": lambda: PerPair(rest=Impulse()),
    r"push: expected Rule\(": lambda: PerPair(push=Impulse()),
    "rest: expected a contact model": lambda: PerPair(push=Rule("a|b", Impulse()), rest=Rule("*", Impulse())),  # pyright: ignore[reportArgumentType]
    "push: expected Impulse or Compliant, got InteriorPoint": lambda: PerPair(push=Rule("a|b", InteriorPoint())),
    "rest: expected Impulse or Compliant, got PerPair": lambda: PerPair(
        push=Rule("a|b", Impulse()), rest=PerPair(push=Rule("a|b", Impulse()))
    ),
    r"push: Compliant\(substeps=...\) integrates": lambda: PerPair(push=Rule("a|b", Compliant(substeps=4))),
    "push: self_collision=True is for PerPair": lambda: PerPair(push=Rule("a|b", Impulse(self_collision=True))),
    "push: correction=0.5 is for PerPair": lambda: PerPair(push=Rule("a|b", Impulse(correction=0.5))),
    "most_contacts is for the model of a rule": lambda: PerPair(push=Rule("a|b", Impulse()), most_contacts=4),
    "Rule: pairs must be patterns": lambda: Rule("a|b|c", Impulse()),
    r"Rule: pairs must be patterns such as .*, got \[\]": lambda: Rule([], Impulse()),
    "Rule: pairs must be patterns such as .*, got 'a|'": lambda: Rule("a|", Impulse()),
    "expected a contact model such as Impulse": lambda: Rule("a|b", 0.3),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_meant_is_refused(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"push": Rule("tip|box", Impulse())}, "rule 'push': 'tip|box' matches no pair that may touch; there are "),
        ({"some": Rule("*", Impulse()), "more": Rule("box|ground", SOFT)}, "'more': all its pairs are held by some"),
        ({"some": Rule("box", Impulse())}, "no rule is for ball|ground: give one, or rest="),
    ],
)
def test_rules_that_do_not_fit_a_model_are_refused(rules, message):
    model = kn.build([box(), sphere()], world_shapes=[GROUND])
    rest: Any = {"rest": Impulse()} if "some" not in rules else {}
    with pytest.raises(ValueError, match=re.escape(message)):
        kn.rollout(model, model.state(), dt=DT, steps=1, contact=PerPair(**rules, **rest), native=True)
