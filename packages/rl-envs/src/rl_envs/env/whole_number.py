"""Checks of arguments that are counts."""

from __future__ import annotations

import operator
from typing import Any


def check_whole(number: Any, least: int, name: str) -> None:
    """Raise unless `number` is an integer of at least `least`."""
    try:
        found = operator.index(number)
    except TypeError:
        msg = f"{name} must be a whole number: got {number!r}."
        raise TypeError(msg) from None
    if found < least:
        msg = f"{name} must be at least {least}: got {number}."
        raise ValueError(msg)
