"""The quick way from a plain tensordict to its leaves: every one is looked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_slabs.dtypes import carrier, name_of
from rl_slabs.schema import RowSchema
from rl_tensordict import entries_of
from rl_tensordict.types import KeyPath, NestedKey


class ValidatedLeaves(dict[NestedKey, NDArray[Any]]):
    """Validated leaves by key, as numpy arrays: not checked again."""

    tensors: Sequence[torch.Tensor] = ()  # The same memory in the order of the fields, if known


class TensordictReader:
    """Reads the leaves of tensordicts that match a schema exactly, in one pass."""

    # Collecting the leaves and comparing them with the schema takes a fifth of a microsecond a leaf
    # in one pass, and ten times that in several.

    def __init__(self, schema: RowSchema) -> None:
        self._keys = [field.key for field in schema.fields]
        # written as integers of its size, which hide what a leaf is
        self._hidden = any(carrier(field.dtype) is not field.dtype for field in schema.fields)
        self._forms = [
            (field.path, field.key, np.dtype(name_of(field.dtype)), tuple(field.shape))
            for field in (() if self._hidden else schema.fields)
        ]
        self._shapes: tuple[int, list[tuple[int, ...]]] = (-1, [])  # of so many rows
        # name -> (index of the field, dtype, shape): plain tuples, which unpack fastest
        self._places: dict[str, Any] = {}
        for number, field in enumerate(schema.fields):
            group = self._places
            for name in field.path[:-1]:
                group = group.setdefault(name, {})
            group[field.path[-1]] = (number, field.dtype, field.shape)

    def tensors(self, data: Any, dims: int) -> list[torch.Tensor] | None:
        """The leaves of some rows, none of them with a gradient."""
        if type(data) is not TensorDict:
            return None
        lead = tuple(data.batch_size)
        found: list[Any] = [None] * len(self._keys)
        fits = len(lead) == dims and _collect(data, self._places, lead, found)
        return found if fits else None

    def of(self, data: Any, dims: int) -> ValidatedLeaves | None:
        """The leaves of some rows as numpy sees them."""
        leaves = None if self._hidden else self.tensors(data, dims)
        if leaves is None:
            return None
        try:
            arrays = [leaf.numpy() for leaf in leaves]
        except (TypeError, RuntimeError):
            return None
        found = ValidatedLeaves(zip(self._keys, arrays, strict=True))
        found.tensors = leaves
        return found

    def of_arrays(
        self, arrays: Mapping[KeyPath, NDArray[Any]], count: int
    ) -> ValidatedLeaves | None:
        """The leaves of `count` rows that are arrays by key path; None unless they match."""
        if self._hidden or len(arrays) != len(self._forms):
            return None
        if self._shapes[0] != count:
            self._shapes = count, [(count, *form[-1]) for form in self._forms]
        found = ValidatedLeaves()
        for (path, key, dtype, _), shape in zip(self._forms, self._shapes[1], strict=True):
            array = arrays.get(path)
            if array is None or array.dtype != dtype or array.shape != shape:
                return None
            found[key] = array
        return found


def _collect(
    data: TensorDict, places: dict[str, Any], lead: tuple[int, ...], found: list[Any]
) -> bool:
    entries = entries_of(data)
    if len(entries) != len(places):
        return False
    for name, leaf in entries.items():
        place: Any = places.get(name)
        if type(place) is tuple and type(leaf) is torch.Tensor:
            number, dtype, shape = place
            if leaf.dtype is not dtype or leaf.shape != lead + shape or leaf.requires_grad:
                return False
            found[number] = leaf
            continue
        group = type(place) is dict and type(leaf) is TensorDict
        if not group or not _collect(leaf, place, lead, found):
            return False
    return True
