"""Sections of a report that not every fit has: networks, posterior samples, the next experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from knuckle.sysid.learned import Learned
from knuckle.sysid.report import more_plots as plots
from knuckle.sysid.report.html import between, interval, judged, number, pictures, section, table
from knuckle.sysid.uncertainty import digits

Data = Mapping[str, Any]


ALONG = "What the networks change along the fitted trajectories of the training data."


def networks_section(networks: Sequence[Learned], said: str = ALONG) -> str:
    """What networks learned; `said`: along what their sizes were taken."""
    if not networks:
        return ""
    rows = [
        (escape(n.tap), escape(n.network), n.mode, escape(", ".join(n.inputs)), str(n.numbers), f"{n.size:.4g}",
         f"{n.without:.4g}", escape(n.unit))
        for n in networks
    ]  # fmt: skip
    head = ("tap", "network", "mode", "inputs", "weights", "change (RMS)", "without it (RMS)", "unit")
    words = f"<p>{escape(said)} Root mean squares are over all entries, beside the quantity without them.</p>"
    return section("Networks", words, table(head, rows, "ttttnnnt"), *map(_of_network, networks))


def _of_network(network: Learned) -> str:
    if network.curves:
        return pictures(plots.curve_pictures(network), len(network.curves), f"joints at {escape(network.tap)} are")
    if not network.series:
        return f"<p>The network at {escape(network.tap)} changed nothing there.</p>"
    shown, changed = len(network.series), network.changed
    most = f"; the {shown} that it changes most are shown" if shown < changed else ""
    words = f"It changes {changed} of {network.entries} entries of {escape(network.tap)}{most}."
    said = f'<p class="note">{words}</p>' if shown < network.entries else ""
    return pictures(plots.series_pictures(network)) + said


def posterior_section(posterior: Data | None) -> str:
    """Posterior samples: marginals, and pairs of few parameters."""
    if not posterior or not posterior["names"]:
        return ""
    names, samples = posterior["names"], plots.sampled(posterior)
    rows = [
        (escape(name), between(low, high, digits(low, high)), f"{middle:.{digits(low, high)}g}")
        for name, (low, middle, high) in zip(names, plots.quantiles(samples).T, strict=True)
    ]
    rest = "" if posterior["motion"] < plots.AT_REST else " They had not settled: more of them may be needed."
    words = (
        f"<p>{len(samples)} samples with equal weights, in posterior.csv. Lines: the value of the fit and its 95 % "
        f"interval.{rest}</p>"
    )
    shown = plots.marginal_pictures(posterior)
    pairs = pictures([plots.pair_picture(posterior)]) if 1 < len(names) <= plots.MOST_PAIRED else ""
    return section(
        "Posterior samples",
        words,
        table(("parameter", "95 % interval of the samples", "median"), rows, "tnn"),
        pictures(shown, len(names), "parameters are"),
        pairs,
    )


def next_section(proposed: Data | None) -> str:
    """The trajectory to record next, and intervals after it."""
    if not proposed:
        return ""
    gain = proposed["worst_before"] / max(proposed["worst_after"], 1e-300)
    words = (
        f"<p>A trajectory of {proposed['duration']:.3g} s, the best of {proposed['tries']} within the limits. With a "
        f"log of it, the standard deviation of the least known combination would be {gain:.3g} times smaller. It is in "
        f"{escape(str(proposed['file']))}. Collisions were not checked.</p>"
    )
    rows = [
        (judged(now["name"], then["verdict"]), interval(now), interval(then), number(_ratio(now, then), ".3g"),
         escape(now["unit"]))
        for now, then in zip(proposed["before"], proposed["expected"], strict=True)
    ]  # fmt: skip
    head = ("parameter, and its verdict then", "95 % interval now", "then", "times narrower", "unit")
    shown, count = plots.motion_pictures(proposed)
    return section("The next experiment", words, table(head, rows, "tnnnt"), pictures(shown, count, "channels are"))


def _ratio(now: Data, then: Data) -> float | None:
    return now["deviation"] / then["deviation"] if then["deviation"] else None
