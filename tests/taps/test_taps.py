"""Named quantities and networks that act there."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.contact import Compliant, Impulse, InteriorPoint
from knuckle.taps import CATALOGUE
from tests.contact.scenes import ball
from tests.taps.scenes import Linear, everywhere, sliding

DT = 1e-3


def step(model, state, **options):
    """One step as native code."""
    return kn.native.jit(lambda state: kn.step(model, state, **options))(state)


def untyped(value) -> Any:
    """A value of the wrong type on purpose."""
    return value


CONTACTS = {"none": None, "impulse": Impulse(), "bounce": Impulse(restitution=0.5), "compliant": Compliant()}


class Counter(eqx.Module):
    """A recurrent network that counts its calls."""

    weight: jax.Array

    def initial_state(self):
        return jnp.zeros(())

    def __call__(self, x, state):
        return self.weight * state * jnp.ones_like(x), state + 1


@pytest.mark.parametrize("name", CONTACTS)
def test_an_empty_blueprint_adds_nothing_to_a_step(name):
    model = ball()
    state = sliding(model)

    def traced(blueprint):
        step = jax.make_jaxpr(lambda s: kn.step(model, s, dt=DT, contact=CONTACTS[name], blueprint=blueprint))
        return re.sub("0x[0-9a-f]+", "", str(step(state)))  # addresses of functions

    assert traced(None) == traced(kn.Blueprint())


def test_taps_are_listed_in_the_order_of_the_step():
    model = ball()
    taps = kn.list_taps(model, contact=Impulse())
    assert [tap.name for tap in taps] == list(CATALOGUE)
    assert taps["contact/friction_force"].shape == (1, 2)
    assert "coefficient of sliding friction" in repr(taps)
    with pytest.raises(KeyError, match="there is no tap 'contacts'"):
        taps["contacts"]
    assert "contact/depth" not in [tap.name for tap in kn.list_taps(model, contact=None)]
    absent = {"contact/bias", "contact/softness"}  # springs aim at no speed and have a stiffness instead
    assert set(CATALOGUE) - {tap.name for tap in kn.list_taps(model, contact=Compliant())} == absent


SCENES = {
    "rigid": (ball, Impulse(restitution=0.3, mixing=1e-3), "add"),
    "springy": (ball, Compliant(), "add"),
    "factors": (lambda: robots.load("cartpole"), None, "scale"),
}
NO_EFFECT = ("control", "actuator/force", "link/wrench")  # factors of zero


@pytest.mark.parametrize("scene", SCENES)
def test_untrained_networks_everywhere_leave_the_physics_to_the_last_bit_and_have_gradients(scene):
    make, contact, mode = SCENES[scene]
    model = make()
    state = sliding(model) if contact else model.state(np.array([1.0, 2.0]), np.array([0.5, -0.3]))
    blueprint = everywhere(model, contact, mode)
    options = {"dt": DT, "steps": 3, "contact": contact}
    hybrid = jax.jit(lambda b: kn.rollout(model, state, blueprint=b, **options))(blueprint)
    plain = jax.jit(lambda: kn.rollout(model, state, **options))()
    np.testing.assert_array_equal(hybrid.q, plain.q)
    np.testing.assert_array_equal(hybrid.qd, plain.qd)

    def end(blueprint):
        run = kn.rollout(model, state, blueprint=blueprint, **options)
        return jnp.sum(run.q**2) + jnp.sum(run.qd)

    gradient = kn.native.jit(jax.grad(end))(blueprint)
    for name, _, augment in gradient:
        assert np.isfinite(augment.gain), name
        assert augment.gain != 0 or (mode == "scale" and name in NO_EFFECT), name


def test_modes():
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.0, 2.0]), np.array([0.5, -0.3]))

    class Two(eqx.Module):
        def __call__(self, x):
            return jnp.full(2, 2.0)

    def after(mode):
        blueprint = kn.Blueprint({"next/qd": kn.Augment(Two(), "qd", mode, zero_start=False)})
        return step(model, state, dt=DT, blueprint=blueprint).qd

    plain = step(model, state, dt=DT).qd
    np.testing.assert_allclose(after("add"), plain + 2, rtol=1e-15)
    np.testing.assert_allclose(after("scale"), 3 * plain, rtol=1e-15)
    np.testing.assert_array_equal(after("replace"), [2.0, 2.0])


def test_masses_of_a_blueprint_are_those_of_a_model():
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.0, 2.0]), np.array([0.5, -0.3]))

    class Heavier(eqx.Module):
        def __call__(self, x):
            return x

    doubled = eqx.tree_at(lambda m: m.inertia.mass, model, 2 * model.inertia.mass)
    blueprint = kn.Blueprint({"link/mass": kn.Augment(Heavier(), "link/mass", zero_start=False)})
    options = {"dt": DT, "steps": 20}
    ours = kn.rollout(model, state, blueprint=blueprint, **options)
    np.testing.assert_allclose(ours.q, kn.rollout(doubled, state, **options).q, rtol=1e-13)


def test_friction_of_a_blueprint_is_that_of_a_contact_model():
    model = ball()

    class Half(eqx.Module):
        def __call__(self, x):
            return jnp.full(1, 0.5)

    for kind in (Impulse, Compliant, InteriorPoint):
        blueprint = kn.Blueprint({"contact/friction": kn.Augment(Half(), "contact/slip", "replace")})
        options = {"dt": DT, "steps": 30, "native": True}
        ours = kn.rollout(model, sliding(model), contact=kind(), blueprint=blueprint, **options)
        wanted = kn.rollout(model, sliding(model), contact=kind(friction=0.5), **options)
        np.testing.assert_allclose(ours.qd, wanted.qd, atol=1e-9)


def test_a_network_on_the_friction_force_acts_only_where_a_contact_pushes():
    model = ball()

    class Push(eqx.Module):
        def __call__(self, x):
            return jnp.array([3.0, 0.0])

    blueprint = kn.Blueprint({"contact/friction_force": kn.Augment(Push(), "contact/depth", zero_start=False)})
    free = kn.State(np.array([0, 0, 1.0, 1, 0, 0, 0]), np.zeros(6))
    options = {"dt": DT, "contact": Compliant(), "steps": 1, "native": True}
    plain, pushed = (lambda s, b=b: kn.rollout(model, s, blueprint=b, **options) for b in (None, blueprint))
    np.testing.assert_array_equal(pushed(free).qd, plain(free).qd)
    touching = sliding(model)
    change = (pushed(touching).qd - plain(touching).qd)[0]
    contact = plain(touching).contact
    assert contact is not None
    along = np.asarray(contact.frame[0, 0, 1])
    np.testing.assert_allclose(change[:3], DT * 3.0 / 1.0 * along, atol=1e-12)


def test_rows_are_shared_or_each_has_its_own():
    model = robots.load("arm")
    state = model.state(qd=np.linspace(-1, 1, model.nv))
    weights = np.linspace(0.1, 0.7, model.nv)
    shared = kn.Augment(Linear(jnp.array([[-0.3]])), "qd", share="rows", zero_start=False)
    each = kn.Augment(Linear(jnp.asarray(-weights)[:, None, None]), "qd", share="each", zero_start=False)
    some = kn.Augment(Linear(jnp.array([[-0.3]])), "qd", share="rows", rows=(1, 3), zero_start=False)
    for augment, damping in (
        (shared, 0.3 + 0 * weights),
        (each, weights),
        (some, 0.3 * np.isin(range(model.nv), (1, 3))),
    ):
        ours = step(model, state, dt=DT, blueprint=kn.Blueprint({"joint/force": augment}))
        wanted = step(eqx.tree_at(lambda m: m.damping, model, model.damping + damping), state, dt=DT)
        np.testing.assert_allclose(ours.qd, wanted.qd, rtol=1e-12)


def test_networks_read_the_stages_of_an_integrator():
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.0, 2.0]), np.array([0.5, -0.3]))
    damped = eqx.tree_at(lambda m: m.damping, model, model.damping + 0.3)
    drag = kn.Augment(Linear(-0.3 * jnp.eye(2)), "qd", zero_start=False)
    options = {"dt": 0.01, "steps": 20, "integrator": kn.RK4(), "contact": None, "native": True}
    ours = kn.rollout(model, state, blueprint=kn.Blueprint({"joint/force": drag}), **options)
    np.testing.assert_allclose(ours.q, kn.rollout(damped, state, **options).q, rtol=1e-12)


def remembered(state):
    assert state.memory is not None
    return state.memory


def test_a_step_remembers_for_the_next():
    model = robots.load("cartpole")
    read = kn.Augment(Linear(jnp.eye(2)), kn.previous("joint/acceleration"), zero_start=False)
    blueprint = kn.Blueprint({"joint/force": read})
    state = model.state(np.array([0.0, 1.0]))
    first = step(model, state, dt=DT, contact=None, blueprint=blueprint)
    np.testing.assert_array_equal(first.qd, step(model, state, dt=DT, contact=None).qd)
    acceleration = kn.tap_values(model, state, dt=DT, contact=None)["joint/acceleration"]
    np.testing.assert_allclose(remembered(first)["previous joint/acceleration"], acceleration, rtol=1e-14)
    both = kn.rollout(model, state, dt=DT, contact=None, steps=2, blueprint=blueprint)
    again = step(model, first, dt=DT, contact=None, blueprint=blueprint)
    np.testing.assert_allclose(both.qd[-1], again.qd, rtol=1e-14)
    kept, wanted = (remembered(state)["previous joint/acceleration"] for state in (both.last, again))
    np.testing.assert_allclose(kept, wanted, rtol=1e-14)


def test_a_recurrent_network_is_carried_through_a_rollout():
    model = robots.load("cartpole")
    blueprint = kn.Blueprint({"next/qd": kn.Augment(Counter(jnp.ones(())), "qd", "replace")})
    run = kn.rollout(model, model.state(), dt=DT, steps=4, blueprint=blueprint)
    np.testing.assert_array_equal(run.qd[:, 0], [0, 1, 2, 3])
    more = kn.rollout(model, run.last, dt=DT, steps=2, blueprint=blueprint)
    np.testing.assert_array_equal(more.qd[:, 0], [4, 5])
    rows = kn.Blueprint({"next/qd": kn.Augment(Counter(jnp.ones(())), "qd", "replace", share="rows")})
    np.testing.assert_array_equal(
        kn.rollout(model, model.state(), dt=DT, steps=4, blueprint=rows).qd[:, 1], [0, 1, 2, 3]
    )


def test_time_and_numbers_are_inputs():
    model = robots.load("cartpole")
    push = kn.Augment(Linear(jnp.array([[2.0, 0.0], [0.0, 0.0]])), ("time", 5.0), "replace")
    run = kn.rollout(model, model.state(), dt=0.5, steps=3, blueprint=kn.Blueprint({"next/qd": push}))
    np.testing.assert_allclose(run.qd[:, 0], [0.0, 1.0, 2.0])


def test_bounds_and_scales():
    model = robots.load("cartpole")
    augment = kn.Augment(
        Linear(jnp.eye(2)), "qd", "replace", input_offset=1.0, input_scale=2.0, output_scale=4.0, bound=3.0
    )
    state = model.state(qd=np.array([5.0, 1.0]))
    after = step(model, state, dt=DT, blueprint=kn.Blueprint({"next/qd": augment}))
    np.testing.assert_allclose(after.qd, 3 * np.tanh(np.array([8.0, 0.0]) / 3), rtol=1e-14)


def test_scales_come_from_recorded_values():
    model = robots.load("double_pendulum")
    states = kn.State(
        np.random.default_rng(0).normal(2.0, 3.0, (500, 2)), np.random.default_rng(1).normal(0, 5, (500, 2))
    )
    values = kn.native.vmap(lambda s: kn.tap_values(model, s, dt=DT))(states)
    network = Linear(jnp.ones((2, 5)))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, ("q", "qd", 7.0))}).scaled_to(values)
    augment = blueprint.augments["joint/force"][0]
    assert augment.input_offset is not None and augment.input_scale is not None
    np.testing.assert_allclose(augment.input_offset, [*states.q.mean(0), *states.qd.mean(0), 0.0], rtol=1e-12)
    np.testing.assert_allclose(augment.input_scale, [*states.q.std(0), *states.qd.std(0), 1.0], rtol=1e-12)
    with pytest.raises(ValueError, match="values lack qd"):
        kn.Blueprint({"joint/force": kn.Augment(network, "qd")}).scaled_to({"joint/force": values["joint/force"]})


def test_blueprints_compose():
    one = kn.Blueprint({"joint/force": kn.Augment(Linear(-jnp.eye(2)), "qd", zero_start=False)})
    two = kn.Blueprint({"next/qd": kn.Augment(Linear(jnp.eye(2)), "qd", zero_start=False)})
    assert set((one | two).augments) == {"joint/force", "next/qd"}
    twice = one | one
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.0, 2.0]), np.array([0.5, -0.3]))
    double = kn.Blueprint({"joint/force": kn.Augment(Linear(-2 * jnp.eye(2)), "qd", zero_start=False)})
    ours, wanted = (step(model, state, dt=DT, blueprint=b).qd for b in (twice, double))
    np.testing.assert_allclose(ours, wanted, rtol=1e-14)
    assert "joint/force  add   whole  Linear   4        qd" in repr(one)
    assert twice.size == 8
    restored = twice.with_weights(jax.tree.map(lambda w: 3 * w, twice.weights))
    np.testing.assert_array_equal(restored.augments["joint/force"][1].network.matrix, -3 * jnp.eye(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: kn.Blueprint({"joint/forc": kn.Augment(Linear(jnp.eye(2)), "q")}),
            "no tap 'joint/forc'; there are time",
        ),
        (lambda: kn.Augment(Linear(jnp.eye(2)), "qdd"), "no tap 'qdd'; there are time"),
        (lambda: kn.previous("qdd"), "no tap 'qdd'"),
        (lambda: kn.Augment(Linear(jnp.eye(2)), ()), "at least one tap"),
        (
            lambda: kn.Augment(Linear(jnp.eye(2)), "q", untyped("subtract")),
            "mode must be one of 'add', 'scale', 'replace'",
        ),
        (lambda: kn.Augment(Linear(jnp.eye(2)), "q", share=untyped("all")), "share must be one of"),
        (lambda: kn.Augment(untyped(3.0), "q"), "callable Equinox module, got float"),
        (lambda: kn.Augment(Linear(jnp.eye(2)), "q", "replace", zero_start=True), "no zero_start"),
        (lambda: kn.Blueprint({"time": kn.Augment(Linear(jnp.eye(2)), "q")}), "time can be read, not changed"),
        (lambda: kn.Blueprint({"q": untyped(Linear(jnp.eye(2)))}), "needs kn.Augment"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"contact/impulse": ((2, 2), "qd")}, "this step has no contact/impulse; it has time, q, qd, control"),
        (
            {"qd": ((2, 2), "joint/force")},
            r"'joint/force' is not yet known .*known: time, q.*kn.previous\('joint/force'\)",
        ),
        (
            {"joint/force": ((3, 2), "qd")},
            r"'joint/force' of shape \(2,\) with inputs qd \(2,\): .*must give 2 .* gave 3",
        ),
        ({"joint/force": ((2, 3), "qd")}, r"'joint/force' of shape \(2,\) with inputs qd \(2,\)"),
    ],
)
def test_what_does_not_fit_a_step_is_refused_by_name(parts, message):
    model = robots.load("double_pendulum")
    blueprint = kn.Blueprint(
        {name: kn.Augment(Linear(jnp.ones(shape)), inputs) for name, (shape, inputs) in parts.items()}
    )
    with pytest.raises(ValueError, match=message):
        kn.step(model, model.state(), dt=DT, blueprint=blueprint)
