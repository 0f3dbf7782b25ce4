"""Small scenes and impulse problems that contact tests share."""

import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact.interior_problem import Problem
from knuckle.contact.laws import Coulomb
from knuckle.contact.system import System

GROUND = [kn.shapes.plane(name="ground")]
UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
ROD = (1 / 12, 1 / 12, 1e-3)  # moments of a rod of 1 m and 1 kg


def ball(radius: float = 0.1, gravity: float = 9.81, friction: float = 0.5, mass: float = 1.0) -> kn.Model:
    """A solid sphere over the ground."""
    shape = kn.shapes.sphere(radius, friction=(friction,), name="ball")
    ground = [kn.shapes.plane(friction=(friction,), name="ground")]
    link = kn.Link("ball", joints=kn.free(), mass=mass, shapes=shape)
    return kn.build([link], gravity=(0, 0, -gravity), world_shapes=ground)


def boxes(count: int, half: float = 0.5, friction: float = 0.5, gravity=(0.0, 0.0, -9.81)) -> kn.Model:
    """Equal cubes of 1 kg, free, and the ground."""
    links = [
        kn.Link(f"box{i}", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(half, half, half, friction=(friction,)))
        for i in range(count)
    ]
    return kn.build(links, gravity=gravity, world_shapes=[kn.shapes.plane(friction=(friction,))])


def pose(position, quaternion=UPRIGHT) -> np.ndarray:
    return np.concatenate([position, quaternion])


def block(F: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Rows of a contact frame F at p for a free body's (linear, angular) velocity."""
    cross = np.array([[0, -p[2], p[1]], [p[2], 0, -p[0]], [-p[1], p[0], 0]])
    return np.hstack([F, -F @ cross])


def as_problem(J: np.ndarray, inverse_mass: np.ndarray, v: np.ndarray, friction, mixing: float = 1e-8) -> Problem:
    A = (J * inverse_mass) @ J.T
    scale = np.repeat(np.diag(A).reshape(-1, 3).mean(1), 3)
    none = jnp.zeros(0)
    return Problem(jnp.asarray(A + mixing * np.diag(scale)), jnp.asarray(J @ v), jnp.asarray(friction), none, none)


def random_contacts(rng: np.random.Generator, bodies: int, contacts: int, mass_ratio: float = 1.0) -> Problem:
    """Free bodies with contacts at random points; redundant where there are more rows than freedoms."""
    masses = mass_ratio ** rng.uniform(0, 1, bodies)
    inverse = np.concatenate([[1 / m] * 3 + [1 / (m * rng.uniform(0.05, 0.2))] * 3 for m in masses])
    J = np.zeros((3 * contacts, 6 * bodies))
    for c in range(contacts):
        F = np.linalg.qr(rng.normal(size=(3, 3)))[0].T
        a, b = rng.choice(np.arange(-1, bodies), 2, replace=False)
        for body, sign in ((a, 1), (b, -1)):
            if body >= 0:
                J[3 * c : 3 * c + 3, 6 * body : 6 * body + 6] = sign * block(F, 0.5 * rng.normal(size=3))
    return as_problem(J, inverse, rng.normal(size=6 * bodies), rng.uniform(0.2, 1.0, contacts))


def stack(rng: np.random.Generator, count: int, mass_ratio: float = 1.0, kick: float = 0.3) -> Problem:
    """Kicked cubes on each other and on the ground, four contacts each; the top one has `mass_ratio` times the mass."""
    masses, half = mass_ratio ** np.linspace(0, 1, count), 0.5
    inverse = np.concatenate([[1 / m] * 3 + [1.5 / (m * half**2)] * 3 for m in masses])
    F = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0.0]])
    rows = []
    for i in range(count):
        for x, y in ((-half, -half), (-half, half), (half, -half), (half, half)):
            row = np.zeros((3, 6 * count))
            row[:, 6 * i : 6 * i + 6] = block(F, np.array([x, y, -half]))
            if i:
                row[:, 6 * i - 6 : 6 * i] = -block(F, np.array([x, y, half]))
            rows.append(row)
    v = kick * rng.normal(size=6 * count)
    v[2::6] -= 9.81e-3
    return as_problem(np.vstack(rows), inverse, v, np.full(4 * count, 0.5))


def as_system(problem: Problem) -> System:
    """Contacts only, on the true cone."""
    return System.of_matrix(problem.A, problem.b, (Coulomb(problem.friction),))


def planar_chain() -> kn.Model:
    """Hinges about y with a limit, dry friction and a tie, and a ball at the tip over the ground."""
    links = [
        kn.Link("base", joints=kn.prismatic("x", friction=0.4), mass=1.0, position=(0, 0, 1.2)),
        kn.Link("a", "base", kn.revolute("y", lower=-0.2, upper=0.35), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
        kn.Link(
            "b",
            "a",
            kn.revolute("y"),
            position=(0, 0, -0.6),
            mass=1.0,
            com=(0, 0, -0.3),
            inertia=ROD,
            shapes=kn.shapes.sphere(0.1, position=(0, 0, -0.6), friction=(0.6,)),
        ),
        kn.Link("c", "base", kn.revolute("y"), mass=0.5, com=(0, 0, -0.5), inertia=ROD),
    ]
    tie = kn.Mimic("c_joint", "b_joint", (0.1, 0.5, 0.2, 0, 0))
    return kn.build(links, world_shapes=[kn.shapes.plane(friction=(0.6,))], equalities=[tie])
