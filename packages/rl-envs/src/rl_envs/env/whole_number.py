"""Arguments that count something."""

from __future__ import annotations

import operator
from typing import Any


def check_whole(number: Any, least: int, name: str) -> None:
    """Raise for what is no whole number, or too small."""
    try:
        found = operator.index(number)
    except TypeError:
        msg = f"{name} must be a whole number: got {number!r}."
        raise TypeError(msg) from None
    if found < least:
        msg = f"{name} must be at least {least}: got {number}."
        raise ValueError(msg)
