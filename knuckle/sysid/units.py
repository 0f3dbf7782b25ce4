"""Units in headers, as factors to SI."""

from __future__ import annotations

import re

import numpy as np

DEGREE = np.pi / 180
TIME = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanosec", "nanosecs", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "minutes"), 60.0),
}
ANGLE = {
    **dict.fromkeys(("rad", "radian", "radians"), 1.0),
    **dict.fromkeys(("deg", "degree", "degrees"), DEGREE),
    **dict.fromkeys(("rev", "revs", "turn", "turns", "revolutions"), 2 * np.pi),
    "mrad": 1e-3,
}
LENGTH = {**dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1.0), "cm": 1e-2, "mm": 1e-3, "um": 1e-6}
TORQUE = {"nm": 1.0, "mnm": 1e-3, "knm": 1e3, "nmm": 1e-3, "ncm": 1e-2}
CURRENT = {**dict.fromkeys(("a", "amp", "amps", "ampere", "amperes"), 1.0), "ma": 1e-3}
FORCE = {"n": 1.0, "newton": 1.0, "newtons": 1.0, "kn": 1e3, "mn": 1e-3}


def _rates(base: dict[str, float], power: int) -> dict[str, float]:
    ends = ("/s", "ps", "pers") if power == 1 else ("/s2", "/s^2", "/s**2", "/s/s", "ps2", "pers2")
    return {f"{unit}{end}": factor for unit, factor in base.items() for end in ends}


ANGULAR_RATE = {**_rates(ANGLE, 1), "dps": DEGREE, "rpm": 2 * np.pi / 60}
LINEAR_RATE = _rates(LENGTH, 1)
FACTORS: dict[tuple[str, str], dict[str, float]] = {
    ("q", "angle"): ANGLE,
    ("q", "length"): LENGTH,
    ("qd", "angle"): ANGULAR_RATE,
    ("qd", "length"): LINEAR_RATE,
    ("qdd", "angle"): _rates(ANGLE, 2),
    ("qdd", "length"): _rates(LENGTH, 2),
    ("tau", "angle"): TORQUE,
    ("tau", "length"): FORCE,
    ("current", "angle"): CURRENT,
    ("current", "length"): CURRENT,
}
SUFFIXES = tuple(
    sorted(
        {
            *(
                tuple(re.findall(r"[a-z]+|\d+", unit))
                for table in (ANGLE, LENGTH, ANGULAR_RATE, LINEAR_RATE, TORQUE, FORCE)
                for unit in table
            ),
            *((unit, "s") for unit in (*ANGLE, *LENGTH)),
            *((unit, "per", "s") for unit in (*ANGLE, *LENGTH)),
        },
        key=len,
        reverse=True,
    )
)


def spelled(unit: str) -> str:
    """One spelling: lower case, no spaces, no multiplication signs."""
    text = unit.strip().lower().replace("°", "deg").replace("µ", "u").replace("²", "2").replace("per", "/")
    text = re.sub(r"[\s*·.⋅-]|\bby\b", "", text)
    return text.replace("sec", "s").replace("^2", "2")


def factor(unit: str, channel: str, dimension: str) -> float | None:
    """Factor to SI of a unit in a header, or None if it is none of this quantity; without a unit 1."""
    if not unit.strip() or dimension in ("number", "quaternion"):
        return 1.0
    base = "q" if channel.startswith(("pose/", "point/")) else channel
    table = {spelled(name): value for name, value in FACTORS.get((base, dimension), {}).items()}
    return table.get(spelled(unit))


def known(channel: str, dimension: str) -> tuple[str, ...]:
    """Units that a quantity may have."""
    base = "q" if channel.startswith(("pose/", "point/")) else channel
    return tuple(FACTORS.get((base, dimension), {}))


def is_current(unit: str | None) -> bool:
    """Whether a unit is one of electric current."""
    return unit is not None and spelled(unit) in CURRENT


def time_factor(unit: str) -> float | None:
    return TIME.get(unit.strip().lower().replace("µ", "u"))
