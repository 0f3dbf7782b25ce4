"""What a PyTorch training step with physics inside costs beside the native call alone.

256 double pendulums (and 4096), 50 steps, float64, one thread. Native: value and gradient of the same loss by states,
joint forces and masses in one call of `kn.native.vmap`. PyTorch: `kn.torch.Physics`, the loss in torch, and `backward`.
The same torch operations without physics are measured beside it, and Adam's step. All in turns in one process; the
smallest processor time of each counts.

    python benchmarks/layer_speed.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import knuckle as kn
from knuckle import robots
from knuckle.torch import Physics

HERE = Path(__file__).parent
BATCHES, STEPS, DT = (256, 4096), 50, 0.01
WANTED = 1.3


def native_call(model: kn.Model, params: kn.FreeParameters, q, qd, tau) -> Callable[[], Any]:
    def loss(z, q, qd, tau):
        run = kn.rollout(params.apply(model, z), kn.State(q, qd), force=tau, dt=DT, steps=STEPS, contact=None)
        return jnp.mean(run.q**2)

    call = kn.native.vmap(jax.value_and_grad(loss, (0, 1, 2, 3)), in_axes=(None, 0, 0, 0), threads=1)
    z = params.start
    return lambda: call(z, q, qd, tau)


def training_step(layer: Physics, tensors: list[torch.Tensor]) -> Callable[[], Any]:
    def step():
        for tensor in (*tensors, layer.free):
            tensor.grad = None
        loss = torch.sum(layer(*tensors)["q"] ** 2) / (STEPS * 2)
        loss.backward()
        return loss.detach(), layer.free.grad

    return step


def without_physics(batch: int) -> Callable[[], Any]:
    """The loss and its gradient by what a layer would have given: what torch itself takes."""
    q = torch.randn(batch, STEPS, 2, dtype=torch.float64, requires_grad=True)

    def step():
        q.grad = None
        (torch.sum(q**2) / (STEPS * 2)).backward()

    return step


def measure(batch: int, repeats: int) -> dict[str, Any]:
    model = kn.load(robots.path("double_pendulum"))
    rng = np.random.default_rng(0)
    q, qd, tau = (rng.normal(size=(batch, 2)) for _ in range(3))
    layer = Physics(model, dt=DT, steps=STEPS, parameters=["*.mass"], outputs="q", contact=None, dtype=torch.float64)
    params = layer.settings.free
    assert params is not None
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, qd, tau)]
    native, torched = native_call(model, params, q, qd, tau), training_step(layer, tensors)
    adam = torch.optim.Adam([layer.free, *tensors], lr=0.0)
    values, (by_masses, *_) = native()
    loss, gradient = torched()
    off = np.abs(gradient.numpy() - by_masses.sum(axis=0)).max() / np.abs(by_masses.sum(axis=0)).max()
    assert abs(float(loss) - values.sum()) < 1e-12 * values.sum() and off < 1e-10, (float(loss), values.sum(), off)
    works = {"native": native, "torch": torched, "torch without physics": without_physics(batch), "Adam": adam.step}
    turns = [[_seconds(work) for work in works.values()] for _ in range(repeats)]
    best = {f"{name} [ms]": 1e3 * min(column) for name, column in zip(works, zip(*turns, strict=True), strict=True)}
    return {"batch": batch, **best, "ratio": best["torch [ms]"] / best["native [ms]"]}


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, nothing written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with jax.enable_x64(True):
        rows = [measure(batch, 5 if options.quick else 200) for batch in (BATCHES[:1] if options.quick else BATCHES)]
    claims = [
        {
            "what": f"torch training step, {row['batch']} x {STEPS} steps of a double pendulum, over the native call",
            "measured": row["ratio"],
            "wanted": WANTED,
            "holds": bool(row["ratio"] <= WANTED),
        }
        for row in rows
    ]
    found = {"rows": rows, "claims": claims}
    print(json.dumps(found, indent=1))
    if not options.quick:
        (HERE / "results" / "layer_speed.json").write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
