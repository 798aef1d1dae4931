"""Arguments of public calls, named where they are of another kind than expected."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase, is_tensorclass
from torch import Tensor

from rl_layout.keys import as_tuple


def shown(value: Any) -> str:
    """Write what came in a few characters."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    kind = type(value).__name__
    plain = value is None or isinstance(
        value, str | bytes | int | float | complex | list | tuple | dict
    )
    text = f"{value!r} ({kind})" if plain else f"a {kind}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_tensordict(value: Any, name: str) -> None:
    """Raise where a batch is no tensordict, nor a class of tensors."""
    if not isinstance(value, TensorDictBase) and not is_tensorclass(value):
        msg = f"{name}: expected a tensordict, got {shown(value)}. Write TensorDict(..., [*B, T])."
        raise TypeError(msg)


def check_dim(dim: Any, batch_size: tuple[int, ...]) -> None:
    """Raise where a number is none of a dimension of a batch."""
    count = len(batch_size)
    if not -count <= _whole(dim, "dim") < count:
        msg = f"dim: expected one of {count} dimensions of a batch {list(batch_size)}, got {dim}."
        raise IndexError(msg)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, int):
        return value
    try:
        return operator.index(value)
    except TypeError:
        msg = f"{name}: expected a whole number, got {shown(value)}."
        raise TypeError(msg) from None


def check_key(key: Any, name: str) -> None:
    """Raise where a value is no key; None stands for nothing."""
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


def check_count(value: Any, name: str) -> None:
    """Raise where a value is no whole number of at least 1."""
    if not 1 <= _whole(value, name) < 2**63:
        msg = f"{name}: expected a number from 1 to 2**63 - 1, got {value}."
        raise ValueError(msg)


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
