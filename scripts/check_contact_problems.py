"""Solve many-contact problems drawn from simulated scenes, and judge the answers by the laws written out in NumPy.

python scripts/check_contact_problems.py [--problems N] [--quick] [--scene NAME] [--output FILE]

Each scene is simulated from random starts (`Impulse`, true cone); steps in which two rows or more push are problems.
Every solver solves each of them from zero (cold) and from the impulses of the step before (warm; those of the true cone
for all). The residual is the natural map of the laws [m/s], computed here from A, b and r alone: on the true cone De
Saxce's; for pyramids the projection on the polygon of friction; and those of limits, equalities and joint friction.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact import Impulse, InteriorPoint
from knuckle.contact.coupling import joined
from knuckle.contact.laws import Between, Bounded, Coulomb
from knuckle.contact.solver import Solution
from knuckle.contact.system import System

ROOT = Path(__file__).parents[1]
DT = 2e-3
TOLERANCE = 1e-8  # [m/s]
ROUNDING = 1e-11  # [m/s], of A r with heavy loads on light bodies
WANTED = 0.995
SWEEPS = 2000  # of Gauss-Seidel, of which an iteration is the cheapest
EVERY = 7  # steps between two problems of one run
PUSHES = 1e-9  # [N s]
MOST_NATIVE_ROWS = 30


class Scene(NamedTuple):
    """A model, random starts of it, and how many steps a run has."""

    model: kn.Model
    start: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    steps: int
    most_contacts: int = 24


class Problem(NamedTuple):
    """Rows u = A r + b under their laws, and the impulses of the step before."""

    system: System
    warm: np.ndarray


class Finding(NamedTuple):
    """What a solver made of a problem."""

    residual: float  # computed here
    said: bool  # that it converged
    finite: bool
    iterations: int


def ground(friction: float = 0.6):
    return [kn.shapes.plane(friction=(friction,))]


def upright(positions) -> np.ndarray:
    return np.concatenate([[*p, 1.0, 0, 0, 0] for p in positions])


def free_box(name: str, mass: float, half=(0.1, 0.1, 0.1)) -> kn.Link:
    return kn.Link(name, joints=kn.free(), mass=mass, shapes=kn.shapes.box(*half, friction=(0.6,)))


def tossed_box() -> Scene:
    def start(rng):
        turn = rng.normal(size=4)
        return np.array([0, 0, 0.2, *(turn / np.linalg.norm(turn))]), rng.normal(size=6) * [1, 1, 1, 6, 6, 6]

    return Scene(kn.build([free_box("box", 1.0)], world_shapes=ground()), start, 250)


def stack(count: int, mass_ratio: float) -> Scene:
    """Boxes on each other, the top one `mass_ratio` times as heavy as the lowest; each is kicked."""
    masses = mass_ratio ** np.linspace(0, 1, count)
    model = kn.build([free_box(f"box{k}", m) for k, m in enumerate(masses)], world_shapes=ground())

    def start(rng):
        places = [[*rng.uniform(-0.02, 0.02, 2), 0.1 + 0.2 * k] for k in range(count)]
        return upright(places), rng.normal(size=6 * count) * rng.choice([0.01, 0.3, 1.0])

    return Scene(model, start, 100)


def tower() -> Scene:
    """Five balls on each other, each ten times as heavy as the one below, with small offsets."""
    links = [
        kn.Link(f"ball{k}", joints=kn.free(), mass=10.0**k, shapes=kn.shapes.sphere(0.1, friction=(0.6,)))
        for k in range(5)
    ]

    def start(rng):
        places = [[*rng.uniform(-3e-3, 3e-3, 2), 0.1 + 0.2 * k] for k in range(5)]
        return upright(places), rng.normal(size=30) * rng.choice([0.01, 0.3])

    return Scene(kn.build(links, world_shapes=ground()), start, 80)


def pile() -> Scene:
    """Boxes, balls and capsules that fall on each other."""
    shapes = [
        lambda: kn.shapes.box(0.12, 0.08, 0.06, friction=(0.5,)),
        lambda: kn.shapes.sphere(0.09, friction=(0.5,)),
        lambda: kn.shapes.capsule(0.05, 0.1, friction=(0.5,)),
    ]
    masses = (5.0, 1.0, 0.1, 0.5, 20.0, 2.0)
    links = [kn.Link(f"b{k}", joints=kn.free(), mass=m, shapes=shapes[k % 3]()) for k, m in enumerate(masses)]

    def start(rng):
        q = []
        for k in range(6):
            turn = rng.normal(size=4)
            q += [*rng.uniform(-0.08, 0.08, 2), 0.16 + 0.19 * k, *(turn / np.linalg.norm(turn))]
        qd = 0.3 * rng.normal(size=36)
        qd[2::6] -= 2.0
        return np.array(q), qd

    return Scene(kn.build(links, world_shapes=ground(0.5)), start, 300)


def quadruped() -> Scene:
    """A trunk on four legs that lands: joint limits, dry friction in the joints, balls for feet, a box for a trunk."""
    trunk = kn.shapes.box(0.2, 0.1, 0.04)
    links = [kn.Link("trunk", joints=kn.free(), mass=6.0, com=(0, 0, 0), inertia=(0.02, 0.06, 0.07), shapes=trunk)]
    for x in (-0.2, 0.2):
        for y in (-0.13, 0.13):
            name = f"leg{len(links) // 2}"
            body = {"mass": 0.8, "com": (0, 0, -0.1), "inertia": (4e-3, 4e-3, 8e-4)}
            foot = kn.shapes.sphere(0.02, position=(0, 0, -0.2))
            hip = kn.revolute("y", lower=-1.0, upper=1.2, friction=0.3)
            knee = kn.revolute("y", lower=-2.3, upper=-0.2, friction=0.2)
            links.append(kn.Link(f"{name}_upper", "trunk", hip, (x, y, 0), **body))
            links.append(kn.Link(f"{name}_lower", f"{name}_upper", knee, (0, 0, -0.2), shapes=foot, **body))

    def start(rng):
        q = np.concatenate([[0, 0, 0.37, 1, 0.1 * rng.normal(), 0.1 * rng.normal(), 0], np.tile([0.6, -1.2], 4)])
        q[3:7] /= np.linalg.norm(q[3:7])
        return q, rng.normal(size=14) * 0.5 - 1.0 * (np.arange(14) == 2)

    return Scene(kn.build(links, world_shapes=ground()), start, 200)


def hinged_boxes() -> Scene:
    """Two pairs of boxes with limited hinges, the pairs joined at a point and by a mimic, dropped on the ground."""
    links = []
    for k in range(2):
        shape = {"mass": (1.0, 30.0)[k], "shapes": kn.shapes.box(0.1, 0.1, 0.05, friction=(0.6,))}
        hinge = kn.revolute("y", lower=-0.4, upper=0.5, friction=0.1)
        links.append(kn.Link(f"base{k}", joints=kn.free(), **shape))
        links.append(
            kn.Link(f"lid{k}", f"base{k}", hinge, (0.12, 0, 0), com=(0.1, 0, 0), inertia=(0.01,) * 3, mass=0.5)
        )
        tip = kn.Link(f"tip{k}", f"lid{k}", kn.revolute("y", lower=-0.3, upper=0.3), (0.2, 0, 0), **shape)
        links.append(tip)
    held = [
        kn.Connect("base0", "base1", point_a=(-0.1, 0.0, 0.06), point_b=(-0.1, 0.0, -0.06)),
        kn.Mimic("tip0_joint", "lid0_joint", (0.0, 0.5, 0, 0, 0)),
    ]

    def start(rng):
        place = 0.07 + rng.uniform(0, 0.03)
        q = np.concatenate([upright([[0, 0, place]]), [0, 0], upright([[0, 0, place + 0.12]]), [0, 0]])
        return q, rng.normal(size=16) * rng.choice([0.1, 0.5])

    return Scene(kn.build(links, world_shapes=ground(), equalities=held), start, 150)


def planar_chain() -> Scene:
    """Three hinged links under a slider in a plane, balls at the joints: limits, dry friction, contacts of two rows."""
    links = [kn.Link("rail", joints=kn.prismatic("z"), mass=0.5), kn.Link("cart", "rail", kn.prismatic("x"), mass=0.5)]
    for k in range(3):
        tip = kn.shapes.sphere(0.04, position=(0, 0, -0.3))
        hinge = kn.revolute("y", lower=-1.8, upper=1.8, friction=0.2)
        place, moments = (0, 0, -0.3 if k else 0), (8e-3, 8e-3, 1e-3)
        body = {"mass": 10.0**k, "com": (0, 0, -0.15), "inertia": tuple(10.0**k * x for x in moments)}
        links.append(kn.Link(f"l{k}", links[-1].name, hinge, place, shapes=tip, **body))

    def start(rng):
        return np.array([0.3, 0.0, *rng.uniform(-1.2, 1.2, 3)]), rng.normal(size=5)

    return Scene(kn.build(links, world_shapes=ground()), start, 300)


SCENES: dict[str, Callable[[], Scene]] = {
    "tossed box": tossed_box,
    "four boxes": lambda: stack(4, 1.0),
    "four boxes, 1e4 on top": lambda: stack(4, 1e4),
    "four boxes, 1e-4 on top": lambda: stack(4, 1e-4),
    "five balls, 1e4 on top": tower,
    "pile of six": pile,
    "quadruped landing": quadruped,
    "hinged boxes": hinged_boxes,
    "planar chain": planar_chain,
}


QUICK = ("tossed box", "planar chain")  # few rows: compiled in seconds


class Solver(NamedTuple):
    contact: Impulse
    directions: int | None  # corners of the polygon of friction; None: a circle
    turn: float = 0.0  # angle from the first tangent to its first corner
    reach: float = 1.0  # its corners over friction times push


SOLVERS = {
    "Impulse": Solver(Impulse(), None),
    "Impulse(solver='gauss_seidel')": Solver(Impulse(solver="gauss_seidel", most_iterations=SWEEPS), None),
    "Impulse(pyramid=True)": Solver(Impulse(pyramid=True), 4, np.pi / 4, np.sqrt(2.0)),
    "InteriorPoint()": Solver(InteriorPoint(), 4),
    "InteriorPoint(directions=8)": Solver(InteriorPoint(directions=8), 8),
}


class Catching(Impulse):
    """`Impulse` that shows the systems that it is asked to solve, with A as a matrix for the judge."""

    @property
    def needs_matrix(self):
        return True

    def solve(self, system: System, start) -> Solution:
        CAUGHT.append((system, start))
        return Impulse.solve(self, system, start)


CAUGHT: list = []


def draw(scene: Scene, count: int, rng: np.random.Generator) -> list[Problem]:
    """Steps of simulated runs in which something pushes."""
    contact = Catching(most_contacts=scene.most_contacts)

    def step(state: kn.State):
        CAUGHT.clear()
        after = kn.step(scene.model, state, dt=DT, contact=contact)
        system, start = CAUGHT[0]
        return after, Problem(system, start)

    step, begin = kn.native.jit(step), contact.begin
    problems: list[Problem] = []
    while len(problems) < count:
        q, qd = scene.start(rng)
        state = begin(scene.model, kn.State(q, qd))
        first = rng.integers(EVERY)
        for number in range(scene.steps):
            state, problem = step(state)
            if number % EVERY == first and pushing(problem, state) > 1:
                problems.append(jax.tree.map(np.asarray, problem))
    chosen = rng.permutation(len(problems))[:count]
    return [problems[k] for k in chosen]


def pushing(problem: Problem, after: kn.State) -> int:
    """How many contacts, and rows of limits, equalities and joint friction, have an impulse."""
    contact = problem.system.laws[0]
    impulse = np.abs(np.asarray(after.impulse))
    others = sum(law.rows for law in problem.system.laws[1:])
    normals = impulse[: len(impulse) - others : contact.block]
    return int(np.sum(normals > PUSHES) + np.sum(impulse[len(impulse) - others :] > PUSHES))


LINEAR = ("Impulse(solver='gauss_seidel')",)  # convergence is linear: how much is solved is reported, not required


def with_law(system: System, solver: Solver) -> System:
    """The same rows under the solver's law of friction."""
    contact = system.laws[0]
    assert isinstance(contact, Coulomb)
    shape = jnp.zeros((0, contact.block, 3))
    law = solver.contact.hard_law(contact.friction, _Frame(shape))  # type: ignore[arg-type]
    return system._replace(laws=(law, *system.laws[1:]))


