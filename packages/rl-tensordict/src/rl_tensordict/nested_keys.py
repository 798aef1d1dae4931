"""Nested keys, and the leaves of a tensordict by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor

NestedKey: TypeAlias = str | tuple[str, ...]


def as_tuple(key: NestedKey) -> tuple[str, ...]:
    """Write a key as a tuple of strings.

    Args:
        key: a string, or a tuple of strings.

    Returns:
        The tuple, of one element for a string.

    Raises:
        TypeError: the key is neither.

    Example:
        >>> as_tuple("reward"), as_tuple(("next", "reward"))
        (('reward',), ('next', 'reward'))
    """
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key):
        return key
    msg = f"a key must be a string or a non-empty tuple of strings: got {key!r}"
    raise TypeError(msg)


def as_key(parts: Sequence[str]) -> NestedKey:
    """Write a key as short as it goes: a string where one part is enough.

    Args:
        parts: the parts of the key, outermost first.

    Returns:
        The string where there is one part, a tuple where there are more.

    Example:
        >>> as_key(("reward",)), as_key(("next", "reward"))
        ('reward', ('next', 'reward'))
    """
    return parts[0] if len(parts) == 1 else tuple(parts)


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


def leaves(tensordict: TensorDictBase) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Iterate over the leaves of a tensordict, nested ones included.

    Args:
        tensordict: any tensordict.

    Yields:
        Each leaf's key as a tuple, and the leaf: a tensor, or what stands for other data. Of
        lazily stacked tensors that differ in shape that is the stack with this entry alone.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"a": {"b": torch.zeros(2)}, "c": torch.ones(2)}, [2])
        >>> [key for key, _ in leaves(batch)]
        [('a', 'b'), ('c',)]
    """
    is_stack = isinstance(tensordict, LazyStackedTensorDict)
    for name, value in _read(tensordict) if is_stack else tensordict.items():
        if isinstance(value, _Ragged):
            yield (name,), value.stack
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            for key, leaf in leaves(value):
                yield (name, *key), leaf
        else:
            yield (name,), value


class _Ragged(NamedTuple):
    """Tensors of different shapes, as a stack of tensordicts with this entry alone."""

    stack: TensorDictBase


def _read(stack: TensorDictBase) -> Iterator[tuple[str, Any]]:
    for name in stack.keys():  # noqa: SIM118 - a stack iterates over its parts
        try:
            yield name, stack.get(name)
        except RuntimeError:  # tensors that differ in shape make no tensor
            yield name, _Ragged(stack.select(name))


def require(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Read a leaf that must be there.

    Args:
        tensordict: any tensordict.
        key: the leaf's key.

    Returns:
        The leaf.

    Raises:
        KeyError: it is missing; the message lists what is there.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> require(TensorDict({"a": torch.ones(2)}, [2]), "a")
        tensor([1., 1.])
    """
    try:
        value = tensordict.get(key, None)
    except ValueError:  # a leaf stands where the key says there is a group
        value = None
    if value is None:
        names = ", ".join(str(as_key(name)) for name, _ in leaves(tensordict))
        msg = f"{key!r} is missing: there are {names}."
        raise KeyError(msg)
    return value
