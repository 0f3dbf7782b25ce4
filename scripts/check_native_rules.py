"""Compare native code with jax.jit on programs drawn from the parameter spaces of all primitives, and on random ones.

python scripts/check_native_rules.py [--draws N] [--programs N] [--rules NAMES] [--seed N] [--output FILE]

For every rule of native code: values, gradients inside and around, batches, lanes and exported C, over all dtypes,
empty and 0-d shapes, NaN, infinities and ties. Then random programs of many primitives. A program that native code
refuses with an error is counted; one that gives another result than JAX is a fault, and none is allowed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

import jax

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "native"))

from differential import CC, MODES, Difference, Seen, Undefined, check, check_program  # noqa: E402
from random_programs import random_program  # noqa: E402
from rule_programs import GENERATORS, Draw  # noqa: E402

from knuckle import native  # noqa: E402
from knuckle.native import lower, outline  # noqa: E402

LINE = re.compile(r"used at \S+\.py:\d+ .*jax\.jit will do")


class Survey:
    """Outcomes of many programs."""

    def __init__(self):
        self.count: Counter[str] = Counter()
        self.faults: list[dict] = []
        self.refusals: Counter[str] = Counter()
        self.without_line: list[str] = []

    def run(self, kind: str, name: str, seed: int, mode: str, compare) -> None:
        """Run one comparison and note how it ended."""
        try:
            compare()
            outcome = "agree"
        except Undefined:
            outcome = "undefined in JAX"
        except native.UnsupportedPrimitive as error:
            outcome = "refused"
            self.refusals[re.sub(r", used at.*", "", str(error))[:120]] += 1
            if not LINE.search(str(error)):
                self.without_line.append(str(error)[:200])
        except Difference as error:
            outcome = "different"
            self.faults.append({"kind": kind, "name": name, "seed": seed, "mode": mode, "what": str(error)[:400]})
        except Exception as error:
            outcome = "crash"
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error}"[:300] + f" at {Path(last.filename).name}:{last.lineno}"
            self.faults.append({"kind": kind, "name": name, "seed": seed, "mode": mode, "what": what})
        self.count[f"{kind}: {outcome}"] += 1
        if outcome in ("different", "crash"):
            print(f"FAULT {name} seed {seed} {mode}: {self.faults[-1]['what']}", flush=True)


def modes_of(number: int) -> list[str]:
    """Values of every draw; the other ways take turns."""
    others = [m for m in MODES if m != "values" and (m != "exported C" or CC)]
    return ["values", others[number % len(others)]]


def check_rule(survey: Survey, seen: Seen, name: str, draws: int, first: int) -> None:
    for number in range(draws):
        for mode in modes_of(number):
            draw = Draw(first + number, specials=not mode.startswith("gradient"))
            function, arguments = GENERATORS[name](draw)
            if mode == "values":
                seen.note(function, arguments)
            compare = partial(check, mode, name, function, arguments)
            survey.run("rules", name, first + number, mode, compare)


def check_rules(survey: Survey, seen: Seen, names: list[str], draws: int, first: int) -> None:
    usual = outline.SHORTEST, outline.SAVED
    for name in names:
        start = time.perf_counter()
        outline.SHORTEST, outline.SAVED = (5, 5) if name == "outlined_call" else usual
        check_rule(survey, seen, name, draws, first)
        outline.SHORTEST, outline.SAVED = usual
        jax.clear_caches()
        print(f"{time.perf_counter() - start:6.1f} s  {name}", flush=True)


def check_programs(survey: Survey, count: int, first: int) -> None:
    for seed in range(first, first + count):
        function, arguments = random_program(seed)
        others = [m for m in MODES if m != "values" and (m != "exported C" or CC)]
        for mode in ["values", *([others[seed // 5 % len(others)]] if seed % 5 == 0 else [])]:
            survey.run("programs", "random", seed, mode, partial(check_program, mode, function, arguments))
        if seed % 20 == 19:
            jax.clear_caches()
            print(f"{seed + 1 - first} programs", flush=True)


def claims(survey: Survey, names: list[str], programs: int) -> list[dict]:
    different = sum(f["kind"] == "rules" for f in survey.faults)
    other = sum(f["kind"] == "programs" for f in survey.faults)
    covered = len(set(names) & set(lower.RULES))
    return [
        {"what": "rules of native code that were compared with JAX", "measured": covered, "wanted": len(lower.RULES),
         "holds": covered == len(lower.RULES)},
        {"what": "faults in programs of one primitive", "measured": different, "wanted": 0, "holds": different == 0},
        {"what": "random programs of many primitives", "measured": programs, "wanted": 500, "holds": programs >= 500},
        {"what": "faults in random programs", "measured": other, "wanted": 0, "holds": other == 0},
        {"what": "refusals that do not name the user's line", "measured": len(survey.without_line), "wanted": 0,
         "holds": not survey.without_line},
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "native_programs.json")
    parser.add_argument("--draws", type=int, default=20, help="programs of each rule")
    parser.add_argument("--programs", type=int, default=500, help="random programs")
    parser.add_argument("--rules", default="", help="names with commas; all by default")
    parser.add_argument("--seed", type=int, default=1000, help="of the first program")
    options = parser.parse_args()
    lower.add_rules()
    names = options.rules.split(",") if options.rules else sorted(GENERATORS)
    survey, seen, start = Survey(), Seen(), time.perf_counter()
    if options.draws:
        check_rules(survey, seen, names, options.draws, options.seed)
    check_programs(survey, options.programs, options.seed)
    result = {
        "jax": jax.__version__, "draws": options.draws, "seed": options.seed,
        "seconds": round(time.perf_counter() - start), "outcomes": dict(sorted(survey.count.items())),
        "refusals": dict(survey.refusals.most_common()), "without line": survey.without_line[:20],
        "faults": survey.faults, "claims": claims(survey, names, options.programs),
    }  # fmt: skip
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["outcomes"], indent=1))
    return 0 if all(c["holds"] for c in result["claims"]) else 1


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
