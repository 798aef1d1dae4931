"""Storage in memory that is allocated by the first write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl_replay.lossless.rows import LosslessRows
from rl_replay.shared.storage import SharableStorage
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_replay.storages.tensor import Device
from rl_slabs import Rows, RowSchema, Slab
from rl_slabs.internals import positive
from rl_tensordict import NestedKey


class LazyTensorStorage(SharableStorage):
    """Rows in memory, or on a device, made for `max_size` rows like the first that are written.

    Args:
        max_size: How many rows, those of all dimensions together; rounded up to whole columns.
        device: Where they live; "auto" for where the first data are.
        ndim: Its dimensions: 2 for batches `[B, T]`, whose environments become columns.
        lossless: Keep each observation once; a row names the row that holds its next one. True
            takes every leaf that is there under `"next"` too; a list names them, as is needed
            where the next observations are not stored at all.
        lanes: Where it is shared, how many threads and processes may write at a time, 8 unless
            given; with 1 they take turns. The capacity divides over them. A writer fills one after
            the other, the oldest first, and writes no more than one of them holds in one call.

    Raises:
        ValueError: A size or a number of dimensions out of range.
        TypeError: `lossless` is neither a bool nor a list.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> storage = LazyTensorStorage(9)
        >>> _ = storage.extend(trajectories([3, 2]))
        >>> len(storage), len(storage.trajectories())
        (5, 2)
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Device = "cpu",
        ndim: int = 1,
        lossless: bool | Sequence[NestedKey] = False,
        lanes: int | None = None,
    ) -> None:
        self._begin(max_size, device=device, ndim=ndim)
        self.lanes = None if lanes is None else positive(lanes, "lanes")
        if isinstance(lossless, str) or not isinstance(lossless, bool | Sequence):
            raise TypeError(
                f"lossless is True, False or a list of keys, got {lossless!r}: use [{lossless!r}]."
            )
        self.lossless = lossless if isinstance(lossless, bool) else list(lossless)

    def _allocate(self, schema: RowSchema, capacity: int, back: NDArray[np.int32]) -> RowStore:
        self._look_at_device()
        if self.lossless is False:
            if self.on_host:
                return PlainRows(Slab.private(schema, capacity).rows)
            return PlainRows(Rows.zeros(schema, capacity, device=self.rows_device))
        named = None if self.lossless is True else self.lossless
        return LosslessRows.zeros(schema, capacity, keys=named, back=back, device=self.rows_device)
