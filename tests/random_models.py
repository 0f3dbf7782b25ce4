"""Random mechanisms that could exist: every kind of joint, several joints on a body, inertias of real bodies.

A skeleton (who hangs on whom, by which joints) is drawn apart from the numbers, so that many models share one compiled
function: stack them and `jax.vmap`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

import knuckle as kn
from knuckle.model.description import Actuator, Joint, JointKind
from knuckle.model.joints import neutral

KINDS: tuple[JointKind, ...] = ("revolute", "prismatic", "planar", "ball")
QUATERNION_KINDS: tuple[JointKind, ...] = ("ball", "free")

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time


@dataclass(frozen=True)
class Body:
    """A link of a skeleton: the number of its parent (-1: the world) and the kinds of its joints."""

    parent: int
    joints: tuple[JointKind, ...]


Skeleton = tuple[Body, ...]


def random_skeleton(rng: np.random.Generator, bodies: int, floating: bool) -> Skeleton:
    """A tree of bodies; the first is the root, one in three of the others moves by two joints."""
    first = Body(-1, ("free",) if floating else (_kind(rng),))
    return (first, *(Body(int(rng.integers(0, i)), _joints(rng)) for i in range(1, bodies)))


def chain(kinds: tuple[JointKind, ...]) -> Skeleton:
    """Bodies one after the other, one joint each."""
    return tuple(Body(i - 1, (kind,)) for i, kind in enumerate(kinds))


def _kind(rng: np.random.Generator) -> JointKind:
    return KINDS[int(rng.integers(len(KINDS)))]


def _joints(rng: np.random.Generator) -> tuple[JointKind, ...]:
    if rng.random() < 2 / 3:
        return (_kind(rng),)
    return ("prismatic", "revolute") if rng.random() < 0.5 else ("revolute", "revolute")


def random_moment(rng: np.random.Generator, mass: float) -> np.ndarray:
    """Central inertia of a random ellipsoid of the given mass, randomly turned: obeys the triangle inequality."""
    second = mass * np.diag(rng.uniform(0.02, 0.3, 3) ** 2)
    R = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turned = R @ (np.trace(second) * np.eye(3) - second) @ R.T
    return 0.5 * (turned + turned.T)


def random_quaternion(rng: np.random.Generator, *shape: int) -> np.ndarray:
    q = rng.normal(size=(*shape, 4))
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def random_model(
    rng: np.random.Generator, skeleton: Skeleton, *, conservative: bool = False, actuated: bool = False
) -> kn.Model:
    """Numbers for a skeleton; a conservative model has springs and rotors but neither damping nor friction."""
    links = [_link(rng, number, body, conservative) for number, body in enumerate(skeleton)]
    actuators = _actuators(rng, links) if actuated else ()
    return kn.build(links, gravity=rng.normal(size=3) * 5, actuators=actuators)


def _link(rng: np.random.Generator, number: int, body: Body, conservative: bool) -> kn.Link:
    mass = rng.uniform(0.2, 5.0)
    return kn.Link(
        f"body{number}",
        parent="world" if body.parent < 0 else f"body{body.parent}",
        joints=[_joint(rng, kind, f"joint{number}_{k}", conservative) for k, kind in enumerate(body.joints)],
        position=rng.normal(size=3) * 0.5,
        rotation=random_quaternion(rng),
        mass=mass,
        com=rng.normal(size=3) * 0.2,
        inertia=random_moment(rng, mass),
        frames=[kn.Frame(f"tip{number}", rng.normal(size=3), random_quaternion(rng))],
    )


def _joint(rng: np.random.Generator, kind: JointKind, name: str, conservative: bool) -> Joint:
    plain = kind in ("revolute", "prismatic")
    joint = Joint(
        kind,
        name,
        axis=rng.normal(size=3),
        anchor=rng.normal(size=3) * 0.2,
        reference=rng.normal() if plain else None,
        rest=rng.normal() if plain else None,
        stiffness=0.0 if kind == "free" else rng.uniform(0.0, 20.0),
        armature=rng.uniform(0.0, 0.2),
    )
    return joint if conservative else replace(joint, damping=rng.uniform(0, 2), friction=rng.uniform(0, 0.5))


def _actuators(rng: np.random.Generator, links: list[kn.Link]) -> list[Actuator]:
    """A motor, a position servo or a velocity servo on each joint but the free ones."""
    names = [(j.name, j.kind) for link in links for j in link.all_joints() if j.kind != "free"]
    sizes = {"planar": 3, "ball": 3}
    makers = (
        lambda joint, gear: kn.motor(joint, gear=gear),
        lambda joint, gear: kn.position_servo(joint, kp=rng.uniform(1, 50), kv=rng.uniform(0, 2), gear=gear),
        lambda joint, gear: kn.velocity_servo(joint, kv=rng.uniform(0.5, 5), gear=gear),
    )
    return [makers[i % 3](name, rng.uniform(0.5, 2.0, sizes.get(kind, 1))) for i, (name, kind) in enumerate(names)]


def random_q(rng: np.random.Generator, model: kn.Model) -> np.ndarray:
    """Coordinates anywhere: angles over a turn, quaternions uniform."""
    q = rng.uniform(-3, 3, model.nq)
    for kind in QUATERNION_KINDS:
        for row in model.topology.q_index(kind):
            q[row[-4:]] = random_quaternion(rng)
    return q


def random_state(rng: np.random.Generator, model: kn.Model) -> kn.State:
    return model.state(random_q(rng, model), rng.normal(size=model.nv))


def special_states(model: kn.Model) -> list[kn.State]:
    """States where formulas like to break: straight, half a turn, identity of either sign; at rest and moving."""
    straight = neutral(model.topology)
    turned, flipped = straight.copy(), straight.copy()
    for kind in QUATERNION_KINDS:
        for row in model.topology.q_index(kind):
            turned[row[-4:]] = (0.0, 0.0, 1.0, 0.0)
            flipped[row[-4:]] = (-1.0, 0.0, 0.0, 0.0)
    speeds = np.zeros(model.nv), np.ones(model.nv)
    return [model.state(q, qd) for q in (straight, turned, flipped, np.array(model.reference)) for qd in speeds]


def stack(trees: list):
    """Pytrees of one structure as one with a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
