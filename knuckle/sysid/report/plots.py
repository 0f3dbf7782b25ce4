"""Pictures of a fit, each small enough to be read on a phone, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from knuckle.deadline import Deadline
from knuckle.sysid.fit import Fit
from knuckle.sysid.held_out import HeldOut
from knuckle.sysid.report.segments import Segment, SegmentCurve
from knuckle.sysid.torque_errors import TorqueCurve
from knuckle.sysid.uncertainty import NOT_CONVERGED, Certainty, Estimate

INK, GREY, PALE = "#2b3038", "#5c6570", "#d9dde3"
BEFORE, AFTER, PALE_INK = "#d4862a", "#1f5f86", "#a9afb8"
VERDICTS = {"determined": "#3d8b57", "partly determined": "#b07c12", "not determined": "#b5483f", NOT_CONVERGED: GREY}
VERDICTS |= {"rests on the prior": VERDICTS["not determined"]}
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
LEFT, RIGHT, TOP = 0.62, 0.08, 0.42  # margins [in]
TWO_LINES = 0.62  # bottom margin for tick labels of two lines [in]
SMALL_WIDTH, SMALL_HEIGHT, FEW = 3.7, 2.2, 8  # of pictures that are more than a few
WIDEST_CHANGE, MOST_ROWS = 1e4, 40  # [%], parameters that are drawn
MOST_PANELS, MOST_DOTS, MOST_ENTRIES = 24, 1500, 8
CLOCK = 1e5  # seconds of a log's first stamp from which on it is a clock's


_deadline: ContextVar[Deadline] = ContextVar("deadline")


class Picture(tuple[str, str]):
    """What a picture shows in words, and its SVG text; empty where there was no time for it, or it cannot be drawn."""


@contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """Pictures are drawn up to this deadline."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def drawn(
    about: str,
    draw: Callable[[Any], None],
    size: tuple[float, float] = (WIDTH, HEIGHT),
    *,
    whole: bool = False,
    wide_labels: bool = False,
    bottom: float = 0.46,
) -> Picture:
    """A picture with one pair of axes, which `draw` gets; `whole`: it gets the figure.

    wide_labels: margins follow the labels, which takes twice the time. bottom: else the margin there [in].
    """
    limit = _deadline.get(None)
    if limit is not None and limit.out:
        return Picture((about, ""))
    try:
        with mpl.rc_context(STYLE), np.errstate(all="ignore"):
            figure = Figure(figsize=size, layout="constrained" if whole or wide_labels else None)
            if not (whole or wide_labels):
                width, height = size
                figure.subplots_adjust(LEFT / width, bottom / height, 1 - RIGHT / width, 1 - TOP / height)
            draw(figure if whole else figure.subplots())
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    except (ValueError, ArithmeticError):  # numbers of a simulation that diverged
        return Picture((about, ""))
    svg = text.getvalue()
    return Picture((about, svg[svg.index("<svg") :]))


def legend(axes: Axes, columns: int) -> None:
    """In one line above the axes, beside the title."""
    axes.legend(loc="lower right", ncols=columns, bbox_to_anchor=(1.0, 0.97), borderpad=0.1, handlelength=1.4)


def plain_ticks(axes: Axes) -> None:
    """Numbers on a logarithmic axis as they are written elsewhere; linear where it spans less than a decade."""
    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.set_yscale("linear")
        axes.ticklabel_format(axis="y", useOffset=False)
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def side_by_side(time: np.ndarray, count: int) -> list[np.ndarray]:
    """Times of so many segments, drawn one after the other."""
    length = time[-1] + max(0.08 * time[-1], 2 * (time[1] - time[0])) if len(time) > 1 else 1.0
    return [time + n * length for n in range(count)]


def size_of_one(count: int, height: float = HEIGHT) -> tuple[float, float]:
    """Of so many pictures: smaller where they are more than a few."""
    return (SMALL_WIDTH, min(height, SMALL_HEIGHT)) if count > FEW else (WIDTH, height)


