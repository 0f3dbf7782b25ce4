"""Compare native code with jax.jit on the dynamics of every robot of the data set up to 60 degrees of freedom.

python scripts/check_native.py [FOLDER] [--output FILE] [--most N] [--states N] [--match TEXT]

Forward dynamics is judged by what it balances: M (qdd - qdd') against the terms |M| |qdd| + |bias| + |tau|. Inverse
dynamics is judged against the same terms, the mass matrix against sqrt(M_ii M_jj). The limit is 1e-12 of these.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import knuckle as kn
from knuckle import native
from knuckle.model.joints import retract
from knuckle.model.report import LoadError, LoadWarning

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("KNUCKLE_DATA", ROOT.parent / "shared" / "data")) / "robots"
LIMIT = 1e-12
QUANTITIES = ("forward dynamics", "inverse dynamics", "mass matrix")
QUICK: dict = {"xla_backend_optimization_level": 0}  # compiles in half the time


def dynamics_of(model: kn.Model) -> Callable:
    def dynamics(q, qd, tau):
        qdd = kn.dynamics.aba(model, q, qd, tau)
        return qdd, kn.dynamics.rnea(model, q, qd, tau), kn.dynamics.crba(model, q)

    return dynamics


def errors(model: kn.Model, states: int) -> dict[str, float]:
    """The largest difference between native code and jax.jit over random states, relative to the terms."""
    function = dynamics_of(model)
    fast, plain = native.jit(function), jax.jit(function, compiler_options=QUICK)
    generator = np.random.default_rng(0)
    worst: dict[str, float] = dict.fromkeys(QUANTITIES, 0.0)
    for _ in range(states):
        q, qd, tau = random_state(model, generator)
        found = [np.asarray(x) for x in fast(q, qd, tau)]
        expected = [np.asarray(x) for x in plain(q, qd, tau)]
        for name, error in zip(QUANTITIES, compare(found, expected, tau), strict=True):
            worst[name] = max(worst[name], error)
    return worst


def random_state(model: kn.Model, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    move, qd, tau = generator.normal(size=(3, model.nv))
    return np.asarray(retract(model, np.asarray(model.reference), move)), qd, tau


def compare(found: list[np.ndarray], expected: list[np.ndarray], tau: np.ndarray) -> tuple[float, float, float]:
    (qdd, force, mass), (qdd_found, force_found, mass_found) = expected, found
    size = np.abs(mass)
    bias = force - mass @ tau  # the inverse dynamics were taken at the acceleration tau
    terms = size @ np.abs(qdd) + np.abs(bias) + np.abs(tau)
    forward = np.abs(mass @ (qdd_found - qdd)).max(initial=0) / terms.max(initial=1e-300)
    inverse = np.abs(force_found - force).max(initial=0) / (size @ np.abs(tau) + np.abs(bias)).max(initial=1e-300)
    diagonal = np.sqrt(np.abs(np.diag(mass)))
    entries = np.abs(mass_found - mass) / np.maximum(np.outer(diagonal, diagonal), 1e-300)
    return float(forward), float(inverse), float(entries.max(initial=0))


def load(path: Path) -> kn.Model | None:
    """The robot, mended if need be; None if it is refused."""
    try:
        return kn.load(path, repair_inertia=path.suffix == ".urdf")
    except LoadError:
        return None


def row(path: Path, nv: int, states: int) -> dict:
    start = time.perf_counter()
    model = load(path)
    result: dict = {"file": path.name, "nv": nv, "remark": ""}
    if model is None:
        result["remark"] = "refused by the loader"
    else:
        result |= errors(model, states)
        if not max(result[name] for name in QUANTITIES) <= LIMIT:
            result["remark"] = "BEYOND THE LIMIT"
    jax.clear_caches()
    print(f"{time.perf_counter() - start:6.1f} s  {nv:3}  {path.name} {result['remark']}", flush=True)
    return result


def table(rows: list[dict], most: int, states: int) -> str:
    compared = [r for r in rows if QUANTITIES[0] in r]
    worst = ", ".join(f"{name} {max((r[name] for r in compared), default=0):.1e}" for name in QUANTITIES)
    lines = [
        "# Native code beside jax.jit on every robot",
        "",
        f"Written by `python scripts/check_native.py`: {len(compared)} robots of up to {most} degrees of freedom, "
        f"{states} random states each, float64.",
        f"Largest differences, relative to the terms: {worst}. Limit {LIMIT:g}.",
        "",
        "| file | nv | " + " | ".join(QUANTITIES) + " | remark |",
        "|---|--:|" + "--:|" * len(QUANTITIES) + "---|",
    ]
    for r in sorted(rows, key=lambda r: (r["nv"], r["file"])):
        cells = [f"{r[name]:.1e}" if name in r else "" for name in QUANTITIES]
        lines.append(f"| {r['file']} | {r['nv']} | {' | '.join(cells)} | {r['remark']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help=f"holds urdf/ and mjcf/ (default {DATA})")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "native_robots.md")
    parser.add_argument("--most", type=int, default=60, help="degrees of freedom")
    parser.add_argument("--states", type=int, default=2)
    parser.add_argument("--match", default="", help="only files whose name has this; the table is then printed")
    options = parser.parse_args()
    manifests = [options.folder / kind / "manifest.csv" for kind in ("urdf", "mjcf")]
    missing = [str(m) for m in manifests if not m.is_file()]
    if missing:
        parser.error(f"expected the files {', '.join(missing)}")
    entries = [(m.parent / e["file"], int(e["nv"])) for m in manifests for e in csv.DictReader(m.open())]
    wanted = sorted((nv, path) for path, nv in entries if nv <= options.most and options.match in path.name)
    rows = [row(path, nv, options.states) for nv, path in wanted]
    text = table(rows, options.most, options.states)
    if options.match:
        print(text)
    else:
        options.output.write_text(text)
    beyond = sum(r["remark"] == "BEYOND THE LIMIT" for r in rows)
    print(f"{beyond} of {len(rows)} robots beyond the limit")
    return 1 if beyond else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", LoadWarning)
    sys.exit(main())
