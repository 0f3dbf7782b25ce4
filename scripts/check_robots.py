"""Load every robot, compare it with MuJoCo (MJCF) or Pinocchio (URDF), and write the table docs/robots.md.

python scripts/check_robots.py [FOLDER] [--output FILE] [--states N] [--match TEXT]
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
from check_robots_mjcf import check_mjcf
from check_robots_urdf import check_urdf

from knuckle import native
from knuckle.model.load import load
from knuckle.model.report import LoadError, LoadWarning

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("KNUCKLE_DATA", ROOT.parent / "shared" / "data")) / "robots"
RELATIVE, BACKWARD = 1e-9, 1e-10
MOST_NATIVE = 60  # degrees of freedom; beyond, dense mass matrices are what XLA is quicker to compile
KINDS = {"MJCF against MuJoCo": "mjcf", "URDF against Pinocchio": "urdf"}  # heading -> folder
COLUMNS = {  # heading -> keys of the two checks' results, of which the largest is shown
    "mass matrix": ("mass matrix", "mass_matrix"),
    "bias force": ("bias force", "bias"),
    "poses": ("position", "rotation", "pose"),
    "Jacobians": ("jacobian",),
    "joint forces": ("passive force", "actuator force"),
    "step": ("step",),
    "backward error": ("backward error", "backward"),
}
INTRODUCTION = """# Robots

Written by `python scripts/check_robots.py`: every robot description of the data set, how it loads, and the largest
relative error against the reference engine over {states} random states in float64. *strict* loads as it is, *mended*
loads with `repair_inertia=True` (the offending links are listed), *refused* names the reason.

MJCF is compared with MuJoCo's smooth dynamics: constraints are off, and with them frictionloss, which is a constraint
in MuJoCo and a smooth joint force here. Forward dynamics is judged by its backward error, |M qdd + C - tau| over the
size of its terms, with M and C of the reference engine. Limits: {relative:g} relative, {backward:g} backward.
Robots of up to {native} degrees of freedom go through `knuckle.native`, larger ones through `jax.jit`.

