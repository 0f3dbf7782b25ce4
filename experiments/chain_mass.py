"""End-to-End Differentiable Physics, figure 1: infer the mass of a chain that a ball of known mass hits.

Ten links of 20 x 60 hang from a pin under a gravity of 100; a ball of radius 20 is thrown at them. From the motion of
10 s under the true mass (7 for the chain) gradient descent finds the mass, starting at 1 (gradient clipped at 100, rate
0.01, 30 updates; clipped steps are of 1 and lead from 1 to 7 whatever the gradient's size: a second run starts
at 1.37). Links are bodies in the plane that are tied to each other (maximal coordinates), as in the paper. The
second part times the gradient over the number of links: analytic (reverse mode through the solver) against numeric
(central differences by the mass of every link). Run: python experiments/chain_mass.py [--quick]. Writes table, numbers
and picture to experiments/results (with --quick nothing).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse

RESULTS = Path(__file__).parent / "results"
WIDTH, LENGTH, RADIUS, GRAVITY = 20.0, 60.0, 20.0, 100.0
TRUE_MASS, FIRST_MASSES, RATE, MOST_GRADIENT = 7.0, (1.0, 1.37), 0.01, 100.0
DT = 1 / 60
CONTACT = Impulse(friction=0.1)
BALL_MASS, BALL_SPEED = 3.0, 60.0
DISC = tuple(BALL_MASS * RADIUS**2 * share for share in (0.25, 0.25, 0.5))


def scene(links: int) -> tuple[kn.Model, kn.State]:
    """A hanging chain of bodies tied end to end, and a ball on its way to the middle of it."""
    half = (WIDTH / 2, LENGTH / 2)
    corners = [(-half[0], -half[1]), (half[0], -half[1]), (half[0], half[1]), (-half[0], half[1])]
    outline = kn.shapes.polygon(corners, contype=1, conaffinity=2)
    chain = [
        kn.Link(f"link{i}", joints=kn.planar("z"), mass=1.0, inertia=_plate(), shapes=outline) for i in range(links)
    ]
    circle = kn.shapes.sphere(RADIUS, contype=2, conaffinity=1)
    ball = kn.Link("ball", joints=kn.planar("z"), mass=BALL_MASS, inertia=DISC, shapes=circle)
    top, bottom = (0, half[1], 0), (0, -half[1], 0)
    ties = [kn.Connect("link0", "world", top, (0, 0, 0))]
    ties += [kn.Connect(f"link{i}", f"link{i - 1}", top, bottom) for i in range(1, links)]
    model = kn.build([*chain, ball], gravity=(0, -GRAVITY, 0), equalities=ties)
    q = np.zeros(model.nq)
    q[1 : 3 * links : 3] = -half[1] - LENGTH * np.arange(links)
    q[-3:] = -RADIUS - WIDTH - 50.0, -0.7 * LENGTH * links, 0.0
    qd = np.zeros(model.nv)
    qd[-3] = BALL_SPEED
    return model, kn.State(q, qd)


def _plate() -> tuple[float, float, float]:
    """Moments of a thin plate of 1 kg."""
    return LENGTH**2 / 12, WIDTH**2 / 12, (WIDTH**2 + LENGTH**2) / 12


def with_masses(model: kn.Model, masses) -> kn.Model:
    """The chain with other masses of its links, uniform plates all."""
    links = len(model.link_names) - 1
    mass = jnp.concatenate([masses, jnp.asarray(model.inertia.mass[links:])])
    moment = jnp.asarray(model.inertia.moment) * jnp.concatenate([masses, jnp.ones(1)])[:, None]
    return eqx.tree_at(lambda m: (m.inertia.mass, m.inertia.moment), model, (mass, moment))


def losses(links: int, steps: int):
    """The mean squared distance of all bodies' paths from the true ones, by the masses of the links; and the motion."""
    model, state = scene(links)

    def motion(masses):
        run = kn.rollout(with_masses(model, masses), state, dt=DT, steps=steps, contact=CONTACT)
        assert run.contact is not None
        return run.q.reshape(steps, -1, 3)[:, :, :2], run.contact.converged.all()

    truth, solved = native.jit(motion)(np.full(links, TRUE_MASS / links))
    if not bool(solved):
        raise SystemExit("a step of the true motion was not solved to its tolerance")

    def loss(masses):
        return jnp.mean(jnp.sum((motion(masses)[0] - truth) ** 2, axis=-1))

    return loss, motion