def segment_pictures(curves: Sequence[SegmentCurve], segments: Sequence[Segment], known: float) -> list[Picture]:
    """Measured against simulated before and after, entry by entry; grey: the first `known` seconds of held-out ones."""
    about = "{}: measured, and simulated before and after the fit, worst and median segments"
    return [
        drawn(about.format(c.name), lambda axes, c=c: _segments(axes, c, segments, known), bottom=TWO_LINES)
        for c in curves
    ]


def _segments(axes: Axes, curve: SegmentCurve, segments: Sequence[Segment], known: float) -> None:
    times = side_by_side(curve.time, len(segments))
    for n, (time, segment) in enumerate(zip(times, segments, strict=True)):
        first = n == 0
        if segment.is_held_out:
            axes.axvspan(time[0], time[0] + known, color="#e6e9ee", lw=0, zorder=0)
        axes.plot(time, curve.measured[n], ".-", ms=4, lw=2.6, color=PALE_INK, label="measured" if first else None)
        axes.plot(time, curve.before[n], "--", lw=1.3, color=BEFORE, label="before" if first else None)
        axes.plot(time, curve.after[n], lw=1.5, color=AFTER, label="after" if first else None)
    _scale_to(axes, curve.measured, curve.after)
    _name_segments(axes, times, segments)
    unit = f" [{curve.unit}]" if curve.unit else ""
    axes.set_title(f"{curve.name}{', simulated less measured' if curve.difference else ''}{unit}", pad=16)
    axes.set_xlabel(f"segments of {curve.time[-1]:.3g} s side by side")
    legend(axes, 3)


def _scale_to(axes: Axes, *values: np.ndarray) -> None:
    """What diverged before the fit does not set the scale."""
    seen = np.concatenate([part.ravel() for part in values])
    seen = seen[np.isfinite(seen)]
    if len(seen):
        low, high = seen.min(), seen.max()
        margin = 0.12 * max(float(high - low), 1e-12)
        axes.set_ylim(low - margin, high + margin)


