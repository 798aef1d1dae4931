"""Callables that can be sent to another process, lambdas and closures included."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped] # it ships no types


class Portable:
    """A callable that any start method can hand to a new process, a lambda or closure too.

    What pickle carries by its name goes that way, so that classes stay the same classes on both
    sides; the rest goes with cloudpickle, by value. Nothing is pickled before the process starts:
    a forked one just has it.

    Args:
        function: Any callable.
        makes: What it makes, as the message for something that cannot be called has it.

    Raises:
        TypeError: `function` cannot be called.

    Example:
        >>> twice = pickle.loads(pickle.dumps(Portable(lambda x: 2 * x)))
        >>> twice(3)
        6
    """

    def __init__(self, function: Callable[..., Any], *, makes: str = "an object") -> None:
        if not callable(function):
            raise TypeError(
                f"expected a function that makes {makes}, got {type(function).__name__}: pass the "
                "function itself, or a lambda that returns the object."
            )
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickled = pickle.dumps(self.function)
        except Exception:  # pickle has no error of its own for what it cannot take
            pickled = cloudpickle.dumps(self.function)
        return _unpack, (pickled,)


def _unpack(pickled: bytes) -> Portable:
    return Portable(pickle.loads(pickled))
