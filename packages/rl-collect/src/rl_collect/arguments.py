"""Checks of what a caller gives."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.arguments import as_integer


def check_count(number: Any, least: int, name: str) -> int:
    """Raise unless it is a whole number that is large enough; return it as an int."""
    found = as_integer(number)
    if found is None:
        msg = f"{name} must be an integer: got {number!r:.200}."
        raise TypeError(msg)
    if found < least:
        msg = f"{name} is too small: it must be at least {least}, got {found}."
        raise ValueError(msg)
    return found


def check_seconds(number: Any, name: str) -> float:
    """Raise unless it is a number of seconds, 0 or more; return it as a float."""
    if isinstance(number, bool) or not isinstance(number, Real):
        msg = f"{name} must be a number of seconds: got {number!r:.200}."
        raise TypeError(msg)
    if math.isnan(number) or number < 0:
        msg = f"{name} must be 0 or more seconds: got {number}."
        raise ValueError(msg)
    return float(number)


def check_switches(**switches: Any) -> None:
    """Raise unless each is True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool | int | np.bool_):
            msg = f"{name} must be True or False: got {value!r:.200}."
            raise TypeError(msg)


def check_switches_of(options: Any) -> None:
    """Raise unless the fields of a record that are annotated as bool are."""
    # a text, as all annotations of the records are
    names = [field.name for field in fields(options) if field.type == "bool"]
    check_switches(**{name: getattr(options, name) for name in names})


def check_sizes(sizes: Any, name: str) -> tuple[int, ...]:
    """Raise unless it is a sequence of sizes; return it as a tuple."""
    if not isinstance(sizes, tuple | list):
        msg = f"{name} must be a tuple of sizes, as (2,) or (): got {sizes!r:.200}."
        raise TypeError(msg)
    return tuple(check_count(size, 0, name) for size in sizes)


def as_array(values: Any) -> NDArray[Any]:
    """Convert values to an array; one of dtype object where numpy cannot."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return np.empty((), object)


def as_flags(flags: Any, shape: tuple[int, ...], name: str) -> NDArray[np.bool_]:
    """Read bool flags of a shape as an array; -1, the last in the shape, is any size."""
    found = as_array(flags)
    if found.dtype != np.bool_:
        msg = f"{name} must be bool, as an array or a tensor: got {flags!r:.200}."
        raise TypeError(msg)
    size = found.shape[-1:] if shape[-1:] == (-1,) else shape[-1:]
    if found.shape != (*shape[:-1], *size) or found.ndim != len(shape):
        expected = tuple("T" if size == -1 else size for size in shape)
        msg = f"{name} must have shape {expected}: got {found.shape}."
        raise ValueError(msg)
    return found
