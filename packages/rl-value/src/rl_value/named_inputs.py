"""Modules that are called with a tensordict, or with what it would hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from tensordict import TensorDictBase
from tensordict.nn import dispatch

Forward = TypeVar("Forward", bound=Callable[..., Any])


def takes_names(forward: Forward) -> Forward:
    """Let a module also be called with its inputs by name, as tensordict's ``dispatch`` does.

    Called with a tensordict the module asks nothing first; ``dispatch`` lists all input keys each
    time.

    Args:
        forward: method of a tensordict module with ``in_keys`` and ``out_keys``.

    Returns:
        The method, wrapped.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModuleBase
        >>> class Double(TensorDictModuleBase):
        ...     in_keys, out_keys = ["x"], ["y"]
        ...     @takes_names
        ...     def forward(self, tensordict):
        ...         return tensordict.set("y", tensordict["x"] * 2)
        >>> Double()(x=torch.ones(2))
        tensor([2., 2.])
    """
    by_name = dispatch(forward)

    @wraps(forward)
    def call(self: Any, *args: Any, **settings: Any) -> Any:
        if args and isinstance(args[0], TensorDictBase):
            return forward(self, *args, **settings)
        return by_name(self, *args, **settings)

    return call  # type: ignore[return-value]
