"""Pictures of a fit, each small enough to be read on a phone, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from knuckle.sysid.fit import Fit
from knuckle.sysid.held_out import HeldOut, HeldOutCurve
from knuckle.sysid.uncertainty import Certainty, Estimate

INK, GREY, PALE = "#2b3038", "#5c6570", "#d9dde3"
BEFORE, AFTER, MEASURED = "#d4862a", "#2a6f97", "#2b3038"
VERDICTS = {"determined": "#3d8b57", "partly determined": "#c08a1e", "not determined": "#b5483f"}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa3af",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "knuckle",
    "text.parse_math": False,  # names are names
}
WIDTH, HEIGHT = 5.0, 2.7  # [in]
SMALL_WIDTH, SMALL_HEIGHT, FEW = 3.7, 2.2, 8  # of pictures that are more than a few
WIDEST_CHANGE, MOST_ROWS = 1e4, 40  # [%], parameters that are drawn
MOST_PANELS, MOST_DOTS, MOST_ENTRIES = 24, 1500, 8


class Picture(tuple[str, str]):
    """What a picture shows in words, and its SVG text."""


def drawn(
    about: str, draw: Callable[[Any], None], size: tuple[float, float] = (WIDTH, HEIGHT), whole: bool = False
) -> Picture:
    """A picture with one pair of axes, which `draw` gets; `whole`: it gets the figure."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure if whole else figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return Picture((about, svg[svg.index("<svg") :]))


def legend(axes: Axes, columns: int) -> None:
    """In one line above the axes, beside the title."""
    axes.legend(loc="lower right", ncols=columns, bbox_to_anchor=(1.0, 0.97), borderpad=0.1, handlelength=1.4)


def plain_ticks(axes: Axes) -> None:
    """Numbers on a logarithmic axis as they are written elsewhere."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def pieces_apart(time: np.ndarray, count: int) -> list[np.ndarray]:
    """Times of so many pieces, drawn one after the other."""
    length = time[-1] + 2 * (time[1] - time[0]) if len(time) > 1 else 1.0
    return [time + n * length for n in range(count)]


def held_out_pictures(curves: Sequence[HeldOutCurve], seen: float) -> list[Picture]:
    """Measured against simulated before and after, entry by entry; grey: the first `seen` seconds."""
    about = "{}: measured, and simulated before and after the fit"
    size = size_of_one(len(curves))
    return [drawn(about.format(c.name), lambda axes, c=c: _pieces(axes, c, seen), size) for c in curves]


def size_of_one(count: int, height: float = HEIGHT) -> tuple[float, float]:
    """Of so many pictures: smaller where they are more than a few."""
    return (SMALL_WIDTH, min(height, SMALL_HEIGHT)) if count > FEW else (WIDTH, height)


def _pieces(axes: Axes, curve: HeldOutCurve, until: float) -> None:
    for n, time in enumerate(pieces_apart(curve.time, len(curve.measured))):
        first = n == 0
        axes.axvspan(time[0], time[0] + until, color="#eef0f3", lw=0, zorder=0)
        axes.plot(time, curve.measured[n], ".", ms=2.6, color=MEASURED, label="measured" if first else None)
        axes.plot(time, curve.before[n], "--", lw=1.3, color=BEFORE, label="before" if first else None)
        axes.plot(time, curve.after[n], lw=1.5, color=AFTER, label="after" if first else None)
    seen = np.concatenate([curve.measured.ravel(), curve.after.ravel()])
    seen = seen[np.isfinite(seen)]
    if len(seen):  # what diverged before the fit does not set the scale
        margin = 0.25 * max(float(np.ptp(seen)), 1e-12)
        axes.set_ylim(seen.min() - margin, seen.max() + margin)
    axes.set_title(f"{curve.name} (difference)" if curve.difference else curve.name, pad=16)
    axes.set_xlabel("time of the pieces, one after the other [s]")
    legend(axes, 3)


def error_growth(held_out: HeldOut, noise: Mapping[str, float], units: Mapping[str, str]) -> list[Picture]:
    """Error over time since the start of a piece, by channel."""
    time = 1e3 * held_out.shots.period * np.arange(held_out.shots.samples)

    def of(axes: Axes, key: str) -> None:
        axes.axvspan(0, time[held_out.seen - 1], color="#eef0f3", lw=0, zorder=0)
        for off, color, label in ((held_out.off_before, BEFORE, "before"), (held_out.off_after, AFTER, "after")):
            size = np.sqrt(_mean(off[key] ** 2))
            axes.semilogy(time, np.where(np.isfinite(size) & (size > 0), size, np.nan), color=color, label=label)
        plain_ticks(axes)
        axes.axhline(noise[key], color=GREY, lw=0.9, ls=":", label="noise")
        axes.set_title(f"error of {key}{units[key]}", pad=16)
        axes.set_xlabel("time since the start of a piece [ms]")
        legend(axes, 3)

    keys = list(held_out.off_after)[:MOST_PANELS]
    return [drawn(f"error of {key} over time, before and after", lambda axes, k=key: of(axes, k)) for key in keys]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over pieces and entries, of what was measured."""
    known = ~np.isnan(values)
    return np.sum(np.where(known, values, 0.0), axis=(0, 2)) / np.maximum(known.sum(axis=(0, 2)), 1)


