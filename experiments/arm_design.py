"""IDS figure 5: an arm designed for a path of its tool, by gradients through the kinematics; then the fewest joints.

Recovery, as in the paper: a 4-joint arm with random Denavit-Hartenberg parameters (a, d, alpha) moves along a smooth
path of its joints. From the joint angles and the positions of the tool alone L-BFGS seeks the arm, from 20 random
starts. What the path cannot tell is fixed: the last alpha turns the tool about a line through it. The paper shows one
arm and one start.

Fewest joints, beyond the paper: a path of the tool is given, its joint angles are not. For one joint, then two, ...
a, d, alpha of each joint, the pose of the base and all joint angles are sought together by Levenberg-Marquardt from
random starts, until an arm follows the path. The paths come from geometry, not from an arm, so the least number is
known: a tilted circle needs 1 joint, an ellipse 2, a figure of eight on a sphere 2 (two axes that meet), a trefoil on a
torus 2, and a curve on no such surface 3.

Run: python experiments/arm_design.py [--quick]. Writes results/arm_design.json and arm_design.png.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import native, optim

RESULTS = Path(__file__).parent / "results"
JOINTS, SAMPLES, NEAR = 4, 120, 1e-6  # [m] of path error that counts as following
ARMS, STARTS, SEARCHES = 3, 20, 64
LONGEST = 2.0  # [m] of links that are sought
TRIES, KNOTS = 40, 40
DESCENT = optim.LBFGSB(max_iterations=5000, value_tolerance=1e-15, gradient_tolerance=1e-12, memory=30)
SEARCH = optim.LevenbergMarquardt(max_iterations=200)


def tool_path(a, d, alpha, q, base=(0.0, 0.0, 0.0), turned=(1.0, 0.0, 0.0, 0.0)) -> jax.Array:
    """Positions of the tool at each of the joint angles."""
    arm = kn.from_dh(a, alpha, d, base_position=base, base_rotation=turned)
    return jax.lax.map(lambda q: kn.kinematics.frame_pose(arm, q, "tool").position, q)


def half_squares(residuals: Callable, size: int, **options) -> optim.Smooth:
    """A problem with its gradient, for L-BFGS."""
    value = lambda x: 0.5 * jnp.sum(residuals(x) ** 2)  # noqa: E731
    return optim.Smooth(native.jit(jax.value_and_grad(value)), size, **options)


class Arm(NamedTuple):
    """Denavit-Hartenberg parameters with revolute joints about z."""

    a: np.ndarray
    d: np.ndarray
    alpha: np.ndarray


def drawn(rng: np.random.Generator, joints: int = JOINTS) -> Arm:
    return Arm(*rng.uniform(0.2, 1.0, (2, joints)), rng.uniform(-np.pi, np.pi, joints))


def motion(rng: np.random.Generator, joints: int = JOINTS) -> np.ndarray:
    """Smooth joint angles over most of a turn."""
    t = np.linspace(0, 2 * np.pi, SAMPLES)
    size, phase = rng.normal(size=(joints, 3)), rng.uniform(0, 2 * np.pi, (joints, 3))
    waves = np.einsum("jk,jkt->tj", size, np.sin(np.arange(1, 4)[:, None] * t + phase[..., None]))
    return 2.5 * waves / np.abs(waves).max(axis=0)


def recovered(seed: int, starts: int) -> list[dict]:
    """One arm sought from random starts, by L-BFGS alone and by basin hopping with it."""
    rng = np.random.default_rng(seed)
    true, q = drawn(rng), motion(rng)
    path = np.asarray(native.jit(tool_path)(*true, q))
    side = np.repeat([LONGEST, LONGEST, 2 * np.pi], [JOINTS, JOINTS, JOINTS - 1])

    def arm(x) -> Arm:
        return Arm(x[:JOINTS], x[JOINTS : 2 * JOINTS], jnp.append(x[2 * JOINTS :], true.alpha[-1]))

    problem = half_squares(lambda x: (tool_path(*arm(x), q) - path).ravel(), len(side), lower=-side, upper=side)
    rows = []
    for number in range(starts):
        first = drawn(rng)
        x = np.concatenate([first.a, first.d, first.alpha[:-1]])
        alone = DESCENT(problem, x)
        options = {"restart": "anywhere", "searches": SEARCHES, "per_round": 1, "target": 1e-16, "seed": number}
        hopped = optim.basin_hopping(lambda: problem, x, local=DESCENT, **options)
        assert hopped.searches is not None
        rows.append(
            {
                "path_error_alone": path_error(alone, SAMPLES),
                "path_error": path_error(hopped, SAMPLES),
                "off": apart(arm(hopped.x), true),
                "searches": len(hopped.searches),
            }
        )
    return rows


def path_error(found: optim.Result, samples: int) -> float:
    """Root mean square distance from the path [m]."""
    return float(np.sqrt(2 * found.value / samples))


def apart(found: Arm, true: Arm) -> float:
    """Largest difference of a, d and alpha; alpha counts up to whole turns."""
    a, d, alpha = (np.asarray(x) - y for x, y in zip(found, true, strict=True))
    return float(max(np.abs(a).max(), np.abs(d).max(), np.abs((alpha + np.pi) % (2 * np.pi) - np.pi).max()))


def paths() -> dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]]:
    """Closed paths of the tool [m] over t from 0 to 2 pi, each with the fewest joints that its shape allows."""
    tilt = np.array([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0], [-0.8, 0.0, 0.6]])
    of = lambda f: lambda t: np.stack(np.broadcast_arrays(*f(t)), axis=-1) @ tilt  # noqa: E731
    tube = lambda t: 0.7 + 0.3 * np.cos(3 * t)  # noqa: E731
    return {
        "circle": (1, of(lambda t: (0.5 * np.cos(t), 0.5 * np.sin(t), 0.4))),
        "ellipse": (2, of(lambda t: (0.6 * np.cos(t), 0.3 * np.sin(t), 0.4))),
        "eight on a sphere": (2, of(lambda t: (0.4 + 0.4 * np.cos(2 * t), 0.4 * np.sin(2 * t), 0.8 * np.sin(t)))),
        "trefoil on a torus": (
            2,
            of(lambda t: (tube(t) * np.cos(2 * t), tube(t) * np.sin(2 * t), 0.3 * np.sin(3 * t))),
        ),
        "free curve": (
            3,
            of(lambda t: (np.cos(t), 0.8 * np.sin(t) + 0.2 * np.cos(3 * t), 0.3 * np.sin(2 * t) + 0.2 * np.cos(t))),
        ),
    }  # fmt: skip


class Follower(NamedTuple):
    """An arm, its base and its joint angles along a path."""

    arm: Arm
    base: np.ndarray
    turn: np.ndarray  # rotation vector
    q: np.ndarray

    def path(self, q) -> jax.Array:
        return tool_path(*self.arm, q, self.base, kn.spatial.quaternion_exp(jnp.asarray(self.turn)))


def follower(x, joints: int) -> Follower:
    design, rest = x[: 3 * joints].reshape(3, joints), x[3 * joints :]
    return Follower(Arm(*design), rest[:3], rest[3:6], rest[6:].reshape(-1, joints))


@cache
def followers(joints: int) -> Callable:
    """Residuals and Jacobian of an arm with so many joints, by all its numbers; the path is an argument."""

    def with_jacobian(x, path):
        residuals = lambda x: ((made := follower(x, joints)).path(made.q) - path).ravel()  # noqa: E731
        value, push = jax.linearize(residuals, x)
        return value, jax.vmap(push, out_axes=1)(jnp.eye(len(x)))

    return native.jit(with_jacobian)


def start(joints: int, t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random arm with joints that turn whole times around, or swing, along the path."""
    arm, whole, phase = drawn(rng, joints), rng.integers(-2, 3, joints), rng.uniform(0, 2 * np.pi, (2, joints))
    q = phase[0] + whole * t[:, None] + rng.uniform(0, 1, joints) * np.sin(t[:, None] + phase[1])
    return np.concatenate([*arm, 0.3 * rng.normal(size=3), rng.normal(size=3), q.ravel()])


