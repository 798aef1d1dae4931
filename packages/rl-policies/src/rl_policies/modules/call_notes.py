"""Notes on errors from torch, tensordict and networks: the module and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import add_notes, note_call


def _note_method(
    error: Exception, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    name = "" if method.__name__ == "__init__" else f".{method.__name__}"
    call = f"{type(args[0]).__name__}{name}"
    unnamed = [f"argument {position}" for position in range(1, len(args))]
    advice = f"See help({call}) for what each may be."
    note_call(error, call, [*args[1:], *kwargs.values()], [*unnamed, *kwargs], advice)


note_errors = add_notes(_note_method)
"""Decorate a method so that errors carry its arguments; for constructors and rare calls."""


def require_module(name: str, value: Any, its_keys: str = "[...], out_keys=[...]") -> None:
    """Raise unless a value is a tensordict module; the keys show how to make one."""
    if not isinstance(value, TensorDictModuleBase):
        msg = (
            f"{name} must be a tensordict module: got {type(value).__name__}. "
            f"Wrap it: TensorDictModule(module, in_keys={its_keys})."
        )
        raise TypeError(msg)


def require_tensor(value: Any, what: str) -> None:
    """Raise unless a value is a tensor."""
    if not isinstance(value, Tensor):
        msg = f"expected {what} as a tensor: got {type(value).__name__}"
        raise TypeError(msg)
