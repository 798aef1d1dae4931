"""Arguments that count something."""

from __future__ import annotations

import operator
from typing import Any


def check_whole(number: Any, least: int, name: str) -> None:
    """Refuse what is no whole number, or too small.

    Args:
        number: what was given.
        least: the smallest that will do.
        name: what it is, for the message.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is too small.

    Example:
        >>> check_whole(3, 1, "max_steps")
    """
    try:
        found = operator.index(number)
    except TypeError:
        msg = f"{name} must be a whole number: got {number!r}."
        raise TypeError(msg) from None
    if found < least:
        msg = f"{name} must be at least {least}: got {number}."
        raise ValueError(msg)