def followed(path: Callable, joints: int, tries: int, rng: np.random.Generator) -> tuple[Follower | None, int, float]:
    """An arm with so many joints that follows the path, the tries it took, and the least path error."""
    t = np.linspace(0, 2 * np.pi, KNOTS, endpoint=False)
    wanted, least = path(t), np.inf
    for number in range(1, tries + 1):
        x = start(joints, t, rng)
        found = SEARCH(optim.LeastSquares(lambda x: followers(joints)(x, wanted), len(x)), x)
        least = min(least, path_error(found, KNOTS))
        made = follower(found.x, joints)
        if path_error(found, KNOTS) < NEAR and between(made, path) < NEAR:
            return made, number, least
    return None, tries, least


def between(made: Follower, path: Callable) -> float:
    """The largest error at four times as many points, joints going on from where they were: no leaps between knots."""
    t = np.linspace(0, 2 * np.pi, 4 * KNOTS + 1)
    position = native.jit(lambda q: made.path(q[None])[0])
    slope = native.jit(jax.jacfwd(lambda q: made.path(q[None])[0]))
    q, worst = np.array(made.q[0]), 0.0
    for target in path(t):
        for _ in range(8):
            J = np.asarray(slope(q))
            step = np.linalg.lstsq(J, target - np.asarray(position(q)), rcond=1e-9)[0]
            q = q + step * min(1.0, 0.3 / max(np.abs(step).max(), 1e-12))
        worst = max(worst, float(np.linalg.norm(target - np.asarray(position(q)))))
    return worst


