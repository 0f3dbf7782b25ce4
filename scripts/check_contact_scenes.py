"""Simulate random contact scenes in native code, and judge every step by laws written out in NumPy.

python scripts/check_contact_scenes.py [--share S] [--only TEXT [--update]] [--quick] [--replay NUMBER]

One to four bodies, free and jointed, of all shapes; mass ratios to 1e6, friction 0 to 1000, steps of 1e-5 to 0.05 s;
overlaps as deep as the bodies, exactly aligned and coincident bodies; all contact models (`contact_scenes/draw.py`). A
scene is drawn from its number: --replay runs one again and prints what was found in each step. Faults
(`contact_scenes/judge.py`) are NaN, a step marked as converged whose impulses do not obey the law, momentum or velocity
that impulses do not explain, energy that the recovery of overlap does not explain, overlap that grows, and an unsolved
step that more than doubles the energy. On a sample, gradients through the first steps must be finite.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from contact_scenes.audit import STEPS, record, run
from contact_scenes.draw import CATEGORIES, COSTLY, RIGID, draw, numbers
from contact_scenes.gradients import SAMPLED, gradient_is_finite
from contact_scenes.judge import FAULTS, judge, judge_steps

from knuckle.native import compile as native_compiler

ROOT = Path(__file__).parents[1]
SEED = 0
WANTED_SCENES = 10_000
LEAST_SOLVED = 0.99  # of the steps of rigid and implicit contact; explicit substeps are refused where they are too long
QUICK = {("box", "newton"): 12, ("sphere", "passive"): 6, ("two spheres", "compliant"): 6}
EXPLICIT = "substeps"


class Category(NamedTuple):
    """What was found in the scenes of a category."""

    scenes: int
    counts: dict[str, int]  # steps by what they show
    faulty: dict[str, list[int]]  # numbers of the scenes that show each fault
    gradients: int  # how many were computed
    rough: list[int]  # scenes whose gradient is not finite


Survey = dict[str, Category]


def survey(chosen: dict[int, range], gradients: int, keep: Callable[[Survey], None]) -> Survey:
    """Categories in turn, those that compile fast first; `keep` is called after each."""
    found: Survey = {}
    for count, category in enumerate(sorted(chosen, key=_cost)):
        began = time.perf_counter()
        title = "/".join(CATEGORIES[category])
        own = found[title] = examine(chosen[category], gradients if CATEGORIES[category] in SAMPLED else 0)
        print(f"{title}: {own}, {time.perf_counter() - began:.0f} s", flush=True)
        keep(found)
        if count % 8 == 7:
            jax.clear_caches()
    return found


def _cost(category: int) -> tuple[bool, bool]:
    family, kind = CATEGORIES[category]
    return family in COSTLY, kind not in RIGID


def examine(scenes: range, gradients: int) -> Category:
    counts, faulty = Counter(), {}
    for number in scenes:
        scene = draw(number, SEED)
        own = judge(scene, record(scene, run(scene)))
        counts.update({name: count for name, count in own.items() if count})
        for fault in (fault for fault in FAULTS if own[fault]):
            faulty.setdefault(fault, []).append(number)
    rough = [number for number in scenes[:gradients] if not gradient_is_finite(draw(number, SEED))]
    return Category(len(scenes), dict(counts), faulty, min(gradients, len(scenes)), rough)


def replay(number: int) -> None:
    scene = draw(number, SEED)
    print(scene)
    found = record(scene, run(scene))
    print(dict(judge(scene, found)))
    for line in judge_steps(scene, found):
        print(line)


def claims(found: Survey) -> list[dict]:
    totals = sum((Counter(c.counts) for c in found.values()), Counter())
    solver = [Counter(c.counts) for title, c in found.items() if not title.endswith(EXPLICIT)]
    unsolved, contradictory, judged = (
        sum(c[name] for c in solver) for name in ("not converged", "contradictory", "steps")
    )
    scenes = sum(c.scenes for c in found.values())
    rows: list[tuple] = [("scenes", scenes, f">= {WANTED_SCENES}", scenes >= WANTED_SCENES)]
    rows.append(("categories", len(found), f">= {len(CATEGORIES)}", len(found) >= len(CATEGORIES)))
    rows += [(f"steps with a fault: {fault}", totals[fault], "0", totals[fault] == 0) for fault in FAULTS]
    share = 1 - (unsolved - contradictory) / max(judged - contradictory, 1)
    what = "share of steps solved, but for explicit substeps and constraints that contradict"
    rows.append((what, share, f">= {LEAST_SOLVED}", share >= LEAST_SOLVED))
    rough = sum(len(c.rough) for c in found.values())
    rows.append((f"of {sum(c.gradients for c in found.values())} gradients, not finite", rough, "0", rough == 0))
    return [dict(zip(("what", "measured", "wanted", "holds"), row, strict=True)) for row in rows]


def as_json(found: Survey) -> dict:
    return {
        "command": "python scripts/check_contact_scenes.py",
        "seed": SEED,
        "steps_per_scene": STEPS,
        "claims": claims(found),
        "categories": {title: own._asdict() for title, own in found.items()},
    }


def write(folder: Path, found: Survey) -> None:
    (folder / "contact_scenes.json").write_text(json.dumps(as_json(found), indent=1) + "\n")
    (folder / "contact_scenes.md").write_text(as_table(found))


def read(folder: Path) -> Survey:
    file = folder / "contact_scenes.json"
    kept = json.loads(file.read_text())["categories"] if file.exists() else {}
    return {title: Category(**own) for title, own in kept.items()}


def as_table(found: Survey) -> str:
    columns = ("steps", "in contact", "not converged", "contradictory", "ran away", *FAULTS)
    lines = [
        "# Random contact scenes",
        "",
        f"`python scripts/check_contact_scenes.py`, seed {SEED}, {STEPS} steps a scene. `ran away`: scenes that are",
        "judged up to where the free motion of a fast spin diverged (the integrator's, not that of contact).",
        "`contradictory`: steps that are not converged because an equality holds a body inside another.",
        "",
        "| claim | measured | wanted | holds |",
        "|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_text(row[key]) for key in row) + " |" for row in claims(found)]
    lines += ["", "| scenes of | scenes | " + " | ".join(columns) + " |", "|---|" + "---|" * (len(columns) + 1)]
    for title, own in found.items():
        cells = [title, own.scenes, *(own.counts.get(name, 0) for name in columns)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _text(value) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


def choose(options: argparse.Namespace) -> dict[int, range]:
    if options.quick:
        return {CATEGORIES.index(c): numbers(CATEGORIES.index(c))[:count] for c, count in QUICK.items()}
    every = {c: numbers(c, options.share) for c in range(len(CATEGORIES))}
    return {c: scenes for c, scenes in every.items() if options.only in "/".join(CATEGORIES[c])}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of all scenes")
    parser.add_argument("--only", default="", help="categories whose name (family/contact model) contains this")
    parser.add_argument("--quick", action="store_true", help="a few scenes of three categories; only printed")
    parser.add_argument("--gradients", type=int, default=25, help="scenes of each sampled category")
    parser.add_argument("--update", action="store_true", help="put what is found in place of that of the kept run")
    parser.add_argument("--replay", type=int, help="the number of one scene")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        replay(options.replay)
        return 0
    kept = read(options.output) if options.update else {}
    whole = options.update or not (options.quick or options.only or options.share < 1)

    def keep(found: Survey) -> None:
        if whole:
            write(options.output, kept | found)

    found = kept | survey(choose(options), 0 if options.quick else options.gradients, keep)
    print(as_table(found))
    return int(not all(row["holds"] for row in claims(found) if whole or row["what"] not in ("scenes", "categories")))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    np.set_printoptions(precision=3, linewidth=160)
    native_compiler.CODEGEN_LEVEL = 0  # programs are many and run for a moment; the results are the same bits
    sys.exit(main())
