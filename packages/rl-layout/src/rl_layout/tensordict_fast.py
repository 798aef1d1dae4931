"""The one place that touches tensordict's private constructors, with the public fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout.keys import leaves

_unsafe: Callable[..., TensorDict] | None = getattr(TensorDict, "_new_unsafe", None)


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
