"""Nested keys: strings and tuples of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_tensordict.types import NestedKey


def is_key(index: Any) -> bool:
    """Tell a key from an index: a string, or a tuple of strings, nested or not.

    Args:
        index: anything.

    Returns:
        True for a key.

    Example:
        >>> is_key(("next", "reward")), is_key((0, 1)), is_key(())
        (True, False, False)
    """
    if isinstance(index, tuple):
        return bool(index) and all(is_key(part) for part in index)
    return isinstance(index, str)


def as_tuple(key: Any) -> tuple[str, ...]:
    """Write a key as a flat tuple of strings.

    Args:
        key: a string, or a tuple of strings, nested or not.

    Returns:
        The parts, outermost first.

    Raises:
        TypeError: it is no key.

    Example:
        >>> as_tuple("reward"), as_tuple(("next", ("agents", "reward")))
        (('reward',), ('next', 'agents', 'reward'))
    """
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key):
        return key
    if is_key(key):
        return tuple(name for part in key for name in as_tuple(part))
    msg = f"a key must be a string or a non-empty tuple of strings: got {key!r}"
    raise TypeError(msg)


def as_key(parts: Sequence[str]) -> NestedKey:
    """Write a key as short as it goes: a string where one part is enough.

    Args:
        parts: the parts of the key, outermost first.

    Returns:
        The string if there is one part, a tuple if there are more.

    Raises:
        TypeError: it is no sequence.

    Example:
        >>> as_key(("reward",)), as_key(("next", "reward"))
        ('reward', ('next', 'reward'))
    """
    try:
        return parts[0] if len(parts) == 1 else tuple(parts)
    except (TypeError, LookupError):
        msg = f"parts: expected the parts of a key, as ('next', 'reward'), got {parts!r}"
        raise TypeError(msg) from None


def sibling(key: NestedKey, name: str) -> NestedKey:
    """Name another leaf of the group that holds a key.

    Args:
        key: any key.
        name: the last part of the other key.

    Returns:
        The key with its last part replaced.

    Example:
        >>> sibling(("next", "agents", "done"), "truncated")
        ('next', 'agents', 'truncated')
    """
    return as_key((*as_tuple(key)[:-1], name))
