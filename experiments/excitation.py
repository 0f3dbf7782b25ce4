"""The next experiment for a seven-joint arm: how much surer a fit is after the motion that `sysid.excite` proposes.

The arm's inertia and damping are all free. A first log moves two joints a little, so that most combinations of masses
and moments do not show. Then it is moved for as long again: by the proposed motion, by the first kind of motion once
more, and by a random one of the same family within the same limits. Each time the truth follows the path by torques, is
measured with noise, and both logs are fitted. Shown is the widest interval of all base parameters, in units of what was
known before any data. Run: python experiments/excitation.py [--quick]. Writes table and picture to experiments/results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from known_truth_mechanisms import PERIOD, Log, Mechanism, arm, cartpole, drawn, prior_deviations, waves

from knuckle import sysid

RESULTS = Path(__file__).parent / "results"
SECONDS, TRIES = 3.0, 60  # of each log; motions that are judged
LIMITS = {"speed": 5.0, "highest": 2.5}  # of joints [rad/s]; frequency [Hz]
GENTLE = np.array([0, 0.25, 0, 0.25, 0, 0, 0])
WAYS = ("proposed", "repeated", "random")


def gentle_arm() -> Mechanism:
    return replace(arm(), runs=1, drive=waves(GENTLE), options={"segment": 0.5})


def gentle_cartpole() -> Mechanism:
    hardly, hanging = 0.02 * np.sin(0.05 * np.arange(1000))[:, None], np.array([0.0, np.pi])
    return replace(cartpole(), runs=1, drive=lambda rng, n: hardly[:n], start=lambda rng: hanging)


def following(mechanism: Mechanism, motion: sysid.Recording) -> Log:
    """Logs of the truth along a path, or under controls where it is not tracked."""
    q, drive = motion["q"].values, motion["q" if mechanism.tracked else "control"].values
    return Log(replace(mechanism, drive=lambda rng, n: drive[:n], start=lambda rng: q[0]))


def studied(mechanism: Mechanism, seconds: float, tries: int, **limits) -> dict:
    """Widths of all base parameters after the first log, and after each way of going on."""
    mechanism = replace(mechanism, seconds=seconds)
    rng = np.random.default_rng(0)
    truth = drawn(mechanism, rng)
    (first,) = Log(mechanism)(truth, rng)
    fit = sysid.fit(mechanism.model, first, mechanism.free, held_out=0, **mechanism.options)
    before = prior_deviations(mechanism)
    print(f"first fit: {fit.result.status}; {fit.certainty.summary()}", flush=True)
    proposed = sysid.excite(fit, seconds, tries=tries, start=mechanism.start(rng), **limits)
    print(proposed.recording, f"expected: {proposed.worst_before:.3g} -> {proposed.worst_after:.3g}", flush=True)
    random = sysid.excite(fit, seconds, tries=1, start=mechanism.start(rng), **limits)
    logs = {"proposed": following(mechanism, proposed.recording), "random": following(mechanism, random.recording)}
    logs["repeated"] = Log(mechanism)
    widths = {"first": fit.interval(mechanism.quantities).deviation / before}
    right, off = np.asarray(mechanism.quantities(*truth)), {}
    for way in WAYS:
        (second,) = logs[way](truth, rng)
        after = fit.again([first, second])
        found = after.interval(mechanism.quantities)
        widths[way], off[way] = found.deviation / before, np.abs(found.value - right) / found.deviation
        print(f"{way}: {after.result.status}, widest {widths[way].max():.3g}", flush=True)
    return {
        "names": mechanism.names,
        "widths": {way: width.tolist() for way, width in widths.items()},
        "off": {way: values.tolist() for way, values in off.items()},
        "expected": proposed.worst_before / proposed.worst_after,
        "path": proposed.recording["q"].values.tolist(),
        "torque": proposed.recording["control"].values.tolist(),
        "joints": list(mechanism.model.joint_names),
    }


def summary(found: dict) -> dict[str, dict[str, float]]:
    """By way: the widest interval, how often narrower than after the first log, and how many hold the truth."""
    first = max(found["widths"]["first"])
    rows = {"first": {"widest": first, "times": 1.0, "median": float(np.median(found["widths"]["first"]))}}
    for way in WAYS:
        widths, off = np.array(found["widths"][way]), np.array(found["off"][way])
        rows[way] = {
            "widest": float(widths.max()),
            "times": float(first / widths.max()),
            "median": float(np.median(widths)),
            "held": float(np.mean(off < 1.96)),
        }
    return rows


def table(found: dict) -> str:
    words = {
        "first": "the first log alone",
        "proposed": "with the proposed motion",
        "repeated": "with the first kind of motion once more",
        "random": "with a random motion",
    }
    head = "| data | widest interval | narrower by | middle interval | intervals that hold the truth |"
    lines = [head, "|---|---|---|---|---|"]
    for way, row in summary(found).items():
        held = f"{row['held']:.0%}" if "held" in row else ""
        lines.append(
            f"| {words[way]} | {row['widest']:.3g} | {row['times']:.1f} times | {row['median']:.2g} | {held} |"
        )
    text = str(__doc__).partition("\n")[2].partition("Run:")[0].strip()
    return "\n".join([*lines, "", text])


def picture(found: dict, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((10, 6), layout="constrained")
    axes = figure.subplot_mosaic([["top", "wide"], ["bottom", "wide"]], width_ratios=(1.2, 1))
    top, bottom, left = (axes[name] for name in ("top", "bottom", "wide"))
    q, u = np.array(found["path"]), np.array(found["torque"])
    t = PERIOD * np.arange(len(q))
    for k, joint in enumerate(found["joints"]):
        top.plot(t, q[:, k], label=joint)
        bottom.plot(t, u[:, k])
    top.set(ylabel="position [rad]", title="the proposed motion")
    bottom.set(xlabel="time [s]", ylabel="torque [N m]")
    top.legend(fontsize=7, ncols=2, frameon=False)
    order = np.argsort(found["widths"]["first"])[::-1]
    for way in ("first", *WAYS):
        left.semilogy(np.array(found["widths"][way])[order], marker="o", ms=3, lw=1, label=way)
    left.set(ylabel="deviation over that before", xlabel="base parameter", title="after the logs")
    left.legend(frameon=False)
    for ax in (top, bottom, left):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a cartpole, few tries, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        if options.quick:
            return studied(gentle_cartpole(), 1.5, 8)
        found = studied(gentle_arm(), SECONDS, TRIES, **LIMITS)
    text = table(found)
    print(text)
    (RESULTS / "excitation.md").write_text(text + "\n")
    (RESULTS / "excitation.json").write_text(json.dumps(found))
    picture(found, RESULTS / "excitation.png")
    return found


if __name__ == "__main__":
    main()
