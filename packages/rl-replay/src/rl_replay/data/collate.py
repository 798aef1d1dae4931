"""From a list of elements to one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_tensor_collection

from rl_replay.data.pytree import put_together, take_apart
from rl_tensordict import UnfitValue
from rl_tensordict.types import KeyPath

Collate = Callable[[Any], Any]


def stack(items: list[Any]) -> Any:
    """Stack tensors, tensordicts, numbers and trees of them; other objects stay in a list."""
    try:
        return stacked(items)
    except (TypeError, ValueError):
        return items


def stacked(items: list[Any], dim: int = 0) -> Any:
    """Stack tensors, tensordicts, numbers and trees of them."""
    if not items:
        raise UnfitValue("there is nothing to store: got an empty list. Leave it out.")
    if is_tensor_collection(items[0]):
        return _stacked_collections(items, dim)
    parts = [take_apart(item) for item in items]
    form, first = parts[0]
    for place, (other, found) in enumerate(parts):
        if other != form and not (form is not None and form.fits(other)):
            raise TypeError(
                f"elements of a list must be alike: the first is {form or 'a tensor'}, element "
                f"{place} is {other or 'a tensor'}. Use add() for one tree, a tuple for a tree of "
                "lists, or ListStorage for objects of any kind."
            )
        for path, leaf in found.items():
            if leaf.shape != first[path].shape:
                raise _another_shape(place, path, list(first[path].shape), list(leaf.shape))
    _require_dims(min(leaf.ndim for leaf in first.values()), dim)
    leaves = {path: torch.stack([found[path] for _, found in parts], dim) for path in first}
    return leaves[()] if form is None else put_together(form, leaves.__getitem__)


def _stacked_collections(items: list[Any], dim: int) -> Any:
    for place, item in enumerate(items):
        if not is_tensor_collection(item):
            raise TypeError(
                f"elements of a list must be alike: the first is a {type(items[0]).__name__}, "
                f"element {place} is a {type(item).__name__}. Use ListStorage for objects of any "
                "kind."
            )
    _require_dims(min(item.batch_dims for item in items), dim)
    try:
        return torch.stack(list(items), dim)
    except RuntimeError as error:  # keys or shapes differ, which tensordict finds
        raise ValueError(
            f"elements of a list must have the same keys and shapes: {error}"
        ) from error


def _require_dims(found: int, dim: int) -> None:
    if found < dim:
        raise ValueError(
            f"each element of a list is one step of all columns, with at least {dim} batch "
            f"dimension(s) here, got {found}: pass a batch instead, or use a storage with ndim=1."
        )


def _another_shape(place: int, path: KeyPath, first: list[int], found: list[int]) -> ValueError:
    where = f" at {path}" if path else ""
    return ValueError(
        f"elements of a list must have the same shapes: the first has {first}{where}, element "
        f"{place} has {found}. Pad them, or use ListStorage."
    )
