"""Registered named tuples and tensorclasses of rows: a name in a file creates nothing.

A file or a state names the class of its rows. It is looked up among the classes that this process
registered or stored rows of, never imported and never searched for in modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from tensordict import is_tensorclass

ContainerType = TypeVar("ContainerType", bound=type)

_known: dict[str, type] = {}


def register_container(kind: ContainerType) -> ContainerType:
    """Makes a named tuple or tensorclass known, so that stored rows may name it.

    A process that has stored rows of a class knows it. One that only reads them, as after a
    restart, registers the class first. Can be used as a decorator.

    Args:
        kind: The class.

    Returns:
        The class.

    Raises:
        TypeError: Neither a named tuple nor a tensorclass.

    Example:
        >>> from typing import NamedTuple
        >>> @register_container
        ... class Pair(NamedTuple):
        ...     left: object
        ...     right: object
    """
    if not is_container(kind):
        raise TypeError(
            f"expected a named tuple or a tensorclass, got {kind!r}: rows are tuples, lists and "
            "dicts otherwise, which need not be registered."
        )
    _known[_name(kind)] = kind
    return kind


def is_container(kind: object) -> bool:
    """Whether a class is a named tuple or a tensorclass."""
    if not isinstance(kind, type):
        return False
    is_named_tuple = issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)
    return is_named_tuple or bool(is_tensorclass(kind))


def container_name(kind: type) -> str:
    """The name of a class in stored rows; registers the class."""
    name = _name(kind)
    if _known.get(name) is not kind and is_container(kind):
        _known[name] = kind
    return name


def container(name: str) -> Any:
    """A known class."""
    kind = _known.get(name)
    if kind is None:
        module, _, names = str(name).partition(":")
        raise ValueError(
            f"these rows are of the class {names!r} of module {module!r}, which this process does "
            "not know: pass the class to rl_replay.register_container first, if it is yours. A "
            "name in a file or state is never imported."
        )
    return kind


def portable(names: Iterable[str]) -> list[type]:
    """The classes among these names that are known and can be sent to another process."""
    return [_known[name] for name in names if name in _known and "<locals>" not in name]


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
