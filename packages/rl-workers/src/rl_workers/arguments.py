"""Checks of public arguments, with errors that name the argument."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

MAX_SECONDS = 2**31 // 1000
"""What `poll` can wait: it counts milliseconds in 32 bits."""


def seconds(value: Any, name: str) -> float:
    """A time limit as a float; negative ones and NaN are refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} must be a number of seconds, got {type(value).__name__}: pass a float."
        )
    found = float(value)
    if not 0 <= found <= MAX_SECONDS:
        raise ValueError(
            f"{name} must lie between 0 and {MAX_SECONDS:,} s, got {value}: pass a limit in there."
        )
    return found


def whole(value: Any, name: str) -> int:
    """A whole number as an int, one of numpy's too."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several elements
        found = None
    if found is None:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: use int({name}).")
    return found


def require_text(value: Any, name: str) -> None:
    """Raise unless a value is a name."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {type(value).__name__}: pass a name.")