def infer(links: int, steps: int, updates: int) -> list[dict]:
    """Gradient descent on the mass of the whole chain."""
    loss, _ = losses(links, steps)
    slope = native.jit(jax.value_and_grad(lambda mass: loss(jnp.full(links, 1.0) * mass / links)))
    rows = []
    for start in FIRST_MASSES:
        mass = start
        for number in range(updates + 1):
            value, gradient = (float(x) for x in slope(mass))
            rows.append({"start": start, "update": number, "mass": mass, "loss": value, "gradient": gradient})
            print(f"update {number:3d}   mass {mass:8.4f}   loss {value:12.4f}   gradient {gradient:12.3f}", flush=True)
            mass -= RATE * float(np.clip(gradient, -MOST_GRADIENT, MOST_GRADIENT))
    return rows


def gradient_times(counts: Sequence[int], steps: int, repeats: int) -> list[dict]:
    """Seconds for one gradient by the masses of all links, the least disturbed of repeated timings."""
    rows = []
    for links in counts:
        loss, _ = losses(links, steps)
        value, slope = native.jit(loss), native.jit(jax.grad(loss))
        masses, h = np.full(links, FIRST_MASSES[0] / links), 1e-5

        def numeric(value=value, masses=masses, h=h, links=links):
            units = h * np.eye(links)
            return np.array([(float(value(masses + e)) - float(value(masses - e))) / (2 * h) for e in units])

        ways = {"analytic": lambda slope=slope, masses=masses: np.asarray(slope(masses)), "numeric": numeric}
        row: dict = {"links": links}
        for name, way in ways.items():
            row[f"{name}_gradient"] = way().tolist()
            row[name] = min(_seconds(way) for _ in range(repeats))
        rows.append(row)
        print(
            f"{links:3d} links   analytic {row['analytic'] * 1e3:9.2f} ms   numeric {row['numeric'] * 1e3:9.2f} ms",
            flush=True,
        )
    return rows


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def table(inference: list[dict], times: list[dict]) -> str:
    last = {row["start"]: row for row in inference}
    lines = [f"Mass after {row['update']} updates from {start:g}: {row['mass']:.4f}." for start, row in last.items()]
    lines = [f"True mass {TRUE_MASS:g}. {' '.join(lines)}", ""]
    lines += ["| links | analytic [ms] | numeric [ms] | ratio |", "|--:|--:|--:|--:|"]
    for row in times:
        a, n = row["analytic"] * 1e3, row["numeric"] * 1e3
        lines.append(f"| {row['links']} | {a:.2f} | {n:.2f} | {n / a:.1f} |")
    return "\n".join(lines)


def picture(inference: list[dict], times: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for start in FIRST_MASSES:
        own = [row for row in inference if row["start"] == start]
        left.plot([row["update"] for row in own], [row["mass"] for row in own], marker="o", ms=3)
    left.axhline(TRUE_MASS, color="0.5", ls="--", lw=1)
    left.set(xlabel="update", ylabel="mass of the chain", title="inferred mass (dashed: true)")
    for name, style in (("analytic", "o-"), ("numeric", "s--")):
        right.plot([row["links"] for row in times], [row[name] * 1e3 for row in times], style, ms=4, label=name)
    right.set(xlabel="links", ylabel="time of a gradient [ms]", title="gradient by every link's mass")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> tuple[list[dict], list[dict]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three links, 1.5 s, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        if options.quick:
            return infer(3, 90, 3), gradient_times([3], 90, 1)
        inference = infer(10, 600, 30)
        times = gradient_times([2, 4, 6, 8, 10], 600, 10)
    text = table(inference, times)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "chain_mass.md").write_text(text + "\n")
    (RESULTS / "chain_mass.json").write_text(json.dumps({"inference": inference, "times": times}, indent=1))
    picture(inference, times, RESULTS / "chain_mass.png")
    return inference, times


if __name__ == "__main__":
    main()
