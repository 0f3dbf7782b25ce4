"""Torque regression against ground truth: a driven seven-joint arm whose efforts have correlated noise.

Each log has a motion of its own and noise of the effort of a tenth of its root mean square, correlated over 0.2 s. The
description has masses that are up to 30 % off. Counted: the diagonal of the mass matrix over the true one (bias),
and how often 95 % intervals of determined base parameters hold the true value. The same ratio is counted after a
refinement by roll-outs that is forced; `kn.fit` with default settings refines only if held-out data are for it.
Run: python experiments/torque_noise.py [--quick]. Writes experiments/results/torque_noise.{md,json}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.signal import lfilter

import knuckle as kn
from knuckle import native, robots, sysid
from knuckle.dynamics import crba, rnea
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.refine import refine
from knuckle.sysid.regression.rollouts import Rollouts
from knuckle.sysid.task import noise_in

RESULTS = Path(__file__).parent / "results"
LOGS, SECONDS, RATE = 20, 30.0, 100.0
DEFAULTS = 3  # logs that `kn.fit` is tried on
SEGMENT = 0.5  # seconds of their segments
NOISE, CORRELATION = 0.1, 0.2  # share of the effort's root mean square, [s]


def true_arm(model: kn.Model) -> kn.Model:
    """The built-in arm with other masses, friction, and rotor inertia."""
    mass = np.asarray(model.inertia.mass) * np.linspace(0.8, 1.3, model.nv)
    joints = (np.full(model.nv, 0.3), np.full(model.nv, 0.6), np.full(model.nv, 0.5), np.full(model.nv, 0.01))
    return eqx.tree_at(
        lambda m: (m.inertia.mass, m.armature, m.damping, m.friction, m.friction_speed), model, (mass, *joints)
    )


def log(model: kn.Model, seed: int, level: np.ndarray | None = None) -> sysid.Recording:
    """Joints follow Fourier series; efforts are those of inverse dynamics with noise.

    level: standard deviation of the noise of each effort [N m], 0 for a log without any noise; by default a tenth of
        the effort's root mean square.
    """
    rng, time = np.random.default_rng(seed), np.arange(round(SECONDS * RATE)) / RATE
    q, qd, qdd = np.zeros((3, len(time), model.nv))
    for harmonic in range(1, 7):
        w = 2 * np.pi * 0.1 * harmonic
        a, b = rng.normal(size=(2, model.nv)) * 0.5 / w
        phase = w * time[:, None]
        q += a * np.sin(phase) - b * np.cos(phase)
        qd += w * (a * np.cos(phase) + b * np.sin(phase))
        qdd += w**2 * (b * np.cos(phase) - a * np.sin(phase))
    tau = np.asarray(native.vmap(lambda *x: rnea(model, *x))(q, qd, qdd))
    tau = tau + np.asarray(model.damping) * qd + np.asarray(model.friction) * np.tanh(qd / 0.01)
    if level is not None and not np.any(level):
        return sysid.Recording.of(model, time, q=q, qd=qd, tau=tau, name=f"log {seed}, exact")
    keep = np.exp(-1 / (RATE * CORRELATION))
    noise = lfilter([np.sqrt(1 - keep**2)], [1, -keep], rng.normal(size=tau.shape), axis=0)
    tau = tau + (NOISE * np.sqrt(np.mean(tau**2, axis=0)) if level is None else level) * noise
    q, qd = q + 1e-5 * rng.normal(size=q.shape), qd + 1e-3 * rng.normal(size=q.shape)
    return sysid.Recording.of(model, time, q=q, qd=qd, tau=tau, name=f"log {seed}")


def judged(seed: int) -> tuple[list[bool], np.ndarray]:
    """Of one log: whether intervals of determined base parameters hold the truth, and the mass matrix over the true."""
    true = true_arm(robots.load("arm"))
    return held_and_ratio(sysid.regress(robots.load("arm"), log(true, seed)), true)


def held_and_ratio(found: sysid.Regression, true: kn.Model) -> tuple[list[bool], np.ndarray]:
    rotors = np.asarray(true.armature)[list(found.base_parameters.rotors)]
    truth = found.base_parameters.matrix @ np.concatenate([np.asarray(inertial(true)), rotors])
    pairs = [(q, value) for q, value in zip(found.base, truth, strict=True) if q.verdict == "determined"]
    return [bool(q.lower <= value <= q.upper) for q, value in pairs], mass_ratio(found.model, true)


def mass_ratio(model: kn.Model, true: kn.Model) -> np.ndarray:
    """The diagonal of the mass matrix over the true one."""
    M, M_true = (np.diag(np.asarray(crba(m, np.asarray(m.reference, float)))) for m in (model, true))
    return M / M_true


def forced(found: sysid.Regression, run: sysid.Recording) -> kn.Model:
    """The regression refined by roll-outs of its own log, whether held-out data are for it or not."""
    return refine(found, Rollouts(found, [run], noise=noise_in(found.model, [run]), segment=SEGMENT)).model


def change_of_default(seed: int) -> tuple[float, bool]:
    """The largest relative change of the mass matrix from the regression to the default fit, and whether it refined."""
    model = robots.load("arm")
    run = log(true_arm(model), seed)
    fit, plain = kn.fit(model, run), sysid.regress(model, run)
    assert fit.regression is not None
    return float(np.abs(mass_ratio(fit.model, plain.model) - 1).max()), fit.regression.refined


def experiment(logs: int, defaults: int) -> dict[str, Any]:
    inside, ratios, refined = [], [], []
    model = robots.load("arm")
    true = true_arm(model)
    for seed in range(logs):
        run = log(true, seed)
        regression = sysid.regress(model, run)
        held, ratio = held_and_ratio(regression, true)
        inside += held
        ratios.append(ratio)
        refined.append(mass_ratio(forced(regression, run), true))
        print(f"log {seed}: {np.mean(inside):.3f} of {len(inside)} inside", flush=True)
    changes = [change_of_default(seed) for seed in range(defaults)]
    return {
        "coverage": float(np.mean(inside)),
        "cases": len(inside),
        "mass_matrix": np.mean(ratios, axis=0).tolist(),
        "mass_matrix_refined": np.mean(refined, axis=0).tolist(),
        "default_fit_changes": [change for change, _ in changes],
        "default_fit_refined": [bool(accepted) for _, accepted in changes],
        "logs": logs,
    }


def claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    held, made = found["coverage"], []
    for key, which in (("mass_matrix", ""), ("mass_matrix_refined", ", after a refinement that is forced")):
        worst = float(np.abs(np.array(found[key]) - 1).max())
        what = f"bias of the mass matrix's diagonal, worst joint{which}"
        made.append({"what": what, "measured": worst, "wanted": "<= 0.05", "holds": worst <= 0.05})
    if found["default_fit_changes"]:
        most, count = max(found["default_fit_changes"]), len(found["default_fit_changes"])
        what = f"mass matrix of the default fit, largest change from the regression, {count} logs"
        made.append({"what": what, "measured": most, "wanted": "<= 0.05", "holds": most <= 0.05})
    what = "coverage of 95 % intervals of determined base parameters"
    return [*made, {"what": what, "measured": held, "wanted": "0.90 to 0.98", "holds": 0.90 <= held <= 0.98}]


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['logs']} logs of {SECONDS:g} s. Diagonal of the mass matrix over the true one, mean over logs: "
        + ", ".join(f"{x:.3f}" for x in found["mass_matrix"]),
        f"\n{found['cases']} intervals of determined base parameters, {found['coverage']:.1%} hold the true value.\n",
    ]
    ratios = ", ".join(f"{x:.3f}" for x in found["mass_matrix_refined"])
    lines.append(f"The same ratio after refinement by roll-outs that is forced: {ratios}.\n")
    lines += ["| claim | measured | wanted | holds |", "|---|--:|---|---|"]
    for c in claims(found):
        lines.append(f"| {c['what']} | {c['measured']:.4g} | {c['wanted']} | {'yes' if c['holds'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two logs, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        found = experiment(*((2, 0) if options.quick else (LOGS, DEFAULTS)))
    print(table(found))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "torque_noise.md").write_text(table(found))
        (RESULTS / "torque_noise.json").write_text(json.dumps({**found, "claims": claims(found)}, indent=1))
    return found


if __name__ == "__main__":
    main()
