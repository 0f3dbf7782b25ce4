"""Laws of energy and momentum hold whatever the weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import simpson

import knuckle as kn
from knuckle import native, neural, robots
from knuckle.dynamics import crba, energy
from tests.neural.examples import KEY, PENDULUM, START, trained

QUADRUPED = robots.load("quadruped")
TREE = kn.build(  # quaternions of a free and a ball joint among plain coordinates
    [
        kn.Link("slide", joints=kn.prismatic("x"), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("socket", "slide", joints=kn.ball(), mass=1.0, inertia=(1, 2, 2.5)),
        kn.Link("hinge", "socket", joints=kn.revolute("y"), mass=1.0, inertia=(1, 1, 1)),
        kn.Link("loose", joints=kn.free(), mass=2.0, inertia=(1, 2, 2.5)),
    ]
)


def random_state(model: kn.Model, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    start = np.asarray(kn.retract(model, jnp.asarray(model.reference), jnp.asarray(rng.normal(size=model.nv))))
    return start, rng.normal(size=model.nv)


def random_weights(network, count: int, seed: int):
    """Many networks in one, with weights of all sizes from 1e-3 to 1e2."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        size = 10.0 ** rng.uniform(-3, 2, (count, *[1] * jnp.ndim(leaf)))
        return jnp.asarray(size * rng.normal(size=(count, *jnp.shape(leaf))))

    return jax.tree.map(draw, network)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_no_power_is_given_at_half_a_million_states_and_weights(structure: str):
    """Exactly none by `dissipation`; by force times speed, as rounded, no more than a few last digits of its terms."""
    network = neural.Dissipative(2, (3,), structure=structure, key=KEY)
    rng, weights, states = np.random.default_rng(3), 5000, 100
    many = random_weights(network, weights, 4)
    x = jnp.asarray(10.0 ** rng.uniform(-6, 3, (weights, states, 1)) * rng.normal(size=(weights, states, 4)))

    @jax.jit
    def powers(many, x):
        def one(network, x):
            D, qd = network.damping_matrix(x), x[2:]
            return network.dissipation(x), jnp.dot(qd, network(x)), jnp.abs(qd) @ jnp.abs(D) @ jnp.abs(qd), D

        return eqx.filter_vmap(lambda network, xs: jax.vmap(lambda x: one(network, x))(xs))(many, x)

    exact, rounded, size, D = powers(many, x)
    assert exact.shape == (weights, states) and np.all(np.isfinite(exact)) and np.all(exact <= 0)
    assert np.mean(exact < 0) > 0.99
    # |L| |L^T| may exceed |L L^T| where its terms cancel: their diagonal is the same, and bounds them
    terms = np.sqrt(np.einsum("...ii->...i", D)) @ np.ones(2)
    bound = 8 * np.finfo(float).eps * (np.asarray(size) + (terms * np.abs(x[..., 2:]).max(-1)) ** 2)
    assert np.all(rounded <= (bound if structure == "full" else 0))


def test_the_gain_trains_from_zero_and_from_either_sign():
    network = neural.Dissipative(2, (3,), key=KEY)
    x = np.array([0.1, 0.2, 0.5, -0.4])
    slope = jax.grad(lambda n: n.dissipation(x))

    def with_gain(gain):
        return eqx.tree_at(lambda n: n.lost.gain, network, jnp.asarray(gain))

    assert slope(network).lost.gain == pytest.approx(-(0.25 + 0.16))  # L begins as the identity
    assert slope(with_gain(-0.3)).lost.gain == pytest.approx(0.41)
    np.testing.assert_array_equal(with_gain(-0.3)(x), with_gain(0.3)(x))


def test_coordinates_move_as_the_models():
    """Central differences with h = 1e-6 of exact steps: errors of h^2 and rounding over h, about 1e-10."""
    at = neural.Coordinates.of(TREE)
    assert (at.nq, at.nv, at.quaternions) == (TREE.nq, TREE.nv, ((1, 1), (9, 8)))
    q, qd = (jnp.asarray(a) for a in random_state(TREE, 0))

    def checks(q, qd):
        h = 1e-6
        moved = (kn.retract(TREE, q, h * qd) - kn.retract(TREE, q, -h * qd)) / (2 * h)
        columns = jax.vmap(lambda e: at.rate(q, e))(jnp.eye(at.nv))
        steps = [at.moved(q, qd), kn.retract(TREE, q, qd), at.moved(q, 0 * qd), q, at.moved(q, 1e-5 * qd)]
        return at.rate(q, qd), moved, at.pulled(q, jnp.cos(q)), columns @ jnp.cos(q), steps

    rate, moved, pulled, transposed, steps = native.jit(checks)(q, qd)
    np.testing.assert_allclose(rate, moved, atol=1e-9)
    np.testing.assert_allclose(pulled, transposed, atol=1e-14)
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-14)
    np.testing.assert_allclose(steps[2], steps[3], atol=1e-15)
    np.testing.assert_allclose((np.asarray(steps[4]) - q) / 1e-5, rate, atol=1e-4)


