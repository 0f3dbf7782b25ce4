"""Actions per second of many environments on one core, beside Gymnasium with MuJoCo.

4096 hoppers in one `VectorEnvironment` with one thread, random actions, episodes that begin anew. Beside them
Gymnasium's Hopper-v5 as a `SyncVectorEnv` of 16 (its actions per second do not depend on their number), if its extra
`mujoco` is there. Both hold an action for four steps, ours of 4 ms, MuJoCo's of 2 ms by RK4. In turns in one process;
the largest rate by processor time of each counts.

    python benchmarks/env_speed.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from knuckle import envs

HERE = Path(__file__).parent
MANY, FEW, ACTIONS, TURNS, WANTED = 4096, 16, 20, 7, 5.0


def rate(environments: Any, actions: int) -> float:
    """Actions of single environments per second of processor time."""
    drawn = [environments.action_space.sample() for _ in range(actions)]
    begin = time.process_time()
    for action in drawn:
        environments.step(action)
    return actions * environments.num_envs / (time.process_time() - begin)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 environments, few actions, nothing written")
    quick = parser.parse_args(arguments).quick
    ours = envs.VectorEnvironment("hopper", 64 if quick else MANY, threads=1)
    theirs = gymnasium.make_vec("Hopper-v5", num_envs=FEW, vectorization_mode="sync")
    rates = {"knuckle": 0.0, "gymnasium": 0.0}
    for made in (ours, theirs):
        made.reset(seed=0)
        made.action_space.seed(0)
        made.step(made.action_space.sample())
    for _ in range(1 if quick else TURNS):
        for name, made in (("knuckle", ours), ("gymnasium", theirs)):
            rates[name] = max(rates[name], rate(made, 2 if quick else ACTIONS))
    ratio = rates["knuckle"] / rates["gymnasium"]
    what = f"actions per second of {ours.num_envs} hoppers on one core, times as many as Gymnasium's Hopper-v5"
    claims = [{"what": what, "measured": ratio, "wanted": WANTED, "holds": bool(ratio >= WANTED)}]
    seen = np.asarray(ours._seen)
    found = {"actions per second": rates, "finite": bool(np.isfinite(seen).all()), "claims": claims}
    print(json.dumps(found, indent=1))
    if not quick:
        (HERE / "results" / "env_speed.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