class _Frame(NamedTuple):
    """What a law has to know of a scene: how many axes contacts have."""

    frame: jax.Array
    turning: None = None

    @property
    def contact_rows(self) -> int:
        return self.frame.shape[1]


def solve_with(solver: Solver, rows: int) -> Callable:
    """The solver as native code, or for many rows by XLA, which then compiles in less time."""
    compiled = kn.native.jit if rows <= MOST_NATIVE_ROWS else jax.jit
    return compiled(lambda system, start: solver.contact.solve(with_law(system, solver), start))


def residual(system: System, r: np.ndarray, solver: Solver) -> float:
    """The largest natural map of any law [m/s]."""
    A = np.asarray(system.A)
    u, d = A @ r + np.asarray(joined(system.b)), np.diag(A)
    errors, start = [], 0
    for law in system.laws:
        at = slice(start, start + law.rows)
        start += law.rows
        if isinstance(law, Coulomb):
            shape = (-1, law.block)
            per_impulse = d[at].reshape(shape).mean(axis=1)
            for k, mu in enumerate(np.asarray(law.friction)):
                own = r[at].reshape(shape)[k], u[at].reshape(shape)[k], per_impulse[k], float(mu)
                errors.append(cone_error(*own) if solver.directions is None else polygon_error(*own, solver))
        elif isinstance(law, Between):
            low, high = np.asarray(law.lower), np.asarray(law.upper)
            errors.append(u[at] - np.clip(u[at] - d[at] * r[at], low, high))
        else:
            assert isinstance(law, Bounded)
            most = d[at] * np.asarray(law.bound)
            errors.append(d[at] * r[at] - np.clip(d[at] * r[at] - u[at], -most, most))
    return float(np.abs(np.concatenate(errors)).max())


