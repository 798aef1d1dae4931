"""The one place that touches tensordict's private constructors, with the public fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_tensordict.nested_keys import leaves

_unsafe: Callable[..., TensorDict] | None = getattr(TensorDict, "_new_unsafe", None)
_HAS_STORE = isinstance(getattr(TensorDict({}, []), "_tensordict", None), dict)


def build(
    source: Mapping[str, Any],
    batch_size: torch.Size,
    names: list[str | None] | None = None,
    device: torch.device | None = None,
) -> TensorDict:
    """Make a tensordict of leaves that are known to fit, without checking each.

    Args:
        source: leaves ``[*batch_size, ...]`` or tensordicts by name, nested mappings allowed.
        batch_size: the common leading shape.
        names: names of the batch dimensions.
        device: where every leaf lies; None where that is not said.

    Returns:
        The tensordict.

    Example:
        >>> build({"next": {"reward": torch.zeros(3, 1)}}, torch.Size([3]))["next"].batch_size
        torch.Size([3])
    """
    if _unsafe is None:
        return TensorDict(dict(source), batch_size=batch_size, names=names, device=device)
    return _unsafe(source, batch_size=batch_size, names=names, device=device)


def find(batch: TensorDictBase, key: tuple[str, ...]) -> Any:
    """Read an entry, or None where it is missing, as ``batch.get(key, None)`` does.

    A plain tensordict is looked into without what `get` does besides, which takes longer than
    many a network on a small batch. Compiled code that was made where an entry was missing is made
    again where it is there; of `get` it takes no note.

    Args:
        batch: a tensordict of any kind.
        key: the entry's key.

    Returns:
        The entry, or None.

    Example:
        >>> find(TensorDict({"a": {"b": torch.ones(2)}}, [2]), ("a", "b"))
        tensor([1., 1.])
    """
    here: Any = batch
    for part in key:
        if type(here) is not TensorDict or not _HAS_STORE:
            return _get(batch, key)
        here = here._tensordict.get(part)
        if here is None:
            return None
    return here if isinstance(here, Tensor) else _get(batch, key)


def _get(batch: TensorDictBase, key: tuple[str, ...]) -> Any:
    if torch.compiler.is_compiling() and key not in batch.keys(True):  # of which it takes note
        return None
    return batch.get(key, None)


def put(batch: TensorDictBase, key: tuple[str, ...], value: Tensor) -> None:
    """Write an entry, as ``batch.set(key, value)`` does, without looking at more than must be.

    Args:
        batch: a tensordict of any kind.
        key: the entry's key.
        value: begins with the shape of the batch.

    Raises:
        RuntimeError: the tensordict is locked, or the shape does not fit.

    Example:
        >>> batch = TensorDict({}, [2])
        >>> put(batch, ("a",), torch.ones(2))
        >>> batch["a"]
        tensor([1., 1.])
    """
    here: Any = batch
    for part in key[:-1]:
        here = here._tensordict.get(part) if _is_open(here) else None
    fits = _is_open(here) and value.shape[: here.batch_dims] == here.batch_size
    if fits and here.device in (None, value.device):
        here._tensordict[key[-1]] = value
    else:
        batch.set(key, value)


def _is_open(group: Any) -> bool:
    """Whether entries of a group may be written where a plain tensordict keeps them."""
    return type(group) is TensorDict and _HAS_STORE and not group.is_locked


def tensors(batch: TensorDictBase) -> dict[tuple[str, ...], Tensor]:
    """List the leaves of a batch that must hold tensors only.

    Args:
        batch: a tensordict.

    Returns:
        Each leaf by its key.

    Raises:
        TypeError: a leaf is not a plain tensor.

    Example:
        >>> list(tensors(TensorDict({"a": {"b": torch.zeros(2)}}, [2])))
        [('a', 'b')]
    """
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

    Example:
        >>> nest({("next", "reward"): 1, ("action",): 2})
        {'next': {'reward': 1}, 'action': 2}
    """
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        group = tree
        for part in key[:-1]:
            group = group.setdefault(part, {})
        group[key[-1]] = value
    return tree
