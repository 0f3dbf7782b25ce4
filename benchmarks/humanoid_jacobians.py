"""Time to the first Jacobians of a humanoid's inverse and forward dynamics under jax.jit.

Jacobians of RNEA by q, qd and qdd and of ABA by q, qd and tau, forward and reverse mode, in float64. Each is traced and
compiled in a process of its own, without a cache; a call is the median of 50. The humanoid is the one that comes with
MuJoCo (27 degrees of freedom), or any description:

    python benchmarks/humanoid_jacobians.py [FILE...] [--quick]

Writes results/humanoid_jacobians.json; --quick takes forward mode only and writes nothing. The bound, 15 s of processor
time, is about a quarter of the 58 s that both took once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import jax

RESULTS = Path(__file__).parent / "results" / "humanoid_jacobians.json"
BOUND = 15.0  # seconds of processor time
FUNCTIONS, MODES = ("rnea", "aba"), ("forward", "reverse")


def default_model() -> Path:
    found = find_spec("mujoco")
    if found is None or found.origin is None:
        raise SystemExit("give a file: the default humanoid comes with the package mujoco, which is not here")
    return Path(found.origin).parent / "mjx" / "test_data" / "humanoid" / "humanoid.xml"


def measure(path: str, function: str, mode: str) -> dict:
    """In this process: tracing, compiling and a call."""
    import numpy as np

    import knuckle as kn

    model = kn.load(path, strict=False)[0]
    run = getattr(kn.dynamics, function)
    take = {"forward": jax.jacfwd, "reverse": jax.jacrev}[mode]
    jacobian = jax.jit(take(lambda q, qd, last: run(model, q, qd, last), argnums=(0, 1, 2)))
    rng = np.random.default_rng(0)
    q = np.asarray(kn.retract(model, np.asarray(model.reference), 0.3 * rng.normal(size=model.nv)))
    arguments = q, rng.normal(size=model.nv), rng.normal(size=model.nv)
    began, wall = time.process_time(), time.perf_counter()
    lowered = jacobian.lower(*arguments)
    traced = time.process_time() - began
    compiled = lowered.compile()
    found = {"dof": model.nv, "processor": time.process_time() - began, "tracing": traced}
    found["wall"] = time.perf_counter() - wall
    jax.block_until_ready(compiled(*arguments))
    calls = []
    for _ in range(50):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        calls.append(time.perf_counter() - start)
    return {name: round(x, 2) for name, x in found.items()} | {"call [us]": round(1e6 * statistics.median(calls), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="descriptions of humanoids")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs=2, metavar=("FUNCTION", "MODE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if given.only:
        print(json.dumps(measure(given.files[0], *given.only)))
        return
    rows, claims = [], []
    for path in map(str, given.files or [default_model()]):
        for function in FUNCTIONS:
            for mode in MODES[:1] if given.quick else MODES:
                command = [sys.executable, __file__, path, "--only", function, mode]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                rows.append({"robot": Path(path).stem, "function": function, "mode": mode, **found})
                rows[-1]["load"] = round(os.getloadavg()[0], 1)
                print(json.dumps(rows[-1]), flush=True)
                what = f"{Path(path).stem}: Jacobian of {function}, {mode} mode: first result [s of processor time]"
                seconds = found["processor"]
                claims.append({"what": what, "measured": seconds, "wanted": f"<= {BOUND:g}", "holds": seconds <= BOUND})
    if not given.quick:
        RESULTS.write_text(json.dumps({"rows": rows, "claims": claims}, indent=1) + "\n")
    failed = [claim for claim in claims if not claim["holds"]]
    sys.exit(f"{len(failed)} claims do not hold: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
