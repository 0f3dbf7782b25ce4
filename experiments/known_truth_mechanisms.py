"""Mechanisms of which `known_truth.py` knows the truth: what is free, how they move, and noisy logs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import lfilter

import knuckle as kn
from knuckle import native, robots, sysid
from knuckle.contact import Compliant
from knuckle.model.joints import retract
from knuckle.sysid.parameters import choose

PERIOD = 0.01  # [s]
FINE = 8  # steps of the truth in a period
WIDTH = 0.2  # of the truth around the description, relative
INERTIA = ["*.mass", "*.com", "*.inertia"]
LEGS_DAMPING = ["*_roll.damping", "*_pitch.damping", "*_knee.damping"]

Random = np.random.Generator


@dataclass(frozen=True)
class Mechanism:
    """A robot, what is fitted of it, how it is moved and measured, and what is compared with the truth.

    Where it touches something, logs are made with the integrator and step of the fit, whose error is of first order.
    """

    name: str
    about: str
    model: kn.Model
    free: list[str]
    noise: float | tuple[float, ...]  # of the coordinates [rad or m], one for all or one per degree of freedom
    runs: int  # recordings
    seconds: float
    quantities: Callable[..., jax.Array]  # of the model, and of the contact model where there is one
    names: tuple[str, ...]
    drive: Callable[[Random, int], np.ndarray]  # references or controls over samples
    start: Callable[[Random], np.ndarray]
    speed: Callable[[Random], np.ndarray] | None = None  # at the start; None: at rest
    tracked: bool = False  # the drive is a path, which motors follow by torques
    contact: Compliant | None = None
    options: dict = field(default_factory=dict)  # of the fit
    truths: int = 200  # that a study draws
    colour: float = 0.0  # correlation of the noise of neighbouring samples
    late: int = 0  # steps of the truth that a stamp may be early or late
    lost: float = 0.0  # share of samples that are not in the log


class Truth(NamedTuple):
    """What logs are made of."""

    model: kn.Model
    contact: Compliant | None


def double_pendulum() -> Mechanism:
    model, free = robots.load("double_pendulum"), ["*.mass", "*.damping"]
    return Mechanism(
        "double pendulum", "nothing drives it; masses and damping free", model, free, 5e-4, 3, 3.0,
        *parameters(model, free), lambda rng, n: np.zeros((n, 0)), lambda rng: rng.uniform(-2, 2, 2),
    )  # fmt: skip


def double_pendulum_coloured() -> Mechanism:
    """The same with noise that is not white."""
    about = "the same; noise correlates by 0.9 from sample to sample"
    return replace(double_pendulum(), name="double pendulum, coloured noise", about=about, colour=0.9)


def double_pendulum_uneven() -> Mechanism:
    """The same with stamps that are not even."""
    about = "the same; stamps up to a quarter of a period early or late, and one sample in ten lost"
    return replace(double_pendulum(), name="double pendulum, uneven stamps", about=about, late=2, lost=0.1)


def cartpole() -> Mechanism:
    model, free = robots.load("cartpole"), [*INERTIA, "*.damping"]
    return Mechanism(
        "cartpole", "a motor pushes the cart; all inertia and damping free", model, free, 5e-4, 3, 3.0,
        *base_and_damping(model, free),
        lambda rng, n: np.repeat(4 * rng.normal(size=(n // 10 + 1, 1)), 10, axis=0)[:n],
        lambda rng: np.array([0.0, rng.uniform(-3, 3)]),
    )  # fmt: skip


def arm() -> Mechanism:
    model, free = robots.load("arm"), [*INERTIA, "*.damping"]
    return Mechanism(
        "arm", "seven motors, torques known; all inertia and damping free", model, free, 1e-4, 2, 3.0,
        *base_and_damping(model, free), waves(np.array([1.2, 0.8, 1.2, 1.0, 1.2, 1.0, 1.2])),
        lambda rng: np.zeros(7), tracked=True, options={"segment": 0.2},
    )  # fmt: skip


def quadruped() -> Mechanism:
    """In flight, where nothing is touched; its trunk carries a load that is not known."""
    model, free = robots.load("quadruped"), ["*.mass", "trunk.com", "trunk.inertia", *LEGS_DAMPING]
    stance = np.asarray(model.keyframes["standing"])
    wave = waves(np.tile([1.0, 1.4, 1.4], 4), rates=(1.0, 1.7, 2.6, 3.7), rise=0.1)
    return Mechanism(
        "quadruped", "flies, servos move its legs; masses, all inertia of the trunk and damping of the joints free",
        model, free, 1e-4, 3, 1.0, *parameters(model, free),
        lambda rng, n: stance[7:] + wave(rng, n), lambda rng: stance,
        speed=lambda rng: np.concatenate([rng.normal(size=3) * 0.5, rng.normal(size=3) * 3, np.zeros(12)]),
        options={"segment": 1.0},
    )  # fmt: skip


def quadruped_all() -> Mechanism:
    """The same with nothing known for sure."""
    found, free = quadruped(), [*INERTIA, *LEGS_DAMPING]
    quantities, names = base_and_damping(found.model, free)
    about = "flies, servos move its legs; all inertia and damping of the joints free"
    return replace(
        found, name="quadruped, all free", about=about, free=free, runs=3, quantities=quantities, names=names, truths=20
    )


def quadruped_standing() -> Mechanism:
    """On its feet, which slide a little."""
    model, free = robots.load("quadruped"), ["trunk.mass", "contact.friction", *LEGS_DAMPING]
    stance, contact = np.asarray(model.keyframes["standing"]), Compliant(friction=0.8)
    wave = waves(np.full(12, 0.36), rates=(0.7, 1.3, 2.1, 3.4), rise=0.2)
    return Mechanism(
        "quadruped on its feet", "servos move it; mass of the trunk, friction and damping of the joints free", model,
        free, 1e-4, 3, 1.0, *parameters(model, free, contact), lambda rng, n: stance[7:] + wave(rng, n),
        lambda rng: stance, contact=contact, options={"contact": contact, "segment": 1.0, "step": PERIOD / FINE},
    )  # fmt: skip


THROWN = """<mujoco model="thrown body"><worldbody><body name="body"><freejoint name="base"/>
<inertial pos="0.02 -0.01 0.03" mass="1" diaginertia="0.004 0.006 0.009"/></body></worldbody></mujoco>"""


def free_body() -> Mechanism:
    """Thrown, and seen by motion capture, whose positions in metres are ten times as exact as its angles in radians."""
    model, free = kn.load(THROWN), ["body.com", "body.inertia"]

    def quantities(model: kn.Model, contact: Compliant | None = None) -> jax.Array:
        moment = jnp.asarray(model.inertia.moment)[0]
        return jnp.concatenate([jnp.asarray(model.inertia.com)[0], moment[1:3] / moment[0]])

    return Mechanism(
        "free body", "thrown, seen by motion capture; centre of mass and moments of inertia free", model, free,
        (1e-3,) * 3 + (1e-2,) * 3, 4, 1.0, quantities,
        ("body.com.x", "body.com.y", "body.com.z", "body.Iyy/Ixx", "body.Izz/Ixx"), lambda rng, n: np.zeros((n, 0)),
        lambda rng: np.concatenate([rng.normal(size=3), *[q / np.linalg.norm(q) for q in [rng.normal(size=4)]]]),
        speed=lambda rng: np.concatenate([rng.normal(size=3), 8 * rng.normal(size=3)]), options={"segment": 1.0},
    )  # fmt: skip


MECHANISMS = {
    "double_pendulum": double_pendulum,
    "double_pendulum_coloured": double_pendulum_coloured,
    "double_pendulum_uneven": double_pendulum_uneven,
    "cartpole": cartpole,
    "arm": arm,
    "free_body": free_body,
    "quadruped": quadruped,
    "quadruped_standing": quadruped_standing,
    "quadruped_all": quadruped_all,
}


def waves(size: np.ndarray, rates: Sequence[float] = (0.2, 0.45, 0.8, 1.25), rise: float = 0.5):
    """Paths that begin at rest: sums of sines of these rates [Hz] with random phases, of so many radians."""

    def path(rng: Random, n: int) -> np.ndarray:
        t, found = PERIOD * np.arange(n), np.zeros((n, len(size)))
        for f in rates:
            found += (
                rng.normal(size=len(size))
                / (1 + 2 * f)
                * np.sin(2 * np.pi * f * t[:, None] + rng.uniform(0, 6.3, len(size)))
            )
        return size * found * np.minimum(t / rise, 1)[:, None] ** 2

    return path


def parameters(model: kn.Model, free: Sequence[str], contact: Compliant | None = None):
    """What is free, entry by entry, by a function of the models; and names of the entries."""
    chosen = choose(model, free, contact)

    def values(model: kn.Model, contact: Compliant | None = None) -> jax.Array:
        found = [p.family.find(contact) if p.of_contact else p.family.find(model)[p.place] for p in chosen]
        return jnp.concatenate([jnp.ravel(jnp.asarray(value)) for value in found])

    return values, chosen.entries


def base_and_damping(model: kn.Model, free: Sequence[str]):
    """Base parameters and damping, by a function of the model; and their names."""
    base = sysid.base_parameters(model)
    damping, names = parameters(model, [pattern for pattern in free if pattern.endswith("damping")])
    return lambda m, contact=None: jnp.concatenate([base(m), damping(m)]), (*base.words()[: len(base)], *names)


def drawn(mechanism: Mechanism, rng: Random) -> Truth:
    """A truth near the description."""
    model, body, topology = mechanism.model, mechanism.model.inertia, mechanism.model.topology

    def factor(owners: Sequence[str], family: str) -> np.ndarray:
        return np.where(is_free(owners, family), rng.uniform(1 - WIDTH, 1 + WIDTH, size=len(owners)), 1.0)

    def is_free(owners: Sequence[str], family: str) -> np.ndarray:
        return np.array([any(fnmatchcase(f"{o}.{family}", p) for p in mechanism.free) for o in owners])

    joint = np.repeat(np.arange(len(topology.joint_names)), np.asarray(topology.v_stop) - np.asarray(topology.v_start))
    moved = is_free(topology.link_names, "com")[:, None] * 0.01 * rng.normal(size=np.shape(body.com))
    damping = np.where(is_free(topology.joint_names, "damping")[joint], np.maximum(model.damping, 0.02), model.damping)
    changed = (
        np.asarray(body.mass) * factor(topology.link_names, "mass"),
        np.asarray(body.com) + moved,
        np.asarray(body.moment) * factor(topology.link_names, "inertia")[:, None],
        damping * factor(topology.joint_names, "damping")[joint],
    )
    places = lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment, m.damping)  # noqa: E731
    contact = mechanism.contact
    if contact is not None:
        contact = replace(contact, friction=float(contact.friction * factor(["contact"], "friction")[0]))
    return Truth(eqx.tree_at(places, model, changed), contact)


def prior_deviations(mechanism: Mechanism) -> np.ndarray:
    """How far the quantities may be from the description before any data."""
    free = choose(mechanism.model, mechanism.free, mechanism.contact)
    slope = jax.jacfwd(lambda z: mechanism.quantities(*free.applied(mechanism.model, mechanism.contact, z)))
    J = np.asarray(slope(jnp.zeros(free.size)))
    return np.sqrt(np.sum((J * free.deviation) ** 2, axis=1))


def coloured(white: np.ndarray, correlation: float) -> np.ndarray:
    """White noise made an autoregression over time, as large as it was."""
    if not correlation:
        return white
    scaled = np.concatenate([white[:1], np.sqrt(1 - correlation**2) * white[1:]])
    return np.asarray(lfilter([1.0], [1.0, -correlation], scaled, axis=0))


class Log:
    """Makes noisy logs of a mechanism."""

    def __init__(self, mechanism: Mechanism):
        self.mechanism = mechanism
        self.move = native.jit(self._move)
        self.measure = native.jit(jax.vmap(lambda q, off: jnp.asarray(retract(mechanism.model, q, off))))

    def _move(self, truth: Truth, q, qd, drive):
        """Coordinates at all steps, and controls at the samples, held in between."""
        integrator = kn.RK4() if truth.contact is None else kn.SemiImplicitEuler()
        options = {"dt": PERIOD / FINE, "steps": FINE, "integrator": integrator, "contact": truth.contact}

        def sample(state, target):
            u = self._torque(state, target) if self.mechanism.tracked else target
            run = kn.rollout(truth.model, state, jnp.repeat(u[None], FINE, axis=0), **options)
            return run.last, (jnp.concatenate([state.q[None], run.q[:-1]]), u)

        _, (q, u) = jax.lax.scan(sample, kn.State(q, qd), drive)
        return q.reshape(-1, q.shape[-1]), u

    def _torque(self, state, target):
        """Towards a path by the description's inverse dynamics."""
        model = self.mechanism.model
        qdd = 150 * (target - state.q) - 25 * state.qd
        return kn.dynamics.rnea(model, state.q, state.qd, qdd)

    def __call__(self, truth: Truth, rng: Random) -> list[sysid.Recording]:
        m, found, n = self.mechanism, [], round(self.mechanism.seconds / PERIOD)
        for number in range(m.runs):
            start, speed = m.start(rng), np.zeros(m.model.nv) if m.speed is None else m.speed(rng)
            q, u = (np.asarray(a) for a in self.move(truth, start, speed, m.drive(rng, n)))
            noise = np.array(m.noise) * coloured(rng.normal(size=(n, m.model.nv)), m.colour)
            steps, there = self._sampled(rng, n)
            noisy = np.asarray(self.measure(q[steps], noise))
            channels = {"q": noisy[there], "control": u[there] if m.model.nu else None}
            found.append(sysid.Recording.of(m.model, PERIOD / FINE * steps[there], **channels, name=f"run {number}"))
        return found

    def _sampled(self, rng: Random, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which samples are taken, and which of these are in the log."""
        late, lost = self.mechanism.late, self.mechanism.lost
        steps, there = FINE * np.arange(n), np.ones(n, bool)
        if late:
            steps[1:-1] += rng.integers(-late, late + 1, size=n - 2)
        if lost:
            there[rng.choice(np.arange(1, n - 1), size=round(lost * n), replace=False)] = False
        return steps, there