def _name_segments(axes: Axes, times: Sequence[np.ndarray], segments: Sequence[Segment]) -> None:
    """Names of few segments below them, of many those of the first of each source."""
    few = len(segments) <= FEW // 2 + 1
    for before, after in pairwise(times):
        axes.axvline(0.5 * (before[-1] + after[0]), color="#9aa3af", lw=0.6)
    first = [s.source not in {other.source for other in segments[:n]} for n, s in enumerate(segments)]
    names = [f"{s.source}\n{s.label}" if few or new else "" for s, new in zip(segments, first, strict=True)]
    axes.set_xticks([0.5 * (time[0] + time[-1]) for time in times], names, fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def torque_pictures(curves: Sequence[TorqueCurve]) -> list[Picture]:
    """Measured and predicted torque of each joint over the seconds with the largest error."""

    def draw(axes: Axes, curve: TorqueCurve) -> None:
        begin = curve.time[0] if curve.time[0] > CLOCK else 0.0
        axes.plot(curve.time - begin, curve.measured, color=PALE_INK, lw=2.6, label="measured")
        axes.plot(curve.time - begin, curve.predicted, color=AFTER, lw=1.1, label="predicted")
        _scale_to(axes, curve.measured, curve.predicted)
        axes.set_title(f"{curve.joint} [{curve.unit}]", pad=16)
        since = f" since {begin:.2f}" if begin else ""
        worst = f"worst {curve.time[-1] - curve.time[0]:.2g} s of {_source(curve.is_held_out)} data"
        axes.set_xlabel(f"time [s]{since}, {worst}")
        legend(axes, 2)

    size = size_of_one(len(curves), 2.2)
    about = "torque of {}, measured and predicted"
    return [drawn(about.format(c.joint), lambda axes, c=c: draw(axes, c), size) for c in curves]


def _source(held_out: bool) -> str:
    return "held-out" if held_out else "training"


def error_growth(held_out: HeldOut, noise: Mapping[str, float], units: Mapping[str, str]) -> list[Picture]:
    """Error over time since the start of a segment, by channel."""
    time = 1e3 * held_out.shots.period * np.arange(held_out.shots.samples)

    def of(axes: Axes, key: str) -> None:
        axes.axvspan(0, time[held_out.seen - 1], color="#eef0f3", lw=0, zorder=0)
        for off, color, label in ((held_out.off_before, BEFORE, "before"), (held_out.off_after, AFTER, "after")):
            size = np.sqrt(_mean(off[key] ** 2))
            axes.semilogy(time, np.where(np.isfinite(size) & (size > 0), size, np.nan), color=color, label=label)
        axes.axhline(noise[key], color=GREY, lw=0.9, ls=":", label="noise")
        plain_ticks(axes)
        axes.set_title(f"held-out error of {key}{units[key]}", pad=16)
        axes.set_xlabel("time since the start of a segment [ms]")
        legend(axes, 3)

    keys = list(held_out.off_after)[:MOST_PANELS]
    return [drawn(f"error of {key} over time, before and after", lambda axes, k=key: of(axes, k)) for key in keys]


def _mean(values: np.ndarray) -> np.ndarray:
    """Over segments and entries, of what was measured."""
    known = ~np.isnan(values)
    return np.sum(np.where(known, values, 0.0), axis=(0, 2)) / np.maximum(known.sum(axis=(0, 2)), 1)


def residual_pictures(residuals: Mapping[str, np.ndarray]) -> list[Picture]:
    """Distribution of residuals over the noise, beside a normal one, and residuals in order."""
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
    axes.set_title(f"{key}: residuals over the noise", pad=16)
    axes.set_xlabel("residual / noise")
    legend(axes, 2)


def _in_order(axes: Axes, key: str, values: np.ndarray) -> None:
    flat = values.reshape(-1, values.shape[-1])
    rows = np.unique(np.linspace(0, len(flat) - 1, min(len(flat), MOST_DOTS // flat.shape[1] + 1)).astype(int))
    some = f", the first {MOST_ENTRIES} of {flat.shape[1]} entries" if flat.shape[1] > MOST_ENTRIES else ""
    for k in range(min(flat.shape[1], MOST_ENTRIES)):
        axes.plot(rows, flat[rows, k], ".", ms=2.2, alpha=0.7)
    axes.axhspan(-1.96, 1.96, color="#eef0f3", lw=0, zorder=0)
    axes.set_title(f"{key}: residuals over the noise, in order (band: 95 %)")
    axes.set_xlabel(f"sample{some}")


def interval_picture(estimates: Sequence[Estimate]) -> Picture:
    """Changes from the description and their intervals, in % of it, or of the value or interval where it is zero."""
    shown = list(estimates)[:MOST_ROWS]

    def draw(axes: Axes) -> None:
        for row, e in enumerate(shown):
            unit = abs(e.before) or abs(e.value) or (e.has_interval and (e.upper - e.lower) / 2) or 1.0
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

    return drawn(
        "change of each parameter with its 95 % interval",
        draw,
        (WIDTH, max(1.6, 0.8 + 0.24 * len(shown))),
        wide_labels=True,
    )


def singular_picture(sure: Certainty) -> Picture:
    """Singular values of the data in units of the prior; below 1 the prior decides."""
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
        axes.set_title("information of the data over the prior")

    return drawn("singular values of the data", draw)


def convergence_picture(search: Sequence[tuple[float, float]], fit: Fit) -> Picture:
    """Half the sum of squares of each evaluation, over time; without that, over iterations."""
    history = np.asarray(fit.result.history)
    time, values = np.array(search, float).T if len(search) else (np.arange(len(history)), history)

    def draw(axes: Axes) -> None:
        finite = np.isfinite(values) & (values > 0)
        axes.semilogy(time[finite], values[finite], ".-", ms=3.5, lw=0.9, color=AFTER)
        plain_ticks(axes)
        axes.set_xlabel("time [s]" if len(search) else "iteration")
        axes.xaxis.set_major_locator(MaxNLocator(integer=not len(search)))
        axes.set_title("half the weighted sum of squares")

    return drawn("convergence of the search", draw)
