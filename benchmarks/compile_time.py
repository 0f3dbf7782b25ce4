"""Time to first result of a quadruped's step and its derivatives under jax.jit, beside MJX on the same file.

Each function is traced and compiled in a process of its own, without a cache, in float64. MJX's contacts are switched
off, since Knuckle's step has none by default: both compute smooth dynamics. Processor time is what the ratios are taken
from, since it depends least on what else the machine does. Writes results/compile_time.{json,md}; --quick leaves MJX
out and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

RESULTS = Path(__file__).parent / "results"
DEFAULT_MODEL = Path(__file__).parents[2] / "shared" / "benchmark_models" / "quad.xml"
DT = 0.001
ENGINES = ("knuckle", "mjx")
TASKS = ("step", "gradient", "jacobian")
ASKED = {"step": 10.0, "gradient": 25.0}  # seconds, of Knuckle


def knuckle_step(path: str) -> tuple[Callable, tuple]:
    import knuckle as kn

    model = kn.load(path, strict=False)[0]

    def step(q, qd, control):
        after = kn.step(model, kn.State(q, qd), control, dt=DT, contact=None)
        return jnp.concatenate([after.q, after.qd])

    return step, (jnp.asarray(model.reference), jnp.zeros(model.nv), jnp.zeros(model.nu))


def mjx_step(path: str) -> tuple[Callable, tuple]:
    mujoco: Any = importlib.import_module("mujoco")  # its types are not known statically
    mjx: Any = importlib.import_module("mujoco.mjx")
    model = mujoco.MjModel.from_xml_path(path)
    model.opt.timestep = DT
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    device_model, data = mjx.put_model(model), mjx.make_data(model)

    def step(q, qd, control):
        after = mjx.step(device_model, data.replace(qpos=q, qvel=qd, ctrl=control))
        return jnp.concatenate([after.qpos, after.qvel])

    return step, (jnp.asarray(model.qpos0), jnp.zeros(model.nv), jnp.zeros(model.nu))


def function_of(task: str, step: Callable) -> Callable:
    if task == "gradient":
        return jax.grad(lambda *inputs: jnp.sum(step(*inputs) ** 2), argnums=(0, 1, 2))
    return jax.jacfwd(step, argnums=(0, 1, 2)) if task == "jacobian" else step


def measure(engine: str, task: str, path: str) -> dict[str, float]:
    """Seconds from a Python function to its first result, in this process."""
    with jax.enable_x64(True):
        step, inputs = (knuckle_step if engine == "knuckle" else mjx_step)(path)
        compiled = jax.jit(function_of(task, step))
        wall, processor = time.perf_counter(), time.process_time()
        traced = compiled.trace(*inputs).lower()
        between = time.process_time()
        jax.block_until_ready(traced.compile()(*inputs))
        return {
            "wall": time.perf_counter() - wall,
            "processor": time.process_time() - processor,
            "tracing": between - processor,
        }


def in_own_process(engine: str, task: str, path: str) -> dict[str, float]:
    words = [sys.executable, __file__, "--model", path, "--only", engine, task]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(words, capture_output=True, text=True, env=environment)
    if run.returncode:
        raise RuntimeError(f"{engine} {task} failed:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def table(results: dict[str, dict[str, dict[str, float]]], path: str, repeats: int, load: float) -> str:
    lines = [
        "| | engine | processor time [s] | of which tracing | wall [s] | MJX / Knuckle |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for task in results["knuckle"]:
        for engine in results:
            r = results[engine][task]
            ratio = r["processor"] / results["knuckle"][task]["processor"]
            shown = f"{ratio:.1f}" if engine != "knuckle" else ""
            numbers = f"{r['processor']:.1f} | {r['tracing']:.1f} | {r['wall']:.1f}"
            lines.append(f"| {task} | {engine} | {numbers} | {shown} |")
    asked = ", ".join(f"{task} under {seconds:.0f} s" for task, seconds in ASKED.items())
    return "\n".join(
        [
            f"Time to first result under `jax.jit` for `{Path(path).name}`, float64, medians of {repeats}.",
            f"Asked of Knuckle: {asked}.",
            f"Load of the machine ({os.cpu_count()} cores) while it ran: {load:.1f}.",
            "",
            *lines,
            "",
            "Gradient: reverse mode of a scalar. Jacobian: forward mode, of the next state. Contacts are off in MJX.",
            "Written by `python benchmarks/compile_time.py`.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(DEFAULT_MODEL), help="an MJCF file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="Knuckle only, once, printed only")
    parser.add_argument("--only", nargs=2, metavar=("ENGINE", "TASK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not Path(options.model).is_file():
        parser.error(f"no file {options.model!r}: give an MJCF file with --model")
    if options.only:
        engine, task = options.only
        print(json.dumps(measure(engine, task, options.model)))
        return
    engines, repeats = (ENGINES[:1], 1) if options.quick else (ENGINES, options.repeats)
    results = {
        engine: {t: median_of([in_own_process(engine, t, options.model) for _ in range(repeats)]) for t in TASKS}
        for engine in engines
    }
    text = table(results, options.model, repeats, os.getloadavg()[1])
    print(text)
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "compile_time.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "compile_time.md").write_text(text)


if __name__ == "__main__":
    main()
