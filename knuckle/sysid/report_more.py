"""Sections of a report that not every fit has: networks, posterior samples, the next experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from knuckle.sysid import report_more_plots as plots
from knuckle.sysid.learned import Learned
from knuckle.sysid.report_html import between, interval, judged, number, pictures, section, table
from knuckle.sysid.uncertainty import digits

Data = Mapping[str, Any]


def networks_section(networks: Sequence[Learned]) -> str:
    if not networks:
        return ""
    rows = [
        (escape(n.tap), escape(n.network), n.mode, escape(", ".join(n.inputs)), str(n.numbers), f"{n.size:.4g}",
         f"{n.without:.4g}", escape(n.unit))
        for n in networks
    ]  # fmt: skip
    head = ("tap", "network", "mode", "inputs", "numbers", "change (rms)", "without it (rms)", "unit")
    words = (
        "<p>What the networks change along the fitted motion of the training data, beside the quantity as physics "
        "alone has it. Root mean squares are over all its entries.</p>"
    )
    return section("What the networks learned", words, table(head, rows, "ttttnnnt"), *map(_of_network, networks))


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
    """Samples of what the data leave possible: marginals, and pairs of few parameters."""
    if not posterior or not posterior["names"]:
        return ""
    names, samples = posterior["names"], plots.sampled(posterior)
    rows = [
        (escape(name), between(low, high, digits(low, high)), f"{middle:.{digits(low, high)}g}")
        for name, (low, middle, high) in zip(names, plots.quantiles(samples).T, strict=True)
    ]
    rest = "" if posterior["motion"] < plots.AT_REST else " They were still moving: more of them may be needed."
    words = (
        f"<p>{len(samples)} samples, all equally probable; posterior.csv has them. Lines: the value of the fit, and "
        f"the interval that its covariance gives.{rest}</p>"
    )
    shown = plots.marginal_pictures(posterior)
    pairs = pictures([plots.pair_picture(posterior)]) if 1 < len(names) <= plots.MOST_PAIRED else ""
    return section(
        "Samples of what the data leave possible",
        words,
        table(("parameter", "95 % of the samples in", "middle"), rows, "tnn"),
        pictures(shown, len(names), "parameters are"),
        pairs,
    )


def next_section(proposed: Data | None) -> str:
    """The motion to record next, and how much better parameters would then be known."""
    if not proposed:
        return ""
    gain = proposed["worst_before"] / max(proposed["worst_after"], 1e-300)
    words = (
        f"<p>A motion of {proposed['duration']:.3g} s, the best of {proposed['tries']} that keep to the limits. After "
        f"a log of it the least known combination that a motion can show is {gain:.3g} times better known. It is in "
        f"{escape(str(proposed['file']))}; what the robot may bump into was not looked at.</p>"
    )
    rows = [
        (judged(now["name"], then["verdict"]), interval(now), interval(then), number(_ratio(now, then), ".3g"),
         escape(now["unit"]))
        for now, then in zip(proposed["before"], proposed["expected"], strict=True)
    ]  # fmt: skip
    head = ("parameter, and what it would be", "95 % interval now", "then", "times narrower", "unit")
    shown, count = plots.motion_pictures(proposed)
    return section("The next experiment", words, table(head, rows, "tnnnt"), pictures(shown, count, "channels are"))


def _ratio(now: Data, then: Data) -> float | None:
    return now["deviation"] / then["deviation"] if then["deviation"] else None
