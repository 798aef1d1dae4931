"""Whether recurrent networks read one step or whole sequences, set from outside."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Mode = bool | Literal["recurrent", "sequential"] | None


class _Modes(threading.local):
    """The modes that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        # replaced and never changed in place, so that compiled code sees it change
        self.entered: tuple[bool | None, ...] = ()


_modes = _Modes()


def recurrent_mode() -> bool | None:
    """Tell the mode of the innermost `set_recurrent_mode` of this thread.

    Returns:
        True for whole sequences, False for one step, None where no mode is set, or it was set
        to None: modules then use their own default.

    Example:
        >>> recurrent_mode() is None
        True
    """
    return _modes.entered[-1] if _modes.entered else None


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
    code under ``torch.compile``.

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

    def __enter__(self) -> None:
        _modes.entered = (*_modes.entered, self.mode)

    def __exit__(self, *_: object) -> None:
        _modes.entered = _modes.entered[:-1]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run a function in this mode.

        Args:
            function: anything that can be called.

        Returns:
            The function, wrapped.
        """

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapped
