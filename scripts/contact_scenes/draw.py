"""Random scenes: families of one topology each, contact models, and numbers drawn from the scene's own seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint
from knuckle.contact.resolve import ContactModel
from knuckle.model.geometry import Mesh, Shape

SPEEDS = {"flying": 3.0, "fast": 30.0}  # [m/s]
SITUATIONS = ("resting", "aligned", "coincident", "deep", "flying", "fast")
HULL = Mesh(np.random.default_rng(5).normal(size=(14, 3)) * 0.5, np.zeros((0, 3)))
TRIANGLE = [(-1.0, -0.8), (1.0, -0.7), (0.1, 1.0)]


DOFS = {"free": 6, "planar": 3, "hinge": 1, "slide": 1, "ball": 3}


class Body(NamedTuple):
    """A moving body: its shape, its joint, and the number of the body that it hangs on (-1: the world)."""

    shape: str
    joint: str = "free"
    parent: int = -1


class Family(NamedTuple):
    """Scenes of one topology: they share native code, and differ in numbers only."""

    bodies: tuple[Body, ...]
    world: tuple[str, ...] = ("plane",)
    tied: bool = False  # a point of the last body is connected to the world, near to where it is at first
    self_collision: bool = False


def _free(*shapes: str, world: tuple[str, ...] = ("plane",)) -> Family:
    return Family(tuple(map(Body, shapes)), world)


FAMILIES: dict[str, Family] = {
    "box": _free("box"),
    "sphere": _free("sphere"),
    "capsule": _free("capsule"),
    "cylinder": _free("cylinder"),
    "ellipsoid": _free("ellipsoid"),
    "mesh": _free("mesh"),
    "two boxes": _free("box", "box"),
    "box and sphere": _free("box", "sphere"),
    "two spheres": _free("sphere", "sphere"),
    "two capsules": _free("capsule", "capsule"),
    "capsule and box": _free("capsule", "box"),
    "mesh and box": _free("mesh", "box"),
    "cylinder and ellipsoid": _free("cylinder", "ellipsoid"),
    "mesh and cylinder": _free("mesh", "cylinder"),
    "sphere and cylinder": _free("sphere", "cylinder"),
    "box, sphere, capsule": _free("box", "sphere", "capsule"),
    "four spheres": _free("sphere", "sphere", "sphere", "sphere"),
    "three boxes": _free("box", "box", "box"),
    "four boxes": _free("box", "box", "box", "box"),
    "box among fixed": _free("box", world=("box", "sphere")),
    "sphere among fixed": _free("sphere", world=("box", "sphere", "capsule", "cylinder")),
    "hinged box": Family((Body("box", "hinge"),)),
    "sliding box and sphere": Family((Body("box", "slide"), Body("sphere"))),
    "ball joint and box": Family((Body("capsule", "ball"), Body("box"))),
    "chain of hinges": Family((Body("capsule", "hinge"), Body("capsule", "hinge", 0), Body("sphere", "hinge", 1))),
    "walker": Family((Body("box"), Body("capsule", "hinge", 0), Body("capsule", "hinge", 0))),
    "tied chain": Family((Body("capsule", "hinge"), Body("sphere", "ball", 0)), tied=True),
    "folding chain": Family(
        (Body("box", "slide"), Body("capsule", "hinge", 0), Body("sphere", "hinge", 1)), self_collision=True
    ),
    "planar polygons": Family((Body("polygon", "planar"), Body("polygon", "planar")), ("upright plane",)),
    "planar box": Family((Body("box", "planar"),), ("upright plane",)),
}

RIGID = ("plastic", "newton")  # one program: whether restitution is zero is a number
EXTRAS = ("passive", "compliant", "interior", "no impact time", "smooth", "pyramid", "interior smooth", "substeps")
MORE_KINDS: dict[str, tuple[str, ...]] = {
    "box": EXTRAS,
    "sphere": ("passive", "compliant", "interior"),
    "capsule": ("passive", "interior", "smooth"),
    "cylinder": ("passive", "compliant"),
    "ellipsoid": ("passive", "interior"),
    "mesh": ("compliant",),
    "two boxes": ("passive",),
    "box and sphere": ("compliant",),
    "two spheres": EXTRAS,
    "two capsules": ("passive",),
    "four spheres": ("passive",),
    "sphere among fixed": ("passive", "compliant"),
    "hinged box": ("passive", "compliant"),
    "sliding box and sphere": ("interior",),
    "chain of hinges": ("compliant",),
    "walker": ("passive",),
}
COSTLY = (  # families whose code takes long to compile and run have fewer scenes
    "two boxes",
    "capsule and box",
    "mesh and box",
    "cylinder and ellipsoid",
    "mesh and cylinder",
    "box, sphere, capsule",
    "three boxes",
    "four boxes",
    "box among fixed",
    "ball joint and box",
    "planar polygons",
)
MOST, MANY, FEW = 500, 240, 60  # scenes of a category: of one body, of more, of costly families
EACH = 1000  # numbers set aside for a category
CATEGORIES = [(family, kind) for family in FAMILIES for kind in (*RIGID, *MORE_KINDS.get(family, ()))]


def numbers(category: int, share: float = 1.0) -> range:
    """The numbers of a category's scenes; `share` of all that a full survey draws, at least one."""
    family = CATEGORIES[category][0]
    count = FEW if family in COSTLY else MOST if len(FAMILIES[family].bodies) == 1 else MANY
    return range(EACH * category, EACH * category + max(1, round(share * count)))


