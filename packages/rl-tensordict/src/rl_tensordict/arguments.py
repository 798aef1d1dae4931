"""Checks of public arguments, whose errors name the argument, what was expected and what came.

Made for the packages of this family: names change with the minor version only.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import FrameType
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from rl_tensordict.errors import UnknownName
from rl_tensordict.host import CPU
from rl_tensordict.nested_keys import as_tuple
from rl_tensordict.types import NestedKey

PLAIN = (str, bytes, int, float, complex, list, tuple, dict, type(None))


def shown(value: Any) -> str:
    """Describe a value for an error message, in at most 80 characters."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    kind = type(value).__name__
    text = f"{value!r} ({kind})" if isinstance(value, PLAIN) else f"a {kind}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_type(name: str, value: Any, kinds: Any, expected: str) -> None:
    """Raise unless a value is of one of some types, which `expected` names."""
    if not isinstance(value, kinds):
        msg = f"{name}: expected {expected}, got {shown(value)}."
        raise TypeError(msg)


def check_collection(name: str, value: Any) -> None:
    """Raise unless a value is a tensordict or a tensorclass."""
    if not is_tensor_collection(value):
        msg = f"{name}: expected a tensordict, got {shown(value)}."
        raise TypeError(msg)


def as_integer(value: Any) -> int | None:
    """Read a whole number, one of numpy's or a tensor of one too; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several elements
        return None


def check_integer(name: str, value: Any) -> int:
    """Raise unless a value is a whole number; return it as an int."""
    if type(value) is int:  # the look-up of an abstract class costs microseconds
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        msg = f"{name}: expected a whole number, got {shown(value)}."
        raise TypeError(msg)
    return int(value)


def check_whole(name: str, value: Any, least: int | None = None, advice: str = "") -> None:
    """Raise unless a value is a whole number of 64 bits that is large enough."""
    whole = check_integer(name, value)
    if least is not None and whole < least:
        msg = f"{name}: expected at least {least}, got {value}.{advice}"
        raise ValueError(msg)
    if not -(2**63) <= whole < 2**63:
        msg = f"{name}: expected a number of 64 bits, got {value}."
        raise ValueError(msg)


def check_choice(name: str, value: Any, choices: Sequence[str | bool]) -> None:
    """Raise unless a value is one of two or more names, True and False perhaps among them."""
    if not isinstance(value, str | bool) or value not in choices:
        *most, last = (str(c) if isinstance(c, bool) else repr(str(c)) for c in choices)
        msg = f"{name}: expected {', '.join(most)} or {last}, got {shown(value)}."
        raise ValueError(msg)


def check_flags(**flags: Any) -> None:
    """Raise for a switch that is neither True nor False."""
    for name, flag in flags.items():
        check_type(name, flag, bool, "True or False")


def check_calls(**calls: Any) -> None:
    """Raise for a value that cannot be called; None means no call."""
    for name, call in calls.items():
        check_type(name, call, Callable | None, "a function or a module")


def check_number(name: str, value: Any) -> None:
    """Raise unless a value is a real number, and no NaN."""
    check_type(name, value, Real, "a number")
    if math.isnan(value):
        msg = f"{name}: expected a number, got nan."
        raise ValueError(msg)


def number_tensor(name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Convert a number to a tensor; a tensor stays as it is."""
    if isinstance(value, Tensor) and not value.is_complex() and value.layout is torch.strided:
        return value
    check_number(name, value)
    number = float(value) if isinstance(value, Real) else value
    # a number on the CPU works with rows on any device
    return torch.tensor(number, dtype=dtype, device=CPU)


def key_list(name: str, keys: Sequence[NestedKey] | None) -> list[NestedKey]:
    """Copy a list of keys, after checking that it is one; none for None."""
    if keys is None:
        return []
    if isinstance(keys, str | tuple):
        # a tuple of strings is ambiguous: one nested key, or several keys
        msg = f"{name}: expected a list of keys, got {keys!r}. Write [{keys!r}]."
        raise TypeError(msg)
    try:
        copied = list(keys)
    except (TypeError, RuntimeError):
        # iterating a tensor without dimensions raises TypeError with another text
        msg = f"{name}: expected a list of keys, got {shown(keys)}."
        raise TypeError(msg) from None
    for key in copied:
        as_tuple(key)
    return copied


def as_device(name: str, value: Any) -> torch.device:
    """Convert a name to a device."""
    if isinstance(value, torch.device):
        return value
    msg = f"{name}: expected a torch.device or its name, as 'cpu' or 'cuda:0', got {shown(value)}."
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError(msg)
    try:
        return torch.device(value)
    except (RuntimeError, ValueError) as error:  # the latter of numbers beyond 64 bits
        raise ValueError(msg) from error


def local_device(name: str, value: Any) -> torch.device:
    """Convert a name to a device that this machine has."""
    device, reason = as_device(name, value), "torch sees none"
    if device.type == "cuda":  # counting them does not set CUDA up, which no fork would survive
        if (device.index or 0) < torch.cuda.device_count():
            return device
    else:
        try:
            torch.empty(0, device=device)
        except (AssertionError, RuntimeError, NotImplementedError, ImportError) as error:
            reason = str(error).partition("\n")[0].partition(". ")[0]
        else:
            return device
    msg = f"{name}: there is no device {str(device)!r} here ({reason}). Pass one of this machine, "
    raise RuntimeError(msg + "as 'cpu'.")


def refuse_unknown(given: Iterable[str], hints: Mapping[str, str] | None = None) -> None:
    """Raise for the first argument that a function does not take, with its hint if there is one."""
    for name in given:
        hint = (hints or {}).get(name, "There is none of that name.")
        msg = f"unexpected argument {name!r}. {hint}"
        raise TypeError(msg)


def stack_level(skipped: int = 0) -> int:
    """The ``stacklevel`` of a warning of the caller: the first line outside of its package.

    With `skipped` frames between, the package is that of the caller's caller, and so on.
    """
    level, frame = skipped + 1, sys._getframe(skipped + 1)
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    outer: FrameType | None = frame
    while outer is not None and outer.f_globals.get("__name__", "").startswith(f"{package}."):
        level, outer = level + 1, outer.f_back
    return level


def drop_useless(given: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    """Leave out arguments that have no effect, with a warning where a reason is given.

    The warning points at the first caller outside of the package that calls this.
    """
    level = stack_level(1)
    for name in given:
        if reasons.get(name):
            msg = f"{name} has no effect: {reasons[name]}. Leave it out."
            warnings.warn(msg, DeprecationWarning, stacklevel=level)
    return {name: value for name, value in given.items() if name not in reasons}


def check_state(owner: str, state: Any, names: Iterable[str]) -> None:
    """Raise for what the `state_dict()` of an owner, as `"a logger"`, did not return."""
    check_type("state", state, Mapping, f"what the state_dict() of {owner} returned")
    missing = [name for name in names if name not in state]
    if missing:
        held = sorted(map(str, state))
        msg = f"this is no state of {owner}: it lacks {missing}, and has {held}. "
        raise UnknownName(msg + "Pass what its state_dict() returned.")
