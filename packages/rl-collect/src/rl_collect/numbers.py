"""Checks of numbers that a caller gives."""

from __future__ import annotations

import math
import operator
from typing import Any


def check_count(number: Any, least: int, name: str) -> int:
    """Refuse what is no whole number, or too small; return it as an int."""
    try:
        found = operator.index(number)
    except TypeError:
        found = None
    if found is None or isinstance(number, bool):
        msg = f"{name} must be a whole number: got {number!r}."
        raise TypeError(msg)
    if found < least:
        msg = f"{name} must be at least {least}: got {found}."
        raise ValueError(msg)
    return found


def check_seconds(number: Any, name: str) -> float:
    """Refuse what is no number of seconds, 0 or more; return it as a float."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        msg = f"{name} must be a number of seconds: got {number!r}."
        raise TypeError(msg)
    if math.isnan(number) or number < 0:
        msg = f"{name} must be 0 or more seconds: got {number}."
        raise ValueError(msg)
    return float(number)
