"""Changes in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knuckle.sysid.regression.tables import table
from knuckle.sysid.uncertainty import digits

if TYPE_CHECKING:
    from knuckle.sysid.changes.result import Change, Changes, Measured

SCALE = (
    "Its absolute scale rests on the drive gains (torque constants): no interval covers an error there. With the mass "
    "of a known load given, the gains are estimated."
)
KNOWN = "This mass is on the scale of the recorded efforts; the known load corrects that scale, see the drive gains."


def in_words(change: Change) -> str:
    """One change as a sentence without a full stop."""
    said = {"payload": _payload, "friction": _friction, "offset": _offset, "zero": _zero}[change.kind](change)
    if change.alternatives:
        said += f"; these logs do not tell it from {' or '.join(change.alternatives)}"
    return said


def _payload(change: Change) -> str:
    mass = change["mass"]
    gone = mass.value < 0
    head = f"a payload {'taken off' if gone else 'on'} {change.place}"
    if not mass.determined:
        moments = [change[f"first moment {axis}"] for axis in "xyz"]
        listed = ", ".join(f"{m} {m.unit}" for m in moments if m.determined)
        return f"{head}, whose mass is not determined by these motions" + (f"; {listed}" if listed else "")
    sign = -1 if gone else 1
    ends = sorted((sign * mass.lower, sign * mass.upper))
    places = digits(*ends)
    words = f"{head}: {sign * mass.value:.{places}g} kg ({ends[0]:.{places}g} .. {ends[1]:.{places}g})"
    centre = [change[f"centre {axis}"] for axis in "xyz"]
    if any(c.determined for c in centre):
        listed = ", ".join(
            f"{c.value:.3f} +- {(c.upper - c.lower) / 2:.3f}" if c.determined else "not determined" for c in centre
        )
        words += f", centre of mass at ({listed}) m in the link's frame"
    return words


def _friction(change: Change) -> str:
    relative = change["relative"]
    parts = ", ".join(_from_to(change[name]) for name in ("viscous", "Coulomb"))
    if abs(relative.value) < 0.005:  # friction before was 0, or viscous and Coulomb friction changed against each other
        return f"friction of {change.place}: {parts}"
    way = "up" if relative.value >= 0 else "down"
    bounds = sorted((abs(relative.lower), abs(relative.upper))) if relative.lower * relative.upper > 0 else None
    interval = "" if bounds is None else f" ({100 * bounds[0]:.0f} .. {100 * bounds[1]:.0f} %)"
    return f"friction of {change.place} {way} by {100 * abs(relative.value):.0f} %{interval}: {parts}"


def _from_to(part: Measured) -> str:
    return (
        f"{part.name} {part.before:.3g} to {part.before + part.value:.3g} {part.unit} "
        f"(difference {part.lower:.2g} .. {part.upper:.2g})"
    )


def _offset(change: Change) -> str:
    part = change["offset"]
    places = digits(part.lower, part.upper)
    return (
        f"an offset of the effort of {change.place}: {part.value:.{places}g} {part.unit} "
        f"({part.lower:.{places}g} .. {part.upper:.{places}g})"
    )


def _zero(change: Change) -> str:
    part = change["zero"]
    places = digits(part.lower, part.upper)
    return (
        f"the zero of {change.place} moved by {part.value:.{places}g} {part.unit} "
        f"({part.lower:.{places}g} .. {part.upper:.{places}g})"
    )


def answer(found: Changes) -> list[str]:
    """The answer as sentences: what changed, or that nothing did, then drifts and drive gains."""
    lines = [f"{in_words(c)[0].upper()}{in_words(c)[1:]}.{_share(c)}" for c in found.changes]
    if not lines:
        lines = ["Nothing changed beyond drifts of friction and offsets." if found.drifts else "Nothing changed."]
    if found.excluded is not None:
        link, mass = found.excluded
        lines.append(f"A payload of more than {mass:.2g} kg on {link} would have been seen.")
    if any(c.kind == "payload" for c in found.changes):
        lines.append(KNOWN if found.gains else SCALE)
    return lines


def _share(change: Change) -> str:
    return f" It explains at least {100 * change.share:.0f} % of the difference." if change.share >= 0.005 else ""


def drift_lines(found: Changes) -> list[str]:
    return [f"{in_words(d)} ({100 * max(d.share, 0.0):.1g} % of the difference)" for d in found.drifts]


def gain_lines(found: Changes) -> list[str]:
    return [str(gain) for gain in found.gains]


def error_rows(found: Changes) -> list[tuple[str, ...]]:
    return [(joint, *(f"{x:.3g}" for x in row)) for joint, row in found.errors.items()]


ERROR_HEAD = ("joint", "before", "after", "after, if nothing had changed")


def text(found: Changes) -> str:
    """Everything, as `print` shows it."""
    parts = answer(found)
    if found.drifts:
        parts += ["Small drifts:", *(f"  {line}" for line in drift_lines(found))]
    if found.gains:
        parts += ["True effort over recorded effort, by the known load:", *(f"  {line}" for line in gain_lines(found))]
    parts += ["Torque residuals, root mean squares:", table(ERROR_HEAD, error_rows(found))]
    return "\n".join([*parts, *(f"note: {line}" for line in found.notes)])
