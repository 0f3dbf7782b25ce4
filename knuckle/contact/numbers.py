"""Numbers that a contact model is given: what cannot be meant is refused when it is made. Traced ones are not seen."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.core import Tracer


def check_range(
    owner: Any, names: Iterable[str], *, positive: bool = False, most: float = math.inf, infinite: bool = False
) -> None:
    """Refuse NaN, negative values (zero too, if they must be positive), and what is too large or infinite."""
    for name in names:
        value = getattr(owner, name)
        if value is None or isinstance(value, Tracer):
            continue
        numbers = np.asarray(value)
        above = np.all(numbers > 0) if positive else np.all(numbers >= 0)  # false for NaN
        if above and np.all(numbers <= most) and (infinite or np.all(np.isfinite(numbers))):
            continue
        wanted = "be positive" if positive else "not be negative"
        wanted += "" if infinite else " and be finite"
        wanted += "" if most == math.inf else f", and at most {most:g}"
        raise ValueError(f"{type(owner).__name__}: {name} must {wanted}, got {value}")


def check_count(owner: Any, name: str, least: int) -> None:
    """Refuse what is no whole number of at least so many."""
    value = getattr(owner, name)
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise ValueError(f"{type(owner).__name__}: {name} must be a whole number of at least {least}, got {value!r}")