def cone_error(r: np.ndarray, u: np.ndarray, d: float, mu: float) -> np.ndarray:
    """d r - d projection on Coulomb's cone of r - (u + mu |u_t| n)/d: zero if and only if Signorini's and Coulomb's
    laws and maximum dissipation hold (De Saxce and Feng 1998)."""
    aim = d * r - u
    aim[0] -= mu * np.linalg.norm(u[1:])
    n, t = aim[0], np.linalg.norm(aim[1:])
    if t <= mu * n:
        nearest = aim
    elif mu * t <= -n:
        nearest = np.zeros_like(aim)
    else:
        push = (n + mu * t) / (1 + mu**2)
        nearest = np.concatenate([[push], aim[1:] * (mu * push / t)])
    return d * r - nearest


def polygon_error(r: np.ndarray, u: np.ndarray, d: float, mu: float, solver: Solver) -> np.ndarray:
    """d r less what pushes apart and the polygon's nearest point (Alart and Curnier 1991): zero if and only if
    Signorini's law holds, friction lies in the polygon, and no other of it dissipates more."""
    aim = d * r - u
    push = max(aim[0], 0.0)
    if len(aim) == 2:
        return d * r - np.array([push, np.clip(aim[1], -mu * push, mu * push)])
    assert solver.directions is not None
    angles = solver.turn + 2 * np.pi * np.arange(solver.directions) / solver.directions
    corners = solver.reach * mu * push * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return d * r - np.concatenate([[push], nearest_in_polygon(aim[1:], corners)])