def test_networks_see_no_jump_where_a_quaternion_or_an_angle_goes_round():
    at = neural.Coordinates.of(TREE, periodic=True)
    assert at.periodic == (5,)
    q, _ = random_state(TREE, 1)
    other = q.copy()
    other[1:5] *= -2.0  # the same turn, of another length
    other[5] += 2 * np.pi
    np.testing.assert_allclose(at.seen(jnp.asarray(q)), at.seen(jnp.asarray(other)), atol=1e-14)


@pytest.mark.parametrize("model", [PENDULUM, TREE, QUADRUPED], ids=lambda model: model.name)
def test_a_potential_changes_by_minus_its_forces_power(model: kn.Model):
    """dV/dt along q' = G qd is -qd tau; and by differences along the model's own steps, good to about 1e-9."""
    network = trained(neural.Conservative(neural.Coordinates.of(model, periodic=True), (5,), key=KEY))
    q, qd = (jnp.asarray(a) for a in random_state(model, 2))

    def rates(q, qd):
        h = 1e-6
        ends = [network.potential(kn.retract(model, q, s * qd)) for s in (h, -h)]
        along = jax.jvp(network.potential, (q,), (network.coordinates.rate(q, qd),))[1]
        return -jnp.dot(qd, network(q)), along, (ends[0] - ends[1]) / (2 * h)

    power, along, moved = native.jit(rates)(q, qd)
    assert abs(power) > 1e-3
    np.testing.assert_allclose(power, along, rtol=1e-12)
    np.testing.assert_allclose(power, moved, atol=1e-8)


def test_passive_is_potential_and_damping():
    network = trained(neural.Passive(TREE, (5,), key=KEY))
    q, qd = random_state(TREE, 3)
    x = jnp.concatenate([q, qd])

    def parts(x):
        slope = jax.grad(network.potential)(x)[: TREE.nq]
        tangent = network.coordinates.pulled(x[: TREE.nq], slope)
        D = network.damping_matrix(x)
        return network(x), -tangent - D @ x[TREE.nq :], D, network.dissipation(x)

    force, expected, D, power = native.jit(parts)(x)
    np.testing.assert_allclose(force, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(D, np.asarray(D).T, atol=1e-15)
    assert np.linalg.eigvalsh(D).min() > 0
    np.testing.assert_allclose(power, -qd @ np.asarray(D) @ qd, rtol=1e-12)


@pytest.mark.parametrize("mass_bound", [None, 0.3])
def test_a_learned_part_of_the_lagrangian_keeps_its_energy(mass_bound):
    """Force times speed is minus the rate of 1/2 qd dM qd + V, for any acceleration, quaternions too."""
    network = trained(neural.Lagrangian(TREE, (5,), mass_bound=mass_bound, key=KEY))
    q, qd = (jnp.asarray(a) for a in random_state(TREE, 4))
    qdd = jnp.asarray(np.random.default_rng(5).normal(size=TREE.nv))

    def rates(q, qd, qdd):
        def energy(q, qd):
            return network.energy(jnp.concatenate([q, qd, qdd] if mass_bound else [q, qd]))

        x = jnp.concatenate([q, qd, qdd] if mass_bound else [q, qd])
        rate = jax.jvp(energy, (q, qd), (network.coordinates.rate(q, qd), qdd))[1]
        return jnp.dot(qd, network(x)), -rate, network(x), network.mass_matrix(q)

    power, lost, force, dM = native.jit(rates)(q, qd, qdd)
    assert np.linalg.norm(force) > 1e-3 and abs(lost) > 1e-4
    np.testing.assert_allclose(power, lost, rtol=1e-11)
    limit = 0.3 if mass_bound else 1e-300
    assert np.linalg.eigvalsh(dM).min() > -1e-15 and np.linalg.eigvalsh(dM).max() < limit


def test_an_added_mass_is_felt_as_mass():
    """A constant dM on the pendulum is an armature: the motion converges to that of the heavier model with the step."""
    bound = 0.5 * float(np.linalg.eigvalsh(crba(PENDULUM, jnp.asarray(START.q))).min())
    network = neural.Lagrangian(PENDULUM, (2,), mass_bound=bound, magnetic=False, key=KEY)
    network = jax.tree.map(jnp.zeros_like, network)
    put = (jnp.asarray(1.0), jnp.asarray([2.0, 0, 0, 1.0]))
    network = eqx.tree_at(lambda n: (n.gain, n.added_mass.biases[-1]), network, put)
    dM = bound * np.diag([4.0, 1.0]) / 6
    heavier = eqx.tree_at(lambda m: m.armature, PENDULUM, PENDULUM.armature + np.diag(dM))
    inputs = ("q", "qd", kn.previous("joint/acceleration"))
    parts = kn.Blueprint({"joint/force": kn.Augment(network, inputs=inputs)})
    errors, shifts = [], []
    for steps in (250, 1000):

        def ends(steps=steps):
            runs = [(PENDULUM, parts), (heavier, None), (PENDULUM, None)]
            return [kn.rollout(m, START, dt=0.5 / steps, steps=steps, blueprint=b).q[-1] for m, b in runs]

        with_network, exact, without = (np.asarray(q) for q in native.jit(ends)())
        errors.append(np.abs(with_network - exact).max())
        shifts.append(np.abs(without - exact).max())
    assert shifts[1] > 0.01 and errors[1] < 0.02 * shifts[1]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)  # first order: a quarter of the step


