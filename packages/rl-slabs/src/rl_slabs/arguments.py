"""Checks of public arguments, with errors that name the argument."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, SupportsIndex

import torch

from rl_tensordict.arguments import as_integer

_KEYS = frozenset({str, tuple})


def whole(value: Any, name: str) -> int:
    """A whole number as an int, be it one of numpy's or a tensor of one."""
    found = as_integer(value)
    if found is None:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}: use int({name}).")
    return found


def positive(count: SupportsIndex, name: str) -> int:
    """A positive count as an int, also from numpy integers."""
    found = whole(count, name)
    if found < 1:
        raise ValueError(f"{name} must be at least 1, got {count}.")
    return found


def seconds(value: Any, name: str) -> float:
    """A number of seconds, 0 or more, as a float; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}.")
    found = float(value)
    if math.isnan(found) or found < 0:
        raise ValueError(f"{name} must be 0 or more seconds, got {value}.")
    return found


def key_list(keys: Any) -> tuple[str | tuple[str, ...], ...]:
    """A list of keys as a tuple; each is checked when it is looked up."""
    if isinstance(keys, str):
        raise TypeError(f"expected a list of keys, got the string {keys!r}: use [{keys!r}].")
    try:
        found = tuple(keys)
        is_plain = _KEYS.issuperset(map(type, found))
        if not is_plain:
            found = tuple(tuple(key) if isinstance(key, list) else key for key in found)
            is_plain = all(isinstance(key, str | tuple) for key in found)
        hash(found)
    except (TypeError, RuntimeError):  # tensors without dimensions say it in their own way
        is_plain = False
    if not is_plain:
        raise TypeError(
            f"expected a list of keys, strings or tuples of strings, got {type(keys).__name__}: "
            "use ['reward', ('next', 'observation')]."
        )
    return found


def as_device(device: Any) -> torch.device:
    """Read a device; the CPU where none is given."""
    if device is None:
        return torch.device("cpu")
    try:
        return torch.device(device)
    except (TypeError, RuntimeError, ValueError, OverflowError):
        raise TypeError(f"expected a device, as 'cpu' or 'cuda:0', got {device!r:.80}.") from None
