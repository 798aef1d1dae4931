"""The quick way to write one row: numpy columns, no tensordict operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_layout.keys import NestedKey
from rl_layout.tensordict_fast import nest
from rl_slabs import Rows
from rl_slabs.dtypes import carrier
from rl_slabs.tensordict_fast import entries_of

Leaves = dict[NestedKey, NDArray[Any]]


class _Place(NamedTuple):
    """Where a leaf goes, and what it must be."""

    key: NestedKey
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class OneRow:
    """Reads the leaves of a tensordict `[]` that fit the rows of a storage, and writes them.

    Args:
        rows: On the CPU.

    Example:
        >>> from rl_slabs import RowSchema
        >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
        >>> writer = OneRow(rows)
        >>> writer.write(2, writer.leaves(TensorDict({"reward": torch.ones(1)})))
        >>> rows.read(2)["reward"]
        tensor([1.])
    """

    def __init__(self, rows: Rows) -> None:
        self._columns = rows.columns()
        self._count = len(rows.schema)
        places: Any = {
            field.path: _Place(field.key, self._columns[field.key].dtype, field.shape)
            for field in rows.schema.fields
            # others are written as integers of their size, which hide what they are
            if carrier(field.dtype) is field.dtype
        }
        self._places = nest(places)

    def leaves(self, data: TensorDict) -> Leaves | None:
        """The leaves by key, as numpy sees them.

        Args:
            data: One row.

        Returns:
            None where they are not exactly those of the rows, or not plainly so.
        """
        found: Leaves = {}
        try:
            fits = _collect(data, self._places, found)
        except (TypeError, RuntimeError):  # a leaf that numpy cannot see as it is
            return None
        return found if fits and len(found) == self._count else None

    def write(self, position: int, leaves: Leaves) -> None:
        """Write a row.

        Args:
            position: Where.
            leaves: What `leaves` returned.
        """
        columns = self._columns
        for key, array in leaves.items():
            columns[key][position] = array


def _collect(data: TensorDict, places: dict[str, Any], found: Leaves) -> bool:
    for name, leaf in entries_of(data).items():
        place: Any = places.get(name)
        if type(place) is _Place and type(leaf) is torch.Tensor:
            array = leaf.numpy()
            if array.dtype != place.dtype or array.shape != place.shape:
                return False
            found[place.key] = array
            continue
        group = type(place) is dict and type(leaf) is TensorDict
        if not group or not _collect(leaf, place, found):
            return False
    return True
