"""Batches on their way from a worker: rows in shared memory, and a few numbers in a message."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from rl_collect.multi.relayed_warnings import WarningRecord
from rl_slabs import PackedRows, RowSchema, Slab
from rl_tensordict import Dimensions

NUM_SLOTS = 2
"""While one batch is read, the next one is written."""


class BatchMessage(NamedTuple):
    """What a worker says when it has played a batch."""

    frames: int  # steps that were played for it
    shape: tuple[int, ...]  # the batch size; () if there is none, since it went to a buffer
    dimensions: Dimensions | None  # which shared memory does not hold
    batch: TensorDictBase | PackedRows | None  # the batch, if it is not in shared memory
    stats: dict[str, Any]  # how far the worker's collector is; see Collector.stats
    warnings: list[WarningRecord]  # raised while it was played


class Outbox:
    """A worker's stand-in for a buffer of the caller, which holds one batch for it."""

    def __init__(self) -> None:
        self._batch: Any = None

    def extend(self, batch: Any) -> None:
        """Put a batch in."""
        self._batch = batch

    def take(self) -> Any:
        """Take it out."""
        batch, self._batch = self._batch, None
        return batch


class SharedBatchSlots:
    """Slots for a few batches of a worker, shared with the parent."""

    # It can be passed to another process; the sender must keep it until that has it.

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._rows = slab.capacity // NUM_SLOTS

    @classmethod
    def like(cls, batch: TensorDictBase) -> SharedBatchSlots:
        """Make room for batches like one."""
        if isinstance(batch, LazyStackedTensorDict):
            msg = "entries without one size cannot be in shared memory."
            raise TypeError(msg)
        schema = RowSchema.from_tensordict(batch)
        return cls(Slab.shared(schema, max(batch.numel(), 1) * NUM_SLOTS))

    def write(self, slot: int, batch: TensorDictBase) -> bool:
        """Write a batch where it fits."""
        count = batch.numel()
        if isinstance(batch, LazyStackedTensorDict) or count > self._rows:
            return False
        if RowSchema.from_tensordict(batch) != self._slab.schema:
            return False
        first = slot * self._rows
        self._slab.write(slice(first, first + count), batch.reshape(-1))
        return True

    def put(self, slot: int, batch: TensorDictBase) -> TensorDictBase | None:
        """Write a batch; returns it where it does not fit."""
        return None if self.write(slot, batch) else batch

    def read(self, slot: int, shape: tuple[int, ...]) -> TensorDictBase:
        """Copy a batch out."""
        first = slot * self._rows
        rows = slice(first, first + torch.Size(shape).numel())
        return self._slab.read(rows, contiguous=True).reshape(shape)

    def close(self) -> None:
        """Let go of the memory."""
        self._slab.close()


class PackedSlots:
    """A stand-in for shared slots, of a worker that is on another machine."""

    def put(self, slot: int, batch: TensorDictBase) -> TensorDictBase | PackedRows:
        """Pack a batch into one block; returns it as it is where entries have no one size."""
        del slot
        try:
            return PackedRows.of(batch)
        except TypeError:
            return batch
