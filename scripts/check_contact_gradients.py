"""Compare derivatives of a step with contact, and of all that it depends on, with differences, at many random states.

python scripts/check_contact_gradients.py [--states N] [--quick] [--set NAME] [--output FILE]

By state, controls, masses, moments of inertia, sizes, friction of joints, and the numbers of the contact model. Columns
are taken by forward mode, and one random combination of rows by reverse mode. Differences are central, with the one of
five step sizes that agrees best (rounding blurs the small ones, curvature the large ones). Derivatives count where the
nearest change of mode is more than 1e-3 m/s away; NaN counts everywhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint

ROOT = Path(__file__).parents[1]
DT = 5e-3
LIMIT, MARGIN = 1e-4, 1e-3
STEPS = (1e-3, 1e-5, 1e-6, 1e-7, 1e-8)
SITUATIONS = ("any", "rest", "no slip", "grazing", "deep", "upright")
MODES = ("apart", "stick", "slip", "bounce")
RIGID = ("friction", "mixing", "alpha", "beta")  # with the numbers that change in proportion to themselves last


class Kind(NamedTuple):
    """A contact model and the numbers that it is given, friction and restitution by what is added to them."""

    contact: Callable[..., Impulse | Compliant]
    numbers: tuple[str, ...]


KINDS = {
    "Impulse": Kind(Impulse, ("restitution", *RIGID)),
    "Impulse without restitution": Kind(Impulse, RIGID),
    "InteriorPoint": Kind(InteriorPoint, ("restitution", *RIGID)),
    "Compliant": Kind(Compliant, ("friction", "stiffness", "dissipation", "transition")),
}
DRAWN: dict[str, Callable[[np.random.Generator], float]] = {
    "friction": lambda rng: rng.uniform(0.2, 1.0),
    "restitution": lambda rng: rng.choice([0.0, rng.uniform(0.1, 0.9)]),
    "mixing": lambda rng: 10 ** rng.uniform(-6, -2),
    "alpha": lambda rng: rng.uniform(50, 300),
    "beta": lambda rng: rng.uniform(50, 300),
    "stiffness": lambda rng: 10 ** rng.uniform(4, 6),
    "dissipation": lambda rng: rng.uniform(0.1, 2.0),
    "transition": lambda rng: 10 ** rng.uniform(-2, -1),
}


class Scene(NamedTuple):
    """A model whose coordinate number `height` lifts it off the ground, and a posture in which it can rest."""

    model: kn.Model
    height: tuple[int, ...]
    rest: np.ndarray


class Point(NamedTuple):
    """Where a derivative is taken."""

    q: np.ndarray
    qd: np.ndarray
    control: np.ndarray
    numbers: np.ndarray
    cotangent: np.ndarray


class Finding(NamedTuple):
    """What was seen at a point."""

    situation: str
    mode: str
    margin: float
    converged: bool
    finite: bool
    error: float
    reverse_error: float
    worst: str


def sphere() -> Scene:
    link = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    return Scene(kn.build([link], world_shapes=[kn.shapes.plane()]), (2,), np.array([0, 0, 0.1, 1, 0, 0, 0]))


def boxes(count: int) -> Scene:
    links = [
        kn.Link(f"box{k}", joints=kn.free(), mass=1.0 + k, shapes=kn.shapes.box(0.1 - 0.03 * k, 0.12 - 0.03 * k, 0.08))
        for k in range(count)
    ]
    rest = np.concatenate([[0.01 * k, 0, 0.08 + 0.16 * k, 1, 0, 0, 0] for k in range(count)])
    return Scene(kn.build(links, world_shapes=[kn.shapes.plane()]), tuple(7 * k + 2 for k in range(count)), rest)


def pendulum() -> Scene:
    """Three hinged links under a rail that slides up and down, a sphere at each tip: moves in a plane."""
    links = [kn.Link("rail", joints=kn.prismatic("z"), mass=0.5)]
    for k in range(3):
        tip = kn.shapes.sphere(0.04, position=(0, 0, -0.3))
        place = (0, 0, -0.3 if k else 0)
        parent = links[-1].name
        moments = (8e-3, 8e-3, 1e-3)
        links.append(
            kn.Link(f"l{k}", parent, kn.revolute("y"), place, mass=1.0, com=(0, 0, -0.15), inertia=moments, shapes=tip)
        )
    motors = [kn.motor(f"l{k}_joint") for k in range(3)]
    return Scene(
        kn.build(links, world_shapes=[kn.shapes.plane()], actuators=motors), (0,), np.array([0, 1.2, 0.3, 0.1])
    )


def mechanism() -> Scene:
    """A hand of two fingers under a slider: limits, dry friction, a finger that follows the other, and a loop."""
    rod = {"com": (0, 0, -0.15), "inertia": (8e-3, 8e-3, 1e-3), "mass": 1.0}
    tip = kn.shapes.sphere(0.05, position=(0, 0, -0.3))
    limits = {"lower": -0.9, "upper": 0.6}
    links = [
        kn.Link("rail", joints=kn.prismatic("z", friction=0.5), mass=1.0),
        kn.Link("upper", "rail", kn.revolute("y", friction=0.2, **limits), **rod),
        kn.Link("lower", "upper", kn.revolute("y", **limits), (0, 0, -0.3), shapes=tip, **rod),
        kn.Link("other", "rail", kn.revolute("y"), (0.2, 0, 0), **rod),
        kn.Link("crank", "rail", kn.revolute("y", friction=0.1), (-0.2, 0, 0), **rod),
        kn.Link("rod", "crank", kn.revolute("y"), (0, 0, -0.3), **rod),
    ]
    held = [
        kn.Mimic("other_joint", "upper_joint", (0.1, 0.5, 0.2, 0, 0)),
        kn.Connect("rod", "rail", point_a=(0, 0, -0.3), point_b=(-0.35, 0, -0.4)),
    ]
    motors = [kn.motor("upper_joint"), kn.motor("crank_joint")]
    model = kn.build(links, world_shapes=[kn.shapes.plane()], equalities=held, actuators=motors)
    return Scene(model, (0,), np.array([0.0, 0.6, -0.2, 0.472, 0.9, -0.6]))


def quadruped() -> Scene:
    """A trunk on four legs of two links with spheres for feet."""
    links = [kn.Link("trunk", joints=kn.free(), mass=6.0, com=(0, 0, 0), inertia=(0.02, 0.06, 0.07))]
    for x in (-0.2, 0.2):
        for y in (-0.1, 0.1):
            name = f"{'front' if x > 0 else 'rear'}_{'left' if y > 0 else 'right'}"
            body = {"mass": 0.8, "com": (0, 0, -0.1), "inertia": (4e-3, 4e-3, 8e-4)}
            foot = kn.shapes.sphere(0.02, position=(0, 0, -0.2))
            links.append(kn.Link(f"{name}_upper", "trunk", kn.revolute("y"), (x, y, 0), **body))
            links.append(kn.Link(f"{name}_lower", f"{name}_upper", kn.revolute("y"), (0, 0, -0.2), shapes=foot, **body))
    rest = np.concatenate([[0, 0, 0.3, 1, 0, 0, 0], np.tile([0.6, -1.2], 4)])
    motors = [kn.motor(f"{link.name}_joint") for link in links[1:]]
    return Scene(kn.build(links, world_shapes=[kn.shapes.plane()], actuators=motors), (2,), rest)


SCENES: dict[str, Callable[[], Scene]] = {
    "sphere": sphere,
    "box on a plane": lambda: boxes(1),
    "pendulum": pendulum,
    "mechanism": mechanism,
    "quadruped": quadruped,
    "two boxes": lambda: boxes(2),
}
SETS: dict[str, tuple[str, str, float]] = {  # scene, kind of contact, share of all states
    f"{scene}, {kind}": (scene, kind, share)
    for scene, kind, share in (
        ("sphere", "Impulse", 0.15),
        ("sphere", "Impulse without restitution", 0.06),
        ("sphere", "InteriorPoint", 0.06),
        ("sphere", "Compliant", 0.06),
        ("box on a plane", "Impulse", 0.15),
        ("box on a plane", "Impulse without restitution", 0.06),
        ("box on a plane", "InteriorPoint", 0.02),
        ("box on a plane", "Compliant", 0.06),
        ("pendulum", "Impulse", 0.08),
        ("pendulum", "InteriorPoint", 0.03),
        ("pendulum", "Compliant", 0.05),
        ("mechanism", "Impulse", 0.06),
        ("mechanism", "Impulse without restitution", 0.04),
        ("mechanism", "InteriorPoint", 0.02),
        ("mechanism", "Compliant", 0.03),
        ("quadruped", "Impulse without restitution", 0.04),
        ("two boxes", "Impulse without restitution", 0.03),
    )
}


class Part(NamedTuple):
    """A kind of entry of the vector by which is differentiated."""

    name: str
    size: int


def parts(model: kn.Model, kind: Kind) -> list[Part]:
    links, shapes = len(model.link_names), sum(k != "plane" for k in model.geometry.kind)
    numbers = [Part(name, 1) for name in kind.numbers]
    sizes = {"q": model.nv, "qd": model.nv, "control": model.nu, "mass": links, "inertia": links, "size": shapes}
    rubbing = int(np.sum(np.asarray(model.friction) > 0))
    return [*numbers, *(Part(*item) for item in sizes.items()), Part("joint friction", rubbing)]


def columns(model: kn.Model, kind: Kind) -> list[str]:
    """The kind of each entry."""
    return [part.name for part in parts(model, kind) for _ in range(part.size)]


def step_of(model: kn.Model, kind: Kind) -> Callable:
    """(state after a step, what contacts did) of a point and changes x, as they are listed by `columns`.

    Changes are relative, but for those of state, control, friction and restitution.
    """
    all_parts = parts(model, kind)
    ends = np.cumsum([part.size for part in all_parts])[:-1]
    movable = np.array([k for k, shape in enumerate(model.geometry.kind) if shape != "plane"], int)
    rubs = np.flatnonzero(np.asarray(model.friction) > 0)

    def step(point: Point, x):
        by = dict(zip([part.name for part in all_parts], jnp.split(x, ends), strict=True))
        scale = jnp.ones(len(model.geometry)).at[movable].add(by["size"])
        friction = jnp.asarray(model.friction)
        changed = eqx.tree_at(
            lambda m: (m.inertia.mass, m.inertia.moment, m.geometry.size),
            model,
            (
                model.inertia.mass * (1 + by["mass"]),
                model.inertia.moment * (1 + by["inertia"])[:, None],
                model.geometry.size * scale[:, None],
            ),
        )
        if len(rubs):
            rubbed = friction.at[rubs].multiply(1 + by["joint friction"], unique_indices=True)
            changed = eqx.tree_at(lambda m: m.friction, changed, rubbed)
        numbers = {}
        for name, base in zip(kind.numbers, jnp.asarray(point.numbers), strict=True):
            change = by[name][0]
            numbers[name] = base + change * (1.0 if name in ("friction", "restitution") else base)
        state = kn.State(kn.retract(model, point.q, by["q"]), point.qd + by["qd"])
        contact = kind.contact(**numbers, tolerance=1e-12)
        control = point.control + by["control"]
        run = kn.rollout(changed, state, control, dt=DT, steps=1, contact=contact)
        return jnp.concatenate([run.q[0], run.qd[0]]), run.contact

    return step


def measure_of(model: kn.Model, kind: Kind) -> Callable:
    """Derivatives and differences at a point, column by column, as native code."""
    step, size = step_of(model, kind), len(columns(model, kind))

    def measure(point: Point):
        zero, basis, steps = jnp.zeros(size), jnp.eye(size), jnp.asarray(STEPS)

        def column(direction):
            return jax.jvp(lambda x: step(point, x)[0], (zero,), (direction,))[1]

        def moved(change):
            return step(point, change)[0]

        changes = (jnp.stack([steps, -steps], axis=1)[None, :, :, None] * basis[:, None, None, :]).reshape(-1, size)
        around = jax.lax.map(moved, changes).reshape(size, len(STEPS), 2, -1)
        differences = (around[:, :, 0] - around[:, :, 1]) / (2 * steps[None, :, None])
        value, backward, outcome = jax.vjp(lambda x: step(point, x), zero, has_aux=True)
        return value, jax.lax.map(column, basis), differences, backward(jnp.asarray(point.cotangent))[0], outcome

    return kn.native.jit(measure)


def draw(scene: Scene, kind: Kind, situation: str, rng: np.random.Generator) -> Point:
    """A random state near the ground in one of the situations."""
    model = scene.model
    q, qd = scene.rest, rng.normal(size=model.nv) * 10 ** rng.uniform(-2, 0.5)
    gap = rng.choice([0.0, 1e-6, -1e-6, 1e-4, -1e-4, 1e-2, rng.uniform(-1e-3, 5e-3)])
    if situation in ("any", "grazing", "deep"):
        turned = rng.normal(size=model.nv) * rng.choice([1e-3, 0.1, 1.0])
        q = np.asarray(kn.retract(model, q, turned))
    if situation in ("rest", "no slip"):
        qd = np.zeros(model.nv)
        gap = rng.choice([0.0, -1e-6, -1e-4])
    if situation == "no slip":
        qd[0 if len(scene.rest) == model.nv else 2] = -(10 ** rng.uniform(-2, 0.5))
    if situation == "grazing":
        gap = rng.choice([0.0, 1e-9, 1e-5])
        qd *= 1e-3
    if situation == "deep":
        gap = -rng.uniform(0.005, 0.03)
    q = placed(scene, q, gap)
    numbers = np.array([DRAWN[name](rng) for name in kind.numbers])
    return Point(q, qd, rng.normal(size=model.nu), numbers, rng.normal(size=model.nq + model.nv))


def placed(scene: Scene, q: np.ndarray, gap: float) -> np.ndarray:
    """The same posture with its lowest point at `gap` over the ground."""
    gaps = np.asarray(_contacts(scene.model, q).gap)
    q = q.copy()
    q[list(scene.height)] += gap - gaps.min()
    return q


@eqx.filter_jit
def _contacts(model: kn.Model, q):
    return Impulse().contacts(model, q)


def mode_of(outcome) -> str:
    """The liveliest thing that any contact did."""
    impulse, velocity = np.asarray(outcome.impulse[0]), np.asarray(outcome.velocity[0])
    pushing = impulse[:, 0] > 1e-12
    if not pushing.any():
        return "apart"
    slip = np.linalg.norm(velocity[pushing, 1:], axis=1)
    if velocity[pushing, 0].max() > 0.01:
        return "bounce"
    return "slip" if slip.max() > 1e-5 else "stick"


def judge(situation: str, kinds: list[str], seen, cotangent: np.ndarray) -> Finding:
    value, exact, differences, backward = (np.asarray(a) for a in seen[:4])
    outcome = seen[4]
    finite = all(np.isfinite(a).all() for a in (value, exact, backward))
    largest = np.abs(differences).max()
    best = np.abs(differences - exact[:, None]).max(axis=2).min(axis=1)
    groups = {kind: [k for k, other in enumerate(kinds) if other == kind] for kind in kinds}
    sizes = {kind: max(np.abs(exact[at]).max(), 1e-3 * largest) for kind, at in groups.items()}
    errors = {kind: best[at].max() / sizes[kind] for kind, at in groups.items()}
    worst = max(errors, key=lambda kind: errors[kind])
    reverse = np.abs(backward - exact @ cotangent).max() / max(np.abs(backward).max(), 1e-300)
    margin, converged = float(outcome.margin[0]), bool(outcome.converged[0])
    return Finding(situation, mode_of(outcome), margin, converged, finite, errors[worst], float(reverse), worst)


def examine(name: str, states: int, seed: int = 0) -> tuple[list[Finding], list[Point]]:
    """Findings at random states of a set, and the points where they were made."""
    scene, kind = SCENES[SETS[name][0]](), KINDS[SETS[name][1]]
    measure, kinds = measure_of(scene.model, kind), columns(scene.model, kind)
    rng = np.random.default_rng(seed)
    findings, points = [], []
    for number in range(states):
        point = draw(scene, kind, SITUATIONS[number % len(SITUATIONS)], rng)
        findings.append(judge(SITUATIONS[number % len(SITUATIONS)], kinds, measure(point), point.cotangent))
        points.append(point)
    return findings, points


def missed(finding: Finding) -> bool:
    """A derivative that should be right and is not, or a NaN."""
    wrong = finding.converged and finding.margin > MARGIN and not max(finding.error, finding.reverse_error) <= LIMIT
    return wrong or not finding.finite


def table(results: dict[str, list[Finding]]) -> str:
    total = sum(len(f) for f in results.values())
    lines = [
        "# Derivatives of a step with contact against differences",
        "",
        f"Written by `python scripts/check_contact_gradients.py`: {total} random states, dt {DT:g} s, float64, by "
        f"state, control, {', '.join(DRAWN)}, masses, moments of inertia, sizes and joint friction, where there are "
        "any. Errors are relative to the largest entry of the kind.",
        f"Compared where the nearest change of mode is over {MARGIN:g} m/s away; a miss is an error over {LIMIT:g}. "
        "NaN are counted everywhere.",
        "",
        "| scene, contact model | states | unsolved | NaN | compared | "
        + " | ".join(MODES)
        + " | misses | median | worst | reverse |",
        "|---|" + "--:|" * (8 + len(MODES)),
    ]
    for name, findings in results.items():
        compared = [f for f in findings if f.margin > MARGIN and f.converged]
        modes = Counter(f.mode for f in compared)
        errors = np.array([f.error for f in compared] or [0.0])
        reverse = max((f.reverse_error for f in compared), default=0.0)
        cells = [len(findings), sum(not f.converged for f in findings), sum(not f.finite for f in findings)]
        cells += [len(compared), *(modes[mode] for mode in MODES), sum(missed(f) for f in findings)]
        figures = [f"{x:.1e}" for x in (np.median(errors), errors.max(), reverse)]
        lines.append(f"| {name} | " + " | ".join(map(str, [*cells, *figures])) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=10_000, help="over all scenes")
    parser.add_argument("--quick", action="store_true", help="300 states; the table is only printed")
    parser.add_argument("--set", choices=SETS, help="one set only; the table is only printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "contact_gradients.md")
    options = parser.parse_args()
    states = 300 if options.quick else options.states
    results = {}
    for name in [options.set] if options.set else SETS:
        start = time.perf_counter()
        count = states if options.set else round(SETS[name][2] * states)
        results[name], points = examine(name, count, options.seed)
        print(f"{name}: {count} states in {time.perf_counter() - start:.0f} s", flush=True)
        for finding, point in zip(results[name], points, strict=True):
            if missed(finding):
                print(f"  missed: {finding}\n    {[a.tolist() for a in point[:4]]}")
    text = table(results)
    print(text)
    if not (options.quick or options.set):
        options.output.write_text(text)
    return 1 if any(missed(f) for findings in results.values() for f in findings) else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
