"""Pictures of what not every fit has: networks, posterior samples, the next experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from knuckle.sysid.acting import Series
from knuckle.sysid.learned import Curve, Learned
from knuckle.sysid.report.plots import (
    AFTER,
    BEFORE,
    GREY,
    INK,
    MOST_PANELS,
    WIDTH,
    Picture,
    drawn,
    legend,
    side_by_side,
    size_of_one,
)

MOST_PAIRED, AT_REST = 5, 0.1
Data = Mapping[str, Any]


def curve_pictures(network: Learned) -> list[Picture]:
    """A network's output at each joint against the joint's own velocity."""

    def draw(axes: Axes, curve: Curve) -> None:
        unit = "share of it" if network.mode == "scale" else curve.unit
        axes.fill_between(curve.speed, curve.lowest, curve.highest, color="#cfe0ea", lw=0, label="recorded positions")
        axes.plot(curve.speed, curve.output, color=AFTER, lw=1.6, label="at the median")
        axes.axhline(0, color=GREY, lw=0.8, ls=":")
        axes.set_title(f"{curve.joint}: output at {network.tap} [{unit}]", pad=16)
        axes.set_xlabel(f"velocity of the joint [{curve.speed_unit}], others stationary")
        legend(axes, 2)

    shown = network.curves[:MOST_PANELS]
    size = size_of_one(len(shown))
    return [drawn(f"what the network learned at {c.joint}", lambda axes, c=c: draw(axes, c), size) for c in shown]


def series_pictures(network: Learned) -> list[Picture]:
    """Entries of a quantity along the fitted motion, without the network and as used."""

    def draw(axes: Axes, series: Series) -> None:
        for n, time in enumerate(side_by_side(series.time, len(series.used))):
            label = {"without": None, "used": None} if n else {"without": "without the network", "used": "as used"}
            axes.plot(time, series.without[n], "--", lw=1.3, color=BEFORE, label=label["without"])
            axes.plot(time, series.used[n], lw=1.5, color=AFTER, label=label["used"])
        axes.set_title(f"{network.tap} {series.name} [{network.unit}]", pad=16)
        axes.set_xlabel("time of the segments, one after the other [s]")
        legend(axes, 2)

    about, size = f"{network.tap} {{}}, with and without the network", size_of_one(len(network.series))
    return [drawn(about.format(s.name), lambda axes, s=s: draw(axes, s), size) for s in network.series]


def sampled(posterior: Data) -> np.ndarray:
    """Samples as an array, a row for each."""
    return np.array(posterior["samples"], float)


def quantiles(samples: np.ndarray) -> np.ndarray:
    """Ends of the interval that holds 95 % of the samples, and their middle, by column."""
    return np.quantile(samples, [0.025, 0.5, 0.975], axis=0)


def marginal_pictures(posterior: Data) -> list[Picture]:
    """How the samples of each parameter are spread, beside the interval of the fit."""
    samples = sampled(posterior)

    def draw(axes: Axes, k: int, name: str) -> None:
        axes.hist(samples[:, k], bins=min(30, max(8, len(samples) // 6)), color="#9fc0d3", label="samples")
        fitted = posterior["fitted"][k]
        axes.axvline(fitted["value"], color=INK, lw=1.2, label="fit")
        for end in ("lower", "upper"):
            axes.axvline(fitted[end], color=INK, lw=0.9, ls=":", label="95 %" if end == "lower" else None)
        axes.set_title(f"{name} [{fitted['unit']}]", pad=16)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.locator_params(axis="x", nbins=6)
        axes.set_yticks([])
        axes.grid(False)
        legend(axes, 3)

    shown = list(enumerate(posterior["names"]))[:MOST_PANELS]
    size = size_of_one(len(shown), 2.0)
    return [drawn(f"samples of {name}", lambda axes, k=k, n=name: draw(axes, k, n), size) for k, name in shown]


def pair_picture(posterior: Data) -> Picture:
    """Samples of each two parameters."""
    samples, names = sampled(posterior), posterior["names"]
    size = len(names) - 1

    def draw(figure: Figure) -> None:
        grid = figure.subplots(size, size, squeeze=False, sharex="col", sharey="row")
        for row in range(size):
            for column in range(size):
                axes = grid[row, column]
                if column > row:
                    axes.set_visible(False)
                    continue
                axes.plot(samples[:, column], samples[:, row + 1], ".", ms=3, alpha=0.6, color=AFTER)
                axes.locator_params(nbins=3)
                axes.ticklabel_format(useOffset=False)
                axes.tick_params(axis="x", labelrotation=30)
                if row == size - 1:
                    axes.set_xlabel(names[column])
                if column == 0:
                    axes.set_ylabel(names[row + 1])

    return drawn("samples of pairs of parameters", draw, (WIDTH, 1.4 + 1.3 * size), whole=True)


def motion_pictures(proposed: Data) -> tuple[list[Picture], int]:
    """Positions and controls of the next experiment over time, one picture each, and how many there are."""
    time = np.array(proposed["time"], float)
    rows = [(key, k, name) for key, names in proposed["names"].items() for k, name in enumerate(names)]

    def draw(axes: Axes, key: str, k: int, name: str) -> None:
        axes.plot(time, np.array(proposed["values"][key], float)[:, k], color=AFTER if key == "q" else BEFORE, lw=1.5)
        axes.set_title(f"{key} {name}")
        axes.set_xlabel("time [s]")

    about, size = "{} {} of the next experiment", size_of_one(len(rows), 1.9)
    shown = rows[:MOST_PANELS]
    return [drawn(about.format(r[0], r[2]), lambda axes, r=r: draw(axes, *r), size) for r in shown], len(rows)