def fewest(name: str, tries: int, most: int = 3) -> dict:
    """The least number of joints with which an arm was found; the error that fewer leave."""
    least, path = paths()[name]
    rng, left = np.random.default_rng(0), {}
    for joints in range(1, most + 1):
        made, number, error = followed(path, joints, tries, rng)
        left[joints] = error
        if made is not None:
            break
    row = {
        "path": name,
        "wanted": least,
        "joints": joints if made is not None else None,
        "tries": number,
        "errors": left,
    }
    print(f"{name}: {row['joints']} joints ({least}), try {number}; errors {left}", flush=True)
    return row | ({} if made is None else {"arm": [np.asarray(x).tolist() for x in made.arm]})


def claims(recovery: list[list[dict]], least: list[dict]) -> list[dict]:
    rows = [row for rows in recovery for row in rows]
    right = sum(row["path_error"] < NEAR and row["off"] < 1e-4 for row in rows)
    found = sum(row["joints"] == row["wanted"] for row in least)
    what = {
        "starts from which the arm is recovered: path error below 1e-6 m, parameters within 1e-4": (right, len(rows)),
        "paths for which the arm has the fewest joints that the shape allows": (found, len(least)),
    }
    return [{"what": k, "measured": m, "wanted": w, "holds": m == w} for k, (m, w) in what.items()]


def draw(recovery: list[list[dict]], least: list[dict], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 4))
    left = figure.add_subplot(1, 3, 1)
    errors = [
        np.sort([max(row[key], 1e-17) for rows in recovery for row in rows])
        for key in ("path_error_alone", "path_error")
    ]
    for values, label in zip(errors, ("L-BFGS, one search", "basin hopping with L-BFGS"), strict=True):
        left.semilogy(np.arange(1, len(values) + 1), values, ".", label=label)
    left.axhline(NEAR, color="grey", lw=0.8)
    left.set(xlabel="start, sorted", ylabel="path error [m]", title=f"{JOINTS}-joint arms from random starts")
    left.legend()
    bars = figure.add_subplot(1, 3, 2)
    for joints in (1, 2, 3):
        tried = [(place, row["errors"][joints]) for place, row in enumerate(least) if joints in row["errors"]]
        bars.plot(*np.maximum(np.array(tried).T, 1e-17), "o", color=f"C{joints}", label=f"{joints} joints")
    bars.set_yscale("log")
    bars.set_xticks(range(len(least)), [row["path"] for row in least], rotation=30, ha="right")
    bars.set(ylabel="least path error [m]", title="Arms with more and more joints")
    bars.axhline(NEAR, color="grey", lw=0.8)
    bars.legend()
    space = figure.add_subplot(1, 3, 3, projection="3d")
    t = np.linspace(0, 2 * np.pi, 400)
    for name, (_, path) in paths().items():
        space.plot(*path(t).T, label=name)
    space.set_title("Paths of the tool")
    space.legend(fontsize=7, loc="upper left", bbox_to_anchor=(-0.45, 1.0))
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one start, the circle only, nothing is written")
    quick = parser.parse_args(arguments).quick
    began = time.perf_counter()
    with jax.enable_x64(True):
        recovery = [recovered(seed, 1 if quick else STARTS) for seed in range(1 if quick else ARMS)]
        least = [fewest(name, TRIES) for name in (["circle"] if quick else paths())]
    found = {
        "recovery": recovery,
        "fewest": least,
        "seconds": time.perf_counter() - began,
        "claims": claims(recovery, least),
    }
    for claim in found["claims"]:
        print(claim)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "arm_design.json").write_text(json.dumps(found, indent=1) + "\n")
        draw(recovery, least, RESULTS / "arm_design.png")
    return found


if __name__ == "__main__":
    main()
