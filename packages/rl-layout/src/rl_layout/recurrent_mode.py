"""Whether recurrent networks read one step or whole sequences, set from outside."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Mode = bool | Literal["recurrent", "sequential"] | None


class _Mode(threading.local):
    """The mode of this thread: one value, so that compiled code is compiled once for each."""

    # set in each thread at once: compiled code guards that a first entry does not add it
    def __init__(self) -> None:
        self.current: bool | None = None


MODE = _Mode()


def recurrent_mode() -> bool | None:
    """Tell the mode of the innermost `set_recurrent_mode` of this thread.

    Returns:
        True for whole sequences, False for one step, None if no mode is set, or it was set
        to None: modules then use their own default.

    Example:
        >>> recurrent_mode() is None
        True
    """
    return MODE.current


def _as_bool(mode: object) -> bool | None:
    if isinstance(mode, str):
        if mode not in ("recurrent", "sequential"):
            msg = f"mode must be 'recurrent' or 'sequential': got {mode!r}."
            raise ValueError(msg)
        return mode == "recurrent"
    if mode is None or isinstance(mode, bool):
        return mode
    msg = f"mode must be a bool, a string or None: got {type(mode).__name__}."
    raise TypeError(msg)


class set_recurrent_mode:
    """Set the mode of every recurrent module called inside; context manager and decorator.

    Modes nest, one thread does not see another's, and the mode may be set inside or outside of
    code under ``torch.compile``. Tasks of one event loop share their thread's mode: do not await
    inside. One object may be entered again, by one thread at a time.

    Args:
        mode: True or ``"recurrent"`` for whole sequences, False or ``"sequential"`` for one
            step, None for each module's own default.

    Raises:
        ValueError: the mode is another string.
        TypeError: the mode is something else.

    Example:
        >>> with set_recurrent_mode("recurrent"):
        ...     recurrent_mode()
        True
        >>> set_recurrent_mode(False)(recurrent_mode)()
        False
    """

    def __init__(self, mode: Mode = True) -> None:
        self.mode = _as_bool(mode)
        self._before: list[bool | None] = []

    def __enter__(self) -> None:
        self._before.append(MODE.current)
        MODE.current = self.mode

    def __exit__(self, *_: object) -> None:
        MODE.current = self._before.pop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run a function in this mode.

        Args:
            function: anything that can be called.

        Returns:
            The function, wrapped.

        Raises:
            TypeError: it is a generator or coroutine function, whose body runs after the call.
        """
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            msg = f"{function.__name__} runs after its call returns: use `with` inside it instead."
            raise TypeError(msg)
        mode = self.mode  # a plain value, which compiled code can hold

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with set_recurrent_mode(mode):
                return function(*args, **kwargs)

        return wrapped
