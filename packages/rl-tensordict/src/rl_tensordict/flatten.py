"""The leaves of a tensordict by key, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from rl_tensordict.arguments import shown


def leaves(tensordict: TensorDictBase) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Iterate over the leaves of a tensordict, nested ones included.

    Args:
        tensordict: any tensordict.

    Yields:
        Each leaf's key as a tuple, and the leaf: a tensor, or what represents other data. Of
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


def check_items(name: str, batch: Any) -> None:
    """Raise unless a batch has items, as tensordicts and specs have."""
    if not hasattr(batch, "items"):
        msg = f"{name}: expected a tensordict, got {shown(batch)}."
        raise TypeError(msg)


def tensors(batch: TensorDictBase) -> dict[tuple[str, ...], Tensor]:
    """List the leaves of a batch that must hold tensors only.

    Args:
        batch: a tensordict.

    Returns:
        Each leaf by its key.

    Raises:
        TypeError: a leaf is not a plain tensor, or it is no tensordict.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> list(tensors(TensorDict({"a": {"b": torch.zeros(2)}}, [2])))
        [('a', 'b')]
    """
    check_items("batch", batch)
    found = {}
    for key, value in leaves(batch):
        if not isinstance(value, Tensor):
            msg = (
                f"{key}: expected a tensor, got {type(value).__name__}. Call batch.exclude({key})."
            )
            raise TypeError(msg)
        found[key] = value
    return found


def nest(flat: Mapping[tuple[str, ...], Tensor]) -> dict[str, Any]:
    """Turn leaves by their nested keys into nested dictionaries, as `build` takes them.

    Args:
        flat: leaves by key.

    Returns:
        The same leaves, nested.

    Raises:
        TypeError: a key is no tuple of strings, or is a part of another key.

    Example:
        >>> nest({("next", "reward"): 1, ("action",): 2})
        {'next': {'reward': 1}, 'action': 2}
    """
    tree: dict[str, Any] = {}
    try:
        for key, value in flat.items():
            group = tree
            for part in key[:-1]:
                group = group.setdefault(part, {})
            group[key[-1]] = value
    except (AttributeError, LookupError, TypeError):  # to check each key would take as long again
        msg = (
            "flat: expected tensors by key, each key a tuple of strings and none a part of "
            f"another, got {shown(flat)}"
        )
        raise TypeError(msg) from None
    return tree
