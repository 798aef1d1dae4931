"""Storage of arbitrary objects in a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_tensor_collection

from rl_layout import keys
from rl_replay.data.structure import without_sample_keys
from rl_replay.edges import edge
from rl_replay.storages.storage import Storage
from rl_slabs import Span
from rl_tensordict import UnfitValue, names_of

_ENDLESS = 1 << 40
# names of what `torch.load` would not read
_TENSORDICT, _NON_TENSOR = "tensordict.TensorDict", "tensordict.NonTensorData"


class ListStorage(Storage):
    """Holds any objects, each as it came. It is slow, and `dumps` does not write it to disk.

    A `state_dict` of tensors, tensordicts, numbers and strings is read by `torch.load` as it is;
    one of other objects only by `weights_only=False`, which runs code that a file names.

    Args:
        max_size: How many; as many as there is memory for unless given.

    Example:
        >>> storage = ListStorage(3)
        >>> _ = storage.extend([30, None, "a", "b"][:3]), storage.add("b")
        >>> storage.read(torch.tensor([0, 1]))
        ['b', None]
    """

    def __init__(self, max_size: int | None = None) -> None:
        super().__init__(_ENDLESS if max_size is None else max_size)
        self.items: list[Any] = []

    def extend(self, data: Any) -> Span:
        """Write several objects.

        Args:
            data: A list, tuple, set, range, array, tensor or tensordict of them.

        Raises:
            TypeError: Something else.
            ValueError: None at all, or more than the storage holds.
        """
        self.require_own()
        items = _items(data)
        if not items:
            raise UnfitValue("there is nothing to store: got no element. Leave it out.")
        if len(items) > self.max_size:
            raise UnfitValue(
                f"{len(items)} elements do not fit a storage of {self.max_size}: extend by fewer."
            )
        span = self.ring.reserve(len(items))
        for position, item in zip(_places(span), items, strict=True):
            # a slice, because it appends until the ring is full
            self.items[position : position + 1] = [item]
        self.ring.publish(len(items))
        return span

    def read(self, positions: torch.Tensor) -> list[Any]:
        """The objects at some positions.

        Args:
            positions: int64 `[N]`.
        """
        return [self.items[position] for position in positions.reshape(-1).tolist()]

    def replace(self, positions: torch.Tensor, data: Any) -> None:
        """Put other objects at some positions.

        Args:
            positions: int64 `[N]`.
            data: As many objects.

        Raises:
            ValueError: Not as many.
        """
        self.require_own()
        places, items = positions.reshape(-1).tolist(), _items(data)
        if len(places) != len(items):
            raise ValueError(f"expected {len(places)} elements, got {len(items)}.")
        for position, item in zip(places, items, strict=True):
            self.items[position] = item

    def as_batch(self, element: Any) -> list[Any]:
        """One object as a list."""
        return [element]

    def empty(self) -> None:
        """Drop every object."""
        super().empty()
        self.items.clear()

    def state_dict(self) -> dict[str, Any]:
        """The objects, and the bounds of the ring."""
        window = self.ring.window()
        return {
            "items": [_plain(item) for item in self.items],
            "floor": window.first[0],
            "published": window.first[0] + window.counts[0],
        }

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what another storage held.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It held more than this one can.
        """
        if len(state["items"]) > self.max_size:
            raise ValueError(
                f"{len(state['items'])} elements do not fit a storage of {self.max_size}."
            )
        items = [_restored(item) for item in state["items"]]
        self.ring.empty()
        self.items = items
        self.ring.restore(state["published"], state["floor"])


def _items(data: Any) -> list[Any]:
    if isinstance(data, torch.Tensor) or is_tensor_collection(data):
        return list(_unnamed(data).unbind(0))
    if isinstance(data, list | tuple | set | frozenset | range | np.ndarray):
        return [_unnamed(item) for item in data]
    raise TypeError(
        f"expected a list, tuple, set, range, array, tensor or tensordict of elements, got "
        f"{type(data).__name__}: use add() for one element."
    )


def _plain(item: Any) -> Any:
    """Tensordicts as dicts, as `torch.load` reads no class; anything else as it is."""
    if type(item) is NonTensorData:
        return {_NON_TENSOR: _plain(item.data), "batch_size": list(item.batch_size)}
    if type(item) is not TensorDict:
        return _each(item, _plain)
    form = {
        "entries": {name: _plain(value) for name, value in item.items()},
        "batch_size": list(item.batch_size),
        "names": names_of(item),
        "device": None if item.device is None else str(item.device),
    }
    return {_TENSORDICT: form}


def _restored(item: Any) -> Any:
    """What `_plain` was given."""
    if type(item) is dict and item.keys() == {_NON_TENSOR, "batch_size"}:
        return NonTensorData(_restored(item[_NON_TENSOR]), batch_size=item["batch_size"])
    if type(item) is not dict or item.keys() != {_TENSORDICT}:
        return _each(item, _restored)
    form = item[_TENSORDICT]
    entries = {name: _restored(value) for name, value in form["entries"].items()}
    return TensorDict(entries, form["batch_size"], names=form["names"], device=form["device"])


def _each(item: Any, form: Callable[[Any], Any]) -> Any:
    """A list, tuple or dict with each part in a form; others as they are."""
    if type(item) is dict:
        return {name: form(part) for name, part in item.items()}
    return type(item)(map(form, item)) if type(item) in (list, tuple) else item


def _unnamed(item: Any) -> Any:
    """Tensordicts without what a sample says of its rows; anything else as it is."""
    if not isinstance(item, TensorDictBase):
        return item
    stored = without_sample_keys(item)
    if stored is not item and (group := stored.get(keys.COLLECTOR, None)) is not None:
        stored = stored.exclude(keys.COLLECTOR) if group.is_empty() else stored
    return stored


def _places(span: Span) -> Iterable[int]:
    if isinstance(span.rows, slice):
        return range(span.rows.start, span.rows.stop)
    places: list[int] = span.rows.tolist()
    return places
