"""Compare derivatives of a step with contact, and of all that it depends on, with differences, at many random states.

python scripts/check_contact_gradients.py [--states N] [--quick] [--scene NAME] [--output FILE]

Columns are taken by forward mode, and one random combination of rows by reverse mode. Differences are central, with
the one of five step sizes that agrees best (rounding blurs the small ones, curvature the large ones). Derivatives
count where the nearest change of mode is more than 1e-3 m/s away; NaN counts everywhere.
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
from knuckle.contact import Impulse

ROOT = Path(__file__).parents[1]
DT = 5e-3
LIMIT, MARGIN = 1e-4, 1e-3
STEPS = (1e-3, 1e-5, 1e-6, 1e-7, 1e-8)
SITUATIONS = ("any", "rest", "no slip", "grazing", "deep", "upright")
MODES = ("apart", "stick", "slip", "bounce")
NUMBERS = ("friction", "restitution", "mixing", "alpha", "beta")


class Scene(NamedTuple):
    """A model whose coordinate number `height` lifts it off the ground, and a posture in which it can rest."""

    model: kn.Model
    height: tuple[int, ...]
    rest: np.ndarray


class Point(NamedTuple):
    """Where a derivative is taken."""

    q: np.ndarray
    qd: np.ndarray
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
    return Scene(kn.build(links, world_shapes=[kn.shapes.plane()]), (0,), np.array([0.0, 1.2, 0.3, 0.1]))


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
    return Scene(kn.build(links, world_shapes=[kn.shapes.plane()]), (2,), rest)


SCENES: dict[str, tuple[Callable[[], Scene], float]] = {  # with their shares of all states
    "sphere": (sphere, 0.32),
    "box on a plane": (lambda: boxes(1), 0.3),
    "pendulum with spheres": (pendulum, 0.25),
    "quadruped": (quadruped, 0.1),
    "two boxes": (lambda: boxes(2), 0.03),
}


def columns(model: kn.Model) -> list[str]:
    """The kind of each entry of the vector by which is differentiated."""
    shapes = sum(kind != "plane" for kind in model.geometry.kind)
    return ["q"] * model.nv + ["qd"] * model.nv + list(NUMBERS) + ["mass"] * len(model.link_names) + ["size"] * shapes


def step_of(model: kn.Model) -> Callable:
    """(state after a step, what contacts did) of a point and changes x, as they are listed by `columns`.

    Changes of mixing, alpha, beta, masses and sizes are relative.
    """
    nv, links = model.nv, len(model.link_names)
    movable = np.array([k for k, kind in enumerate(model.geometry.kind) if kind != "plane"], int)
    relative = np.array([0, 0, 1, 1, 1.0])

    def step(point: Point, x):
        dq, dqd, by_number, by_mass, by_size = jnp.split(x, np.cumsum([nv, nv, len(NUMBERS), links]))
        scale = jnp.ones(len(model.geometry)).at[movable].add(by_size)
        changed = eqx.tree_at(
            lambda m: (m.inertia.mass, m.geometry.size),
            model,
            (model.inertia.mass * (1 + by_mass), model.geometry.size * scale[:, None]),
        )
        base = jnp.asarray(point.numbers)
        numbers = dict(zip(NUMBERS, base + by_number * jnp.where(relative > 0, base, 1.0), strict=True))
        state = kn.State(kn.retract(model, point.q, dq), point.qd + dqd)
        run = kn.rollout(changed, state, dt=DT, steps=1, contact=Impulse(**numbers, tolerance=1e-12))
        return jnp.concatenate([run.q[0], run.qd[0]]), run.contact

    return step


def measure_of(model: kn.Model) -> Callable:
    """Derivatives and differences at a point, column by column, as native code."""
    step, size = step_of(model), len(columns(model))

    def measure(point: Point):
        zero, basis = jnp.zeros(size), jnp.eye(size)

        def column(direction):
            exact = jax.jvp(lambda x: step(point, x)[0], (zero,), (direction,))[1]
            away = [step(point, h * direction)[0] - step(point, -h * direction)[0] for h in STEPS]
            return exact, jnp.stack([change / (2 * h) for change, h in zip(away, STEPS, strict=True)])

        exact, differences = jax.lax.map(column, basis)
        value, backward = jax.vjp(lambda x: step(point, x)[0], zero)
        outcome = step(point, zero)[1]
        return value, exact, differences, backward(jnp.asarray(point.cotangent))[0], outcome

    return kn.native.jit(measure)


def draw(scene: Scene, situation: str, rng: np.random.Generator) -> Point:
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
        qd[0 if model.nv == 4 else 2] = -(10 ** rng.uniform(-2, 0.5))
    if situation == "grazing":
        gap = rng.choice([0.0, 1e-9, 1e-5])
        qd *= 1e-3
    if situation == "deep":
        gap = -rng.uniform(0.005, 0.03)
    q = placed(scene, q, gap)
    restitution = rng.choice([0.0, rng.uniform(0.1, 0.9)])
    numbers = [rng.uniform(0.2, 1.0), restitution, 10 ** rng.uniform(-6, -2), *rng.uniform(50, 300, 2)]
    return Point(q, qd, np.array(numbers), rng.normal(size=model.nq + model.nv))


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
    """Findings at random states of a scene, and the points where they were made."""
    scene = SCENES[name][0]()
    measure, kinds = measure_of(scene.model), columns(scene.model)
    rng = np.random.default_rng(seed)
    findings, points = [], []
    for number in range(states):
        point = draw(scene, SITUATIONS[number % len(SITUATIONS)], rng)
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
        f"state, {', '.join(NUMBERS)}, masses and sizes. Errors are relative to the largest entry of the kind.",
        f"Compared where the nearest change of mode is over {MARGIN:g} m/s away; a miss is an error over {LIMIT:g}. "
        "NaN are counted everywhere.",
        "",
        "| scene | states | unsolved | NaN | compared | "
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
    parser.add_argument("--scene", choices=SCENES, help="one scene only; the table is only printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "contact_gradients.md")
    options = parser.parse_args()
    states = 300 if options.quick else options.states
    results = {}
    for name in [options.scene] if options.scene else SCENES:
        start = time.perf_counter()
        count = states if options.scene else round(SCENES[name][1] * states)
        results[name], points = examine(name, count, options.seed)
        print(f"{name}: {count} states in {time.perf_counter() - start:.0f} s", flush=True)
        for finding, point in zip(results[name], points, strict=True):
            if missed(finding):
                print(f"  missed: {finding}\n    {[a.tolist() for a in point[:3]]}")
    text = table(results)
    print(text)
    if not (options.quick or options.scene):
        options.output.write_text(text)
    return 1 if any(missed(f) for findings in results.values() for f in findings) else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
