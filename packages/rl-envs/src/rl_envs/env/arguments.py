"""Type checks of arguments, whose messages name the argument."""

from __future__ import annotations

import operator
from typing import Any

import torch
from tensordict import TensorDictBase


def check_kind(given: Any, kind: Any, expected: str) -> None:
    """Raise where an argument is no object of a class; `expected` says what it should be."""
    if not isinstance(given, kind):
        msg = f"expected {expected}: got {type(given).__name__} {str(given)[:60]!r}."
        raise TypeError(msg)


def sizes_of(batch_size: Any) -> torch.Size:
    """Read a batch size."""
    given = [batch_size] if isinstance(batch_size, int) else batch_size
    try:
        sizes = torch.Size(given)
    except TypeError:
        sizes = None
    if sizes is None or any(size < 0 for size in sizes):
        msg = f"expected a batch size of whole numbers, as (3,): got {batch_size!r}."
        raise ValueError(msg)
    return sizes


def check_flags(**flags: Any) -> None:
    """Raise where a switch is neither on nor off."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            msg = f"{name} must be True or False: got {type(flag).__name__} {flag!r}."
            raise TypeError(msg)


def check_calls(**calls: Any) -> None:
    """Raise where something that is to be called cannot be; None represents nothing."""
    for name, call in calls.items():
        if call is not None and not callable(call):
            msg = f"{name} must be a function or a module: got {type(call).__name__} {call!r}."
            raise TypeError(msg)


def check_tensordict(given: Any, name: str) -> None:
    """Raise where something is no tensordict; None represents nothing."""
    if given is not None and not isinstance(given, TensorDictBase):
        msg = f"{name} must be a tensordict: got {type(given).__name__}."
        raise TypeError(msg)


def device_of(device: Any) -> torch.device:
    """Read a device, or raise if there is none like it."""
    try:
        return torch.empty(0, device=torch.device(device)).device  # with its number
    except (AssertionError, RuntimeError, TypeError, NotImplementedError) as error:
        msg = f"expected a device of this machine, as 'cpu': got {device!r} ({error})."
        raise RuntimeError(msg) from error


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
