"""Checks of public arguments, with errors that name the argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_tensordict import as_tuple
from rl_tensordict.arguments import check_integer, shown


def check_tensor(value: Any, name: str, expected: str) -> None:
    """Raise where a value is no tensor; `expected` says what it holds, and its shape."""
    if not isinstance(value, Tensor):
        msg = f"{name}: expected a tensor of {expected}, got {shown(value)}. Call torch.as_tensor."
        raise TypeError(msg)


def check_dense(value: Any, name: str, expected: str) -> None:
    """Raise where a value is no tensor, or one without rows that lie side by side."""
    check_tensor(value, name, expected)
    if value.layout is not torch.strided or value.is_nested:
        msg = f"{name}: expected a dense tensor, got {value.layout}. Call to_dense() or values()."
        raise TypeError(msg)


def check_fill(value: Any) -> None:
    """Raise where a value is no single number that fills cells."""
    if not isinstance(value, int | float | complex | np.number):
        msg = f"fill: expected a number, got {shown(value)}."
        raise TypeError(msg)


def check_dim(dim: Any, batch_size: tuple[int, ...]) -> None:
    """Raise where a number is none of a dimension of a batch."""
    count = len(batch_size)
    if not -count <= check_integer("dim", dim) < count:
        msg = f"dim: expected one of {count} dimensions of a batch {list(batch_size)}, got {dim}."
        raise IndexError(msg)


def check_key(key: Any, name: str) -> None:
    """Raise where a value is no key; None represents nothing."""
    if key is None or isinstance(key, str):
        return
    try:
        as_tuple(key)
    except TypeError:
        msg = f"{name}: expected a string or a tuple of strings, got {shown(key)}."
        raise TypeError(msg) from None


def check_mapping(value: Any, name: str, expected: str) -> None:
    """Raise where something has no items: a dictionary, a tensordict and a ModuleDict have."""
    if not isinstance(value, Mapping) and not callable(getattr(value, "items", None)):
        msg = f"{name}: expected {expected}, got {shown(value)}."
        raise TypeError(msg)


def check_flags(**flags: Any) -> None:
    """Raise where a switch has no truth value of its own, as a tensor of several elements."""
    for name, flag in flags.items():
        try:
            bool(flag)
        except Exception:
            msg = f"{name}: expected True or False, got {shown(flag)}."
            raise TypeError(msg) from None


def check_keys(**given: Any) -> None:
    """Raise where something is neither a key nor a list of keys."""
    for name, value in given.items():
        try:
            for key in value if isinstance(value, list) else [value]:
                as_tuple(key)
        except TypeError:
            msg = (
                f"{name}: expected a key (a string or a tuple of strings) or a list of keys, "
                f"got {shown(value)}."
            )
            raise TypeError(msg) from None