@pytest.mark.parametrize("law", ["conservative", "passive", "free"])
@pytest.mark.parametrize("shared", [True, False])
def test_pair_forces_keep_momentum_and_the_laws_energy(law: str, shared: bool):
    n = 4
    network = trained(neural.PairForces(n, law=law, shared=shared, key=KEY), size=0.5)
    rng = np.random.default_rng(6)
    p, v = rng.normal(size=(n, 3)), rng.normal(size=(n, 6))
    p[1] = p[0]  # two origins that meet
    x = jnp.asarray(np.concatenate([p.ravel(), v.ravel()]) if law != "conservative" else p.ravel())
    wrench = np.asarray(native.jit(lambda x: network(x))(x)).reshape(n, 6)
    torque, force = wrench[:, :3], wrench[:, 3:]
    assert np.abs(force).max() > 1e-3 and np.all(np.isfinite(force))
    np.testing.assert_allclose(force.sum(0), 0, atol=1e-14)
    np.testing.assert_allclose((np.cross(p, force) + torque).sum(0), 0, atol=1e-14)
    if law == "free":
        return
    motion = jnp.concatenate([jnp.asarray(v[:, 3:].ravel()), jnp.zeros(x.size - 3 * n)])
    dissipation, rate = native.jit(lambda x: (network.dissipation(x), jax.jvp(network.potential, (x,), (motion,))[1]))(
        x
    )
    assert dissipation < 0 if law == "passive" else dissipation == 0
    np.testing.assert_allclose(np.sum(force * v[:, 3:]), dissipation - rate, rtol=1e-11)


def test_momentum_of_free_bodies_stays_in_a_rollout():
    """Two bodies in space that only feel each other; semi-implicit steps keep linear momentum to rounding."""
    body = {"mass": 1.5, "inertia": (0.1, 0.1, 0.1)}
    links = [kn.Link(name, joints=kn.free(), **body) for name in ("one", "two")]
    model = kn.build(links, gravity=(0, 0, 0))
    network = trained(neural.PairForces(2, key=KEY), size=1.0)
    parts = kn.Blueprint({"link/wrench": kn.Augment(network, inputs=("link/position", "link/velocity"))})
    q = np.concatenate([[0, 0, 0, 1, 0, 0, 0], [0.3, 0.1, 0, 1, 0, 0, 0]])
    start = kn.State(q, np.zeros(12))
    qd = np.asarray(native.jit(lambda: kn.rollout(model, start, dt=0.01, steps=100, blueprint=parts).qd)())
    assert np.abs(qd[-1, :3]).max() > 1e-3
    np.testing.assert_allclose(qd[:, :3] + qd[:, 6:9], 0, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: neural.Coordinates(4, 4, ((0, 0),)), "nq must be nv and one more for each quaternion"),
        (lambda: neural.Coordinates(10, 8, ((0, 0), (1, 0))), "lie apart within q and qd"),
        (lambda: neural.Coordinates(2, 2, (), (5,)), "periodic coordinates must be among"),
        (lambda: neural.Passive(2, structure="round", key=KEY), "structure must be 'full' or 'diagonal'"),
        (lambda: neural.Passive(2, key=KEY)(np.zeros(3)), "Passive takes a vector of 4 inputs"),
        (lambda: neural.Lagrangian(2, mass_bound=-1.0, key=KEY), "mass_bound must be positive"),
        (lambda: neural.PairForces(2, [(0, 2)], key=KEY), "two different links of the 2"),
        (lambda: neural.PairForces(2, law="any", key=KEY), "law must be one of conservative, passive, free"),
    ],
)
def test_what_does_not_fit_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_energy_with_the_networks_own_is_kept_less_what_is_dissipated():
    """With quaternions, over 1 s: the balance is off by the steps' first-order error, a quarter at a quarter of dt."""
    network = trained(neural.Passive(TREE, (5,), key=KEY))
    q, qd = random_state(TREE, 7)
    parts = kn.Blueprint({"joint/force": kn.Augment(network, inputs=("q", "qd"))})

    def balance(steps: int):
        run = kn.rollout(TREE, kn.State(q, qd), dt=1 / steps, steps=steps, blueprint=parts)
        states = jnp.concatenate([jnp.concatenate([q, qd])[None], jnp.concatenate([run.q, run.qd], axis=1)])

        def at(x):
            own = network.potential(x)
            return energy(TREE, x[: TREE.nq], x[TREE.nq :]) + own, network.dissipation(x)

        return jax.lax.map(at, states)

    errors = []
    for steps in (500, 2000):
        total, dissipation = (np.asarray(a) for a in native.jit(balance, static_argnums=0)(steps))
        assert total[-1] - total[0] < -1 and np.all(np.diff(total) < 0)
        errors.append(abs(simpson(dissipation, dx=1 / steps) - (total[-1] - total[0])))
    assert errors[1] < 0.01 * (total[0] - total[-1])
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