def residual_pictures(residuals: Mapping[str, np.ndarray]) -> list[Picture]:
    """Distribution of what is left over the noise, beside a normal one, and where it is left."""
    found = []
    for key, values in list(residuals.items())[: MOST_PANELS // 2]:
        flat = values[np.isfinite(values)]
        found.append(
            drawn(f"distribution of residuals of {key}", lambda axes, v=flat, k=key: _distribution(axes, k, v))
        )
        found.append(drawn(f"residuals of {key} in order", lambda axes, v=values, k=key: _in_order(axes, k, v)))
    return found


def _distribution(axes: Axes, key: str, values: np.ndarray) -> None:
    grid = np.linspace(-4.5, 4.5, 181)
    axes.hist(np.clip(values, -4.5, 4.5), bins=45, range=(-4.5, 4.5), density=True, color="#9fc0d3", label="residuals")
    axes.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=INK, lw=1.1, label="normal")
    axes.set_title(f"{key}: what is left, over the noise", pad=16)
    axes.set_xlabel("residual / noise")
    legend(axes, 2)


def _in_order(axes: Axes, key: str, values: np.ndarray) -> None:
    flat = values.reshape(-1, values.shape[-1])
    rows = np.unique(np.linspace(0, len(flat) - 1, min(len(flat), MOST_DOTS // flat.shape[1] + 1)).astype(int))
    some = f", the first {MOST_ENTRIES} of {flat.shape[1]} entries" if flat.shape[1] > MOST_ENTRIES else ""
    for k in range(min(flat.shape[1], MOST_ENTRIES)):
        axes.plot(rows, flat[rows, k], ".", ms=2.2, alpha=0.7)
    axes.axhspan(-1.96, 1.96, color="#eef0f3", lw=0, zorder=0)
    axes.set_title(f"{key}: residuals in order of time (band: 95 %)")
    axes.set_xlabel(f"sample{some}")


def interval_picture(estimates: Sequence[Estimate]) -> Picture:
    """Changes from the description and their intervals, in % of it, or of the value or interval where it is zero."""
    shown = list(estimates)[:MOST_ROWS]

    def draw(axes: Axes) -> None:
        for row, e in enumerate(shown):
            unit = abs(e.before) or abs(e.value) or (e.upper - e.lower) / 2 or 1.0
            ends = [(x - e.before) / unit * 100 for x in (e.lower, e.value, e.upper)]
            low, value, high = np.clip(ends, -WIDEST_CHANGE, WIDEST_CHANGE)
            color, beyond = VERDICTS[e.verdict], {-WIDEST_CHANGE: "<", WIDEST_CHANGE: ">"}
            axes.plot([low, high], [row, row], color=color, lw=2.4, alpha=0.55, solid_capstyle="butt")
            axes.plot(value, row, beyond.get(value, "o"), ms=4.2, color=color, clip_on=False)
        axes.axvline(0, color=GREY, lw=0.9, ls=":")
        axes.set_xscale("symlog", linthresh=10)
        axes.margins(x=0.06)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set_yticks(range(len(shown)), [e.name for e in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        some = f"; the first {len(shown)} of {len(estimates)}" if len(shown) < len(estimates) else ""
        axes.set_xlabel(f"change from the description [%]{some}")

    return drawn("change of each parameter with its 95 % interval", draw, (WIDTH, max(1.6, 0.8 + 0.24 * len(shown))))


def singular_picture(sure: Certainty) -> Picture:
    """Singular values of the data; below 1 nothing was learnt."""
    values = np.maximum(np.asarray(sure.singular_values), 1e-6)

    def draw(axes: Axes) -> None:
        colors = [VERDICTS["determined"] if v >= 10 else VERDICTS["not determined" if v < 1 else "partly determined"]
                  for v in values]  # fmt: skip
        axes.bar(np.arange(1, len(values) + 1), values, color=colors, width=0.7)
        axes.set_yscale("log")
        plain_ticks(axes)
        axes.axhline(1, color=GREY, lw=0.9, ls=":")
        axes.set_xlim(0.4, max(len(values), FEW) + 0.6)
        ticks = MaxNLocator(integer=True, min_n_ticks=1).tick_values(1, len(values))
        axes.set_xticks([tick for tick in ticks if 1 <= tick <= len(values)])
        axes.set_xlabel("direction")
        axes.set_title("data over what was known before")

    return drawn("singular values of the data", draw)


def convergence_picture(search: Sequence[tuple[float, float]], fit: Fit) -> Picture:
    """Half the sum of squares wherever the search looked, over time; without that, over iterations."""
    history = np.asarray(fit.result.history)
    time, values = np.array(search, float).T if len(search) else (np.arange(len(history)), history)

    def draw(axes: Axes) -> None:
        finite = np.isfinite(values) & (values > 0)
        axes.semilogy(time[finite], values[finite], ".-", ms=3.5, lw=0.9, color=AFTER)
        plain_ticks(axes)
        axes.set_xlabel("time [s]" if len(search) else "iteration")
        axes.xaxis.set_major_locator(MaxNLocator(integer=not len(search)))
        axes.set_title("half the weighed sum of squares")

    return drawn("convergence of the search", draw)
