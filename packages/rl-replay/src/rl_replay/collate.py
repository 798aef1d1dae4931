"""From a list of elements to one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_tensor_collection

from rl_replay.trees import put_together, take_apart

Collate = Callable[[Any], Any]


def stack(items: list[Any]) -> Any:
    """Stack tensors, tensordicts, numbers and trees of them; a list of others stays as it is.

    Args:
        items: Elements of a list storage.

    Returns:
        One batch with a new first dimension, or the list.

    Example:
        >>> stack([{"a": 1}, {"a": 2}]), stack(["a", None])
        ({'a': tensor([1, 2])}, ['a', None])
    """
    if not items or not _stackable(items[0]):
        return items
    if is_tensor_collection(items[0]) or isinstance(items[0], torch.Tensor):
        return torch.stack(list(items))
    try:
        parts = [take_apart(item) for item in items]
    except TypeError:
        return items
    form, first = parts[0]
    if any(other != form for other, _ in parts):
        return items
    leaves = {path: torch.stack([found[path] for _, found in parts]) for path in first}
    return leaves[()] if form is None else put_together(form, leaves.__getitem__)


def _stackable(item: Any) -> bool:
    return item is not None and not isinstance(item, str | bytes)