{summary}
"""


@dataclass
class Row:
    """One robot: how it loads, what the manifest says of it, and its errors by column."""

    file: str
    loads: str  # strict, mended, refused, or failed: it could not be compared
    remark: str = ""
    nv: int | None = None
    mass: float | None = None
    errors: dict[str, float | None] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # what breaks a promise

    def add_errors(self, found: dict) -> None:
        for heading, keys in COLUMNS.items():
            values = [found[key] for key in keys if found.get(key) is not None]
            self.errors[heading] = max(values) if values else None
            limit = BACKWARD if heading == "backward error" else RELATIVE
            if values and not max(values) < limit:
                self.faults.append(f"{heading} {max(values):.1e}")

    def check_manifest(self, nv: str, mass: str) -> None:
        if self.nv != int(nv):
            self.faults.append(f"nv {self.nv}, the manifest has {nv}")
        if self.mass is None or not math.isclose(self.mass, float(mass), rel_tol=RELATIVE):
            self.faults.append(f"mass {self.mass!r}, the manifest has {mass}")


def compiler_for(entry: dict[str, str]) -> Callable:
    return native.jit if int(entry["nv"]) <= MOST_NATIVE else jax.jit


def mjcf_row(path: Path, entry: dict[str, str], states: int) -> Row:
    result = check_mjcf(path, states, compiler=compiler_for(entry))
    if result["loads"] == "refused":
        return Row(path.name, "refused", result["reason"])
    row = Row(path.name, "strict", nv=result["nv"], mass=result["mass"])
    row.check_manifest(entry["nv"], entry["mass"])
    row.add_errors(result["errors"])
    return row


def urdf_row(path: Path, entry: dict[str, str], states: int) -> Row:
    try:
        model, problems = load(path), ()
    except LoadError as strict:
        problems = strict.problems
        try:
            model = load(path, repair_inertia=True)
        except LoadError as error:
            return Row(path.name, "refused", "; ".join(map(str, error.problems)) or str(error))
    row = Row(path.name, "mended" if problems else "strict", "; ".join(map(str, problems)))
    row.nv, row.mass = model.nv, float(model.mass)
    result = check_urdf(path, states=states, compiler=compiler_for(entry))
    row.check_manifest(entry["nv"], entry["moving_mass"])
    row.add_errors(result)
    row.remark = "; ".join(filter(None, (row.remark, result["note"])))
    return row


def checked(path: Path, entry: dict[str, str], states: int) -> Row:
    """The row of one robot; one that cannot be compared must not hide the others."""
    check = urdf_row if path.parent.name == "urdf" else mjcf_row
    try:
        return check(path, entry, states)
    except Exception as error:
        return Row(path.name, "failed", faults=[f"{type(error).__name__}: {error}"])
    finally:
        jax.clear_caches()


def check_all(folder: Path, states: int, match: str) -> dict[str, list[Row]]:
    """The rows of all files that the manifests name, by heading, in the order of names."""
    found = {kind: csv.DictReader((folder / kind / "manifest.csv").open()) for kind in KINDS.values()}
    work = [(kind, e) for kind, entries in found.items() for e in sorted(entries, key=lambda e: e["file"])]
    work = [(kind, e) for kind, e in work if match in e["file"]]
    rows: dict[str, list[Row]] = {kind: [] for kind in found}
    begun = time.perf_counter()
    for number, (kind, entry) in enumerate(work, 1):
        start = time.perf_counter()
        row = checked(folder / kind / entry["file"], entry, states)
        rows[kind].append(row)
        now = time.perf_counter()
        left = (now - begun) / number * (len(work) - number) / 60
        progress = f"{number:3}/{len(work)} {now - start:5.1f} s, {left:4.1f} min left"
        print(f"{progress}  {row.loads:8}{row.file}", *row.faults, flush=True)
    return {heading: rows[kind] for heading, kind in KINDS.items() if rows[kind]}


def table(rows: list[Row]) -> str:
    headings = ("file", "loads", "nv", "mass [kg]", *COLUMNS, "remark")
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for row in rows:
        errors = [row.errors.get(heading) for heading in COLUMNS]
        numbers = ["" if row.nv is None else str(row.nv), "" if row.mass is None else f"{row.mass:.6g}"]
        cells = [row.file, row.loads, *numbers, *("" if e is None else f"{e:.0e}" for e in errors)]
        lines.append("| " + " | ".join([*cells, _shortened("; ".join(filter(None, (row.remark, *row.faults))))]) + " |")
    return "\n".join(lines)


def _shortened(remark: str, most: int = 400) -> str:
    remark = " ".join(remark.replace("|", "\\|").split())
    return remark if len(remark) <= most else remark[: most - 4].rsplit(" ", 1)[0] + " ..."


def summary(title: str, rows: list[Row]) -> str:
    counts = {word: sum(row.loads == word for row in rows) for word in ("strict", "mended", "refused", "failed")}
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    worst = {h: max((row.errors.get(h) or 0.0 for row in rows), default=0.0) for h in COLUMNS}
    errors = ", ".join(f"{heading} {error:.0e}" for heading, error in worst.items() if error)
    return f"**{title}** ({len(rows)} files): {listed}. Largest errors: {errors}."


def report(tables: dict[str, list[Row]], states: int) -> str:
    summaries = "\n\n".join(summary(title, rows) for title, rows in tables.items())
    head = INTRODUCTION.format(
        states=states, relative=RELATIVE, backward=BACKWARD, native=MOST_NATIVE, summary=summaries
    )
    return head + "".join(f"\n## {title}\n\n{table(rows)}\n" for title, rows in tables.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help=f"holds urdf/ and mjcf/ (default {DATA})")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "robots.md")
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--match", default="", help="only files whose name has this; the table is then printed")
    arguments = parser.parse_args()
    missing = [kind for kind in KINDS.values() if not (arguments.folder / kind / "manifest.csv").is_file()]
    if missing:
        parser.error(f"{arguments.folder}: expected the folders {', '.join(missing)}, each with a manifest.csv")
    try:
        tables = check_all(arguments.folder, arguments.states, arguments.match)
    except KeyboardInterrupt:
        print(f"\nstopped; {arguments.output} is as it was", file=sys.stderr)
        return 130
    if not tables:
        parser.error(f"--match {arguments.match!r}: no file has this in its name")
    text = report(tables, arguments.states)
    if arguments.match:
        print(text)
    else:
        arguments.output.write_text(text)
    faults = [f"{row.file}: {', '.join(row.faults)}" for rows in tables.values() for row in rows if row.faults]
    print(*faults, f"{len(faults)} robots break a promise", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", LoadWarning)
    sys.exit(main())