class Scene(NamedTuple):
    """A scene by its number: everything that a replay needs."""

    number: int
    family: str
    kind: str
    situation: str
    model: kn.Model
    q: np.ndarray
    qd: np.ndarray
    dt: float
    contact: ContactModel
    free_dofs: np.ndarray  # of free and planar joints, on which only contacts push
    size: float  # the largest half length of any shape [m]


def draw(number: int, seed: int) -> Scene:
    """The scene of a number: its category is the number of thousands, all else comes from a generator of its own."""
    name, kind = CATEGORIES[number // EACH]
    rng = np.random.default_rng([seed, number])
    family = FAMILIES[name]
    situation = str(rng.choice(SITUATIONS))
    dt = float(10 ** rng.uniform(-5, np.log10(0.05)))
    friction = _friction(rng)
    same = situation in ("aligned", "coincident") and rng.random() < 0.7
    sizes = _sizes(rng, len(family.bodies), same)
    masses = 10 ** rng.uniform(-3, 3, len(family.bodies))
    if rng.random() < 0.3:
        masses[:] = masses[0]
    links, heights = [], []
    exact = situation in ("resting", "aligned")
    for k, body in enumerate(family.bodies):
        links.append(_link(rng, family, k, sizes, float(masses[k]), friction))
        heights.append(_half_height(body.shape, sizes[k]))
    world = [_fixed(rng, kind_, friction, sizes[0], exact) for kind_ in family.world]
    gravity = ((0, 0, -9.81), (0, 0, 0), tuple(rng.normal(size=3) * 10))[rng.choice(3, p=(0.7, 0.15, 0.15))]
    if "upright plane" in family.world:
        gravity = (gravity[0], gravity[2], 0.0)
    model = kn.build(links, gravity=gravity, world_shapes=world)
    q = _place(rng, family, situation, np.array(model.reference, float), sizes, heights, dt)
    if family.tied:
        tie = _tie(rng, model, q, float(sizes[-1, 0]))
        model = kn.build(links, gravity=gravity, world_shapes=world, equalities=[tie])
    qd = _speeds(rng, family, situation, model.nv, dt)
    contact = _contact(rng, kind, family.self_collision)
    free_dofs = np.concatenate([np.full(DOFS[b.joint], b.joint in ("free", "planar")) for b in family.bodies])
    return Scene(
        number, name, kind, situation, model, q, qd, dt, contact, np.flatnonzero(free_dofs), float(np.max(sizes))
    )


def _tie(rng: np.random.Generator, model: kn.Model, q: np.ndarray, size: float) -> kn.Connect:
    """A point within the last body held where it is, to within a twentieth of its size."""
    point = 0.5 * size * rng.normal(size=3)
    pose = kn.kinematics.poses(model, q)
    last = len(model.link_names) - 1
    where = np.asarray(pose.position[last]) + np.asarray(pose.rotation[last]) @ point
    where = where + 0.05 * size * rng.normal(size=3)
    return kn.Connect(model.link_names[last], point_a=tuple(point), point_b=tuple(where))


def _friction(rng: np.random.Generator) -> float:
    return (0.0, rng.uniform(0.05, 1.5), 10 ** rng.uniform(0, 3), 1000.0)[rng.choice(4, p=(0.15, 0.55, 0.2, 0.1))]


def _sizes(rng: np.random.Generator, count: int, same: bool) -> np.ndarray:
    """Three half lengths of each body [m]: 2 cm to 1 m, bodies of one scene within a factor of ten."""
    scale = 10 ** rng.uniform(-1.7, -0.5)
    sizes = scale * 10 ** rng.uniform(0, 0.5, (count, 3))
    if same:
        sizes[:] = sizes[0]
        if rng.random() < 0.5:
            sizes[:] = sizes[0, 0]
    return sizes


def _shape(kind: str, size: np.ndarray, **options) -> Shape:
    x, y, z = map(float, size)
    makers = {
        "box": lambda: kn.shapes.box(x, y, z, **options),
        "sphere": lambda: kn.shapes.sphere(x, **options),
        "capsule": lambda: kn.shapes.capsule(x, z, **options),
        "cylinder": lambda: kn.shapes.cylinder(x, z, **options),
        "ellipsoid": lambda: kn.shapes.ellipsoid(x, y, z, **options),
        "mesh": lambda: Shape("mesh", (x, y, z), mesh=HULL, **options),
        "polygon": lambda: kn.shapes.polygon(np.array(TRIANGLE) * [1.0, 1.0], **options),
        "plane": lambda: kn.shapes.plane(**options),
        "upright plane": lambda: kn.shapes.plane(rotation=(0.5**0.5, -(0.5**0.5), 0, 0), **options),
    }
    return makers[kind]()


def _half_height(kind: str, size: np.ndarray) -> float:
    x, _, z = size
    return {"sphere": x, "capsule": x + z, "polygon": 0.8}.get(kind, z)


def _link(rng, family: Family, k: int, sizes, mass: float, friction: float) -> kn.Link:
    body, size = family.bodies[k], sizes[k]
    limits = {"lower": -1.5, "upper": 2.0}
    dry = {"friction": float(rng.uniform(0, 0.1) * mass)}
    height = float(_half_height(body.shape, size))
    joints = {
        "free": kn.free,
        "hinge": lambda: kn.revolute("y", **limits, **dry),
        "slide": lambda: kn.prismatic("z", **limits, **dry),
        "ball": kn.ball,
        "planar": lambda: kn.planar("z"),
    }
    if body.parent >= 0:
        above = family.bodies[body.parent]
        position = (
            0.0,
            float(0.3 * sizes[body.parent][1]) * (k % 2),
            -float(_half_height(above.shape, sizes[body.parent])),
        )
    elif body.joint == "slide":
        position = (0.0, 0.0, height)
    elif body.joint in ("hinge", "ball"):
        position = (0.0, 0.0, float(2 * height * rng.uniform(0.6, 1.1)))
    else:
        position = (0.0, 0.0, 0.0)
    com = (0.0, 0.0, -height if body.joint in ("hinge", "ball") else 0.0)
    shape = _shape(body.shape, size, position=com, friction=(friction,), name=f"s{k}")
    inertia = None
    if body.shape in ("mesh", "polygon"):
        x, y, z = size if body.shape == "mesh" else (1.0, 1.0, 1.0)
        inertia = mass / 3 * np.array([y * y + z * z, x * x + z * z, x * x + y * y])
    parent = f"b{body.parent}" if body.parent >= 0 else "world"
    return kn.Link(f"b{k}", parent, joints[body.joint](), position, mass=mass, com=com, inertia=inertia, shapes=shape)


def _fixed(rng, kind: str, friction: float, size: np.ndarray, exact: bool) -> Shape:
    options = {"friction": (friction,)}
    if "plane" in kind:
        return _shape(kind, size, **options)
    own = size if exact or rng.random() < 0.3 else size * 10 ** rng.uniform(-0.3, 0.5, 3)
    position = (0.0, 0.0, 0.0) if exact else tuple(rng.uniform(-1, 1, 3) * size)
    rotation = (1.0, 0.0, 0.0, 0.0) if exact else tuple(_turn(rng))
    return _shape(kind, own, position=position, rotation=rotation, **options)


def _turn(rng: np.random.Generator) -> np.ndarray:
    """A unit quaternion; often exactly the identity or a quarter turn."""
    kind = rng.choice(3, p=(0.5, 0.25, 0.25))
    turn = (
        rng.normal(size=4)
        if kind == 0
        else np.eye(4)[0]
        if kind == 1
        else np.eye(4)[0] + np.eye(4)[rng.choice([1, 2, 3])]
    )
    return turn / np.linalg.norm(turn)


def _place(rng, family: Family, situation: str, q: np.ndarray, sizes, heights, dt: float) -> np.ndarray:
    """Coordinates: stacked and aligned, all in one place, overlapping, or above the ground."""
    at, top = 0, 0.0
    travel = min(20 * dt * SPEEDS.get(situation, 0.0) * rng.random(), 0.5 * float(np.max(sizes)))
    fixed = "plane" not in family.world and "upright plane" not in family.world
    if fixed:
        top = float(sizes[0][2])
    for k, body in enumerate(family.bodies):
        height, reach = heights[k], float(np.max(sizes))
        if body.joint in ("hinge", "slide"):
            q[at] = (
                0.0
                if situation in ("resting", "aligned", "coincident")
                else rng.uniform(-1.4, 1.9) * (0.3 if body.joint == "slide" else 1)
            )
            at += 1
        elif body.joint == "ball":
            q[at : at + 4] = np.eye(4)[0] if situation in ("resting", "aligned", "coincident") else _turn(rng)
            at += 4
        elif body.joint == "planar":
            height = 0.8 if body.shape == "polygon" else float(sizes[k][1])
            q[at : at + 3] = _planar_place(rng, situation, k, height)
            at += 3
        else:
            q[at : at + 7] = _free_place(rng, situation, top + height, height, reach, k, travel)
            top += 2 * height
            at += 7
    return q


def _free_place(rng, situation: str, stacked: float, height: float, reach: float, k: int, travel: float):
    if situation in ("resting", "aligned"):
        aside = (0.0, 0.0) if situation == "aligned" or rng.random() < 0.5 else rng.uniform(-0.3, 0.3, 2) * height
        return np.array([*aside, stacked, 1, 0, 0, 0])
    if situation == "coincident":
        turn = _turn(rng) if rng.random() < 0.3 else np.eye(4)[0]
        return np.array([0, 0, rng.choice([0.0, height]), *turn])
    if situation == "deep":
        return np.array([*rng.uniform(-0.7, 0.7, 2) * reach, rng.uniform(-0.9, 0.9) * reach, *_turn(rng)])
    aside = rng.uniform(-0.5, 0.5, 2) * reach
    return np.array([*aside, height * rng.uniform(0.7, 1.3) + travel + 1.5 * reach * k, *_turn(rng)])


def _planar_place(rng, situation: str, k: int, height: float) -> np.ndarray:
    if situation in ("resting", "aligned"):
        return np.array([0.0, height * (1 + 2.3 * k), 0.0])
    if situation == "coincident":
        return np.array([0.0, height, 0.0])
    if situation == "deep":
        return np.array([*rng.uniform(-0.7, 0.7, 2), rng.uniform(-3, 3)])
    x, y = rng.uniform(-0.5, 0.5, 2)
    return np.array([x, y + 1.2 + 2.2 * k, rng.uniform(-3, 3)])


def _speeds(rng, family: Family, situation: str, count: int, dt: float) -> np.ndarray:
    """Joint speeds: zero, of the size of rounding, ordinary, or fast; spins turn by at most half a radian in a step."""
    if situation in ("resting", "aligned"):
        size = rng.choice([0.0, 0.0, 1e-14, 1e-6, 0.1])
    elif situation in ("coincident", "deep"):
        size = rng.choice([0.0, 1e-9, 1.0])
    else:
        size = SPEEDS[situation]
    qd = size * rng.normal(size=count)
    if situation == "aligned" and rng.random() < 0.5:
        qd = size * np.sign(qd)
    at = 0
    for body in family.bodies:
        linear, angular = {"free": (3, 3), "planar": (2, 1), "hinge": (0, 1), "slide": (1, 0), "ball": (0, 3)}[
            body.joint
        ]
        if body.joint in ("free", "planar") and situation in ("flying", "fast"):
            qd[at + linear - 1] = -abs(qd[at + linear - 1])
        spin = slice(at + linear, at + linear + angular)
        most = 0.3 / dt
        qd[spin] = np.clip(3 * qd[spin], -most, most)
        at += linear + angular
    return qd


def _contact(rng, kind: str, self_collision: bool) -> ContactModel:
    options: dict[str, Any] = {"self_collision": self_collision}
    restitution = float(rng.choice([0.0, 1.0, rng.uniform(0, 1), rng.uniform(0, 1)]))
    if kind in ("compliant", "substeps"):
        return Compliant(
            stiffness=float(10 ** rng.uniform(2, 8)),
            dissipation=float(rng.choice([0.0, rng.uniform(0, 2)])),
            exponent=float(rng.choice([1.0, 1.5, 2.0])),
            transition=float(10 ** rng.uniform(-3, -1)),
            substeps=4 if kind == "substeps" else None,
            **options,
        )
    if kind.startswith("interior"):
        smoothing = float(10 ** rng.uniform(-3, -1)) if kind == "interior smooth" else None
        return InteriorPoint(restitution=restitution, smoothing=smoothing, **options)
    if kind == "smooth":
        return Impulse(smoothing=float(10 ** rng.uniform(-3, -1)), **options)
    return Impulse(
        restitution=0.0 if kind == "plastic" else restitution,
        restitution_law="passive" if kind == "passive" else "newton",
        time_of_impact=kind != "no impact time",
        pyramid=kind == "pyramid",
        **options,
    )