def nearest_in_polygon(x: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """The nearest point of a convex polygon with corners in order: x itself, or the nearest of all edges' points."""
    edges = np.roll(corners, -1, axis=0) - corners
    away = x - corners
    squared = (edges**2).sum(axis=1)
    if not squared.all():
        return corners[0]
    if (edges[:, 0] * away[:, 1] - edges[:, 1] * away[:, 0] >= 0).all():
        return x
    share = np.clip((away * edges).sum(axis=1) / squared, 0, 1)
    points = corners + share[:, None] * edges
    return points[np.argmin(((points - x) ** 2).sum(axis=1))]


def judge(problem: Problem, found: Solution, solver: Solver) -> Finding:
    r = np.asarray(found.impulse)
    finite = bool(np.isfinite(r).all() and np.isfinite(found.residual))
    error = residual(problem.system, r, solver) if finite else np.inf
    return Finding(error, bool(found.converged), finite, int(found.iterations))


Results = dict[tuple[str, str, str], list[Finding]]  # by scene, solver, start


def examine(name: str, problems: list[Problem]) -> Results:
    """What every solver makes of the problems."""
    results: Results = {}
    for title, solver in SOLVERS.items():
        solve = solve_with(solver, len(problems[0].warm))
        for start in ("cold", "warm"):
            found = [solve(p.system, np.zeros_like(p.warm) if start == "cold" else p.warm) for p in problems]
            results[name, title, start] = [judge(p, f, solver) for p, f in zip(problems, found, strict=True)]
    return results


def solved(finding: Finding) -> bool:
    return finding.said and finding.residual <= TOLERANCE + ROUNDING


def lied(finding: Finding) -> bool:
    """It says that it converged, and did not."""
    return finding.said and not finding.residual <= TOLERANCE + ROUNDING


def share(findings: list[Finding]) -> float:
    return sum(map(solved, findings)) / len(findings)


def of_solver(results: Results, title: str) -> list[Finding]:
    return [f for (_, other, _), findings in results.items() if other == title for f in findings]


def table(results: Results) -> str:
    scenes = list(dict.fromkeys(scene for scene, _, _ in results))
    problems = sum(len(results[scene, next(iter(SOLVERS)), "cold"]) for scene in scenes)
    lines = [
        "# Contact problems from scenes, solved to 1e-8 m/s",
        "",
        f"Written by `python scripts/check_contact_problems.py`: {problems} problems (steps of {1e3 * DT:g} ms in "
        "which two rows or more push), float64, each from zero (cold) and from the impulses of the step before (warm; "
        "those of the true cone). A problem is solved if the natural map of all its laws, computed from A, b and r in "
        "NumPy, is at most 1e-8 m/s. Cells: solved of all, cold and warm; median iterations, cold and warm.",
        "",
        "| scene | " + " | ".join(SOLVERS) + " |",
        "|---|" + "---|" * len(SOLVERS),
    ]
    for scene in scenes:
        cells = []
        for title in SOLVERS:
            both = [results[scene, title, start] for start in ("cold", "warm")]
            counts = " ".join(f"{sum(map(solved, f))}/{len(f)}" for f in both)
            cells.append(f"{counts}; {' '.join(f'{np.median([x.iterations for x in f]):.0f}' for f in both)}")
        lines.append(f"| {scene} | " + " | ".join(cells) + " |")
    every = {title: of_solver(results, title) for title in SOLVERS}
    totals = {
        "all, solved": lambda f: f"{100 * share(f):.2f} %",
        "said solved, above the tolerance": lambda f: sum(map(lied, f)),
        "NaN": lambda f: sum(not x.finite for x in f),
        "most iterations of a solved one": lambda f: max((x.iterations for x in f if solved(x)), default=0),
    }
    for what, count in totals.items():
        lines.append(f"| {what} | " + " | ".join(str(count(f)) for f in every.values()) + " |")
    return "\n".join(lines) + "\n"


def failed(results: Results) -> bool:
    every = {title: of_solver(results, title) for title in SOLVERS}
    solving = [share(f) >= WANTED for title, f in every.items() if title not in LINEAR]
    return not all(solving) or any(lied(x) or not x.finite for f in every.values() for x in f)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=120, help="per scene")
    parser.add_argument("--quick", action="store_true", help="15 problems of each of two scenes; only printed")
    parser.add_argument("--scene", choices=SCENES, help="one scene only; only printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "contact_problems.md")
    options = parser.parse_args(arguments)
    names = [options.scene] if options.scene else list(SCENES)
    if options.quick:
        names = list(QUICK)
    results: Results = {}
    for name in names:
        began = time.perf_counter()
        problems = draw(SCENES[name](), 15 if options.quick else options.problems, np.random.default_rng(options.seed))
        between = time.perf_counter()
        own = examine(name, problems)
        print(f"{name}: drawn in {between - began:.0f} s, solved in {time.perf_counter() - between:.0f} s", flush=True)
        for (_, title, start), findings in own.items():
            for number, finding in enumerate(findings):
                if not solved(finding) and title not in LINEAR:
                    print(f"  unsolved: {title}, {start}, problem {number}: {finding}", flush=True)
        results |= own
    text = table(results)
    print(text)
    if not (options.quick or options.scene):
        options.output.write_text(text)
    return int(failed(results))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
