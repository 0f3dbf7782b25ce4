"""Speed of this tree against that of an earlier commit, interleaved on one core: nothing should become slower.

Run: python benchmarks/against_commit.py COMMIT [--rounds 8] [--benchmarks native_speed contact_speed hybrid_speed]
[--full]. Each round runs each benchmark (`--quick`, unless `--full`) in a worktree of the commit and here, in turn, and
the best time of each row counts. Peers, the same code in both, show what the noise is. Writes
benchmarks/results/against_commit.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SPEED = ("native_speed", "contact_speed", "hybrid_speed")
ALLOWED = 1.05
LINE = re.compile(r"^(?P<row>\S.*\S)\s+first\s+[\d.]+ s\s+(?P<us>[\d.]+) us\b", re.MULTILINE)
Times = dict[str, float]


def run_once(tree: Path, benchmark: str, models: Path, cache: Path, full: bool) -> Times:
    """Microseconds of each row that a benchmark prints."""
    words = [sys.executable, str(tree / "benchmarks" / f"{benchmark}.py"), str(models), *([] if full else ["--quick"])]
    environment = os.environ | {"PYTHONPATH": str(tree), "KNUCKLE_CACHE": str(cache)}
    run = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{benchmark} in {tree}:\n{run.stdout}\n{run.stderr}")
    return {" ".join(f"{benchmark}: {match['row']}".split()): float(match["us"]) for match in LINE.finditer(run.stdout)}


def best_of(times: Times, more: Times) -> Times:
    return {row: min(times.get(row, us), us) for row, us in more.items()} | {
        row: us for row, us in times.items() if row not in more
    }


def interleave(old: Path, options: argparse.Namespace, folder: Path) -> tuple[Times, Times]:
    """The best time of each row, in the old tree and in this one."""
    best: dict[Path, Times] = {old: {}, ROOT: {}}
    for round_ in range(options.rounds):
        for benchmark in options.benchmarks:
            for tree in (old, ROOT) if round_ % 2 else (ROOT, old):
                cache = folder / ("cache_old" if tree == old else "cache_new")
                cache.mkdir(mode=0o700, exist_ok=True)
                best[tree] = best_of(best[tree], run_once(tree, benchmark, options.models, cache, options.full))
            print(f"round {round_ + 1} of {options.rounds}: {benchmark}", flush=True)
    return best[old], best[ROOT]


def summarise(commit: str, old: Times, new: Times) -> dict:
    rows = [{"row": row, "ours": "knuckle" in row, "old_us": old[row], "new_us": new[row]} for row in new if row in old]
    for row in rows:
        row["ratio"] = row["new_us"] / row["old_us"]
    slowest = max((row for row in rows if row["ours"]), key=lambda row: row["ratio"])
    noise = max((abs(row["ratio"] - 1) for row in rows if not row["ours"]), default=float("nan"))
    claim = {
        "what": f"slowest row against {commit}: {slowest['row']} (peers differ by up to {noise:.1%})",
        "measured": slowest["ratio"],
        "wanted": f"at most {ALLOWED}",
        "holds": slowest["ratio"] <= ALLOWED,
    }
    return {"commit": commit, "rows": rows, "claims": [claim]}


def table(found: dict) -> str:
    lines = [f"Against {found['commit']}", "", "| row | before [us] | now [us] | ratio |", "|---|---|---|---|"]
    lines += [f"| {r['row']} | {r['old_us']:.4g} | {r['new_us']:.4g} | {r['ratio']:.3f} |" for r in found["rows"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--models", type=Path, default=ROOT / "../shared/benchmark_models")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--benchmarks", nargs="+", choices=SPEED, default=SPEED)
    parser.add_argument("--full", action="store_true", help="without --quick; results of both trees are overwritten")
    options = parser.parse_args()
    options.models = options.models.resolve()
    with tempfile.TemporaryDirectory() as name:
        old = Path(name) / "old"
        subprocess.run(["git", "worktree", "add", "--detach", str(old), options.commit], cwd=ROOT, check=True)
        try:
            found = summarise(options.commit, *interleave(old, options, Path(name)))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    print(table(found), json.dumps(found["claims"], indent=1))
    (HERE / "results/against_commit.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "results/against_commit.md").write_text(table(found))


if __name__ == "__main__":
    main()
