"""Values of options from their texts; what does not fit is said with what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence

import knuckle as kn

NOTHING = "none"  # of --free: networks and instruments only


def pairs(texts: Sequence[str] | None, option: str, form: str = "NAME=MEANING") -> dict[str, str]:
    """Texts such as NAME=MEANING, of which only NAME may hold another =."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, meaning = text.rpartition("=")
        if not name or not meaning:
            raise ValueError(f"{option} takes {form}, got {text!r}")
        if name in found:
            raise ValueError(f"{option}: {name} is given twice")
        found[name] = meaning
    return found


def numbers(texts: Sequence[str] | None, option: str, form: str) -> dict[str, float]:
    """Finite numbers by name: NAME=NUMBER."""
    given = pairs(texts, option, form)
    return {name: _number(value, f"{option} takes {form}", f"{name}={value}") for name, value in given.items()}


def sizes(text: str | None, option: str) -> tuple[int, ...] | None:
    """Positive whole numbers with commas between."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{option} takes positive whole numbers with commas between, got {text!r}")
    return tuple(map(int, parts))


def names(text: str | None, option: str) -> tuple[str, ...] | None:
    """Names with commas between."""
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise ValueError(f"{option} takes names with commas between, got {text!r}")
    return parts


def positive(option: str, value: float | None, what: str = "") -> float | None:
    """The value, if there is one and it is above zero."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option} must be a positive number{what}, got {value:g}")
    return value


def patterns(texts: Sequence[str] | None) -> dict[str, kn.Prior | None] | None:
    """What is free, some with bounds and a spread: '*.mass=0.5:3~0.1'."""
    if not texts:
        return None
    if NOTHING in texts:
        if len(texts) > 1:
            raise ValueError(f"--free {NOTHING} leaves out all parameters: give it alone")
        return {}
    found: dict[str, kn.Prior | None] = {}
    for text in texts:
        pattern, prior = _pattern(text)
        if pattern in found:
            raise ValueError(f"--free: {pattern} is given twice")
        found[pattern] = prior
    return found


def _pattern(text: str) -> tuple[str, kn.Prior | None]:
    form = "--free takes PATTERN, PATTERN=LOWER:UPPER, PATTERN~SPREAD or PATTERN=LOWER:UPPER~SPREAD"
    body, tilde, spread = text.partition("~")
    pattern, equals, bounds = body.partition("=")
    lower, colon, upper = bounds.partition(":")
    if not pattern or (equals and not (colon and (lower or upper))) or (tilde and not spread):
        raise ValueError(f"{form}, got {text!r}")
    prior = kn.Prior(*(_number(part, form, text) if part else None for part in (lower, upper, spread)))
    if prior.lower is not None and prior.upper is not None and not prior.lower < prior.upper:
        raise ValueError(f"--free: LOWER must be below UPPER, got {text!r}")
    if prior.spread is not None and prior.spread <= 0:
        raise ValueError(f"--free: SPREAD must be above zero, got {text!r}")
    return pattern, prior if equals or tilde else None


def _number(text: str, form: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{form} with finite numbers, got {whole!r}")
    return value
