"""Notes on errors from torch, tensordict and networks: the module and its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from tensordict import TensorDictBase
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


# advice for an error raised inside of a network or a distribution
COMPARE = "Compare their shapes and dtypes with the inputs of the network."


def note(
    error: Exception,
    what: str,
    arguments: Iterable[Any],
    keys: Iterable[Any] = (),
    advice: str = COMPARE,
) -> None:
    """Add to an error, once, the public method that raised it, and its arguments."""
    # sequences of tensordict add notes of their own, which name no argument
    if any(" was given " in text for text in getattr(error, "__notes__", ())):
        return
    names = [f"{key!r} " for key in keys]
    values = list(arguments)
    names += [""] * (len(values) - len(names))
    listed = ", ".join(name + described(v) for name, v in zip(names, values, strict=False))
    if names and not values:
        read = ", ".join(name.strip() for name in names)
        listed = f"nothing; it reads {read}"
        advice = "Pass a tensordict that holds them, or one tensor for each."
    error.add_note(f"{what} was given {listed or 'nothing'}. {advice}")


def described(value: Any) -> str:
    """Describe an argument in a few words: dtype and shape, keys, or type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, TensorDictBase):
        return f"a tensordict {list(value.batch_size)} of {list(value.keys(True, True))}"
    return repr(value) if isinstance(value, str | int | float | None) else f"a {_kind(value)}"


def _kind(value: Any) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_tensor(value: Any, what: str) -> None:
    """Raise unless a value is a tensor."""
    if not isinstance(value, Tensor):
        msg = f"expected {what} as a tensor: got {type(value).__name__}"
        raise TypeError(msg)


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method so that errors carry its arguments; for constructors and rare calls."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            name = "" if function.__name__ == "__init__" else f".{function.__name__}"
            method = f"{type(args[0]).__name__}{name}"
            values = [*args[1:], *kwargs.values()]
            unnamed = [f"argument {position}" for position in range(1, len(args))]
            advice = f"See help({method}) for what each may be."
            note(error, method, values, [*unnamed, *kwargs], advice)
            raise

    return call
