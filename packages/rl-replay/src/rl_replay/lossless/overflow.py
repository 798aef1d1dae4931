"""Slots for the next observations that no row holds: the overflow table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_slabs import LazyFile, Rows, RowSchema, Slab
from rl_slabs.internals import LANE_SHIFT, Memory
from rl_tensordict.types import Ints, NestedKey

FREE = -1
"""The owner of an unused slot."""

_TOP, _SPARE, _SECURED, _LINKED = range(4)
_WORDS = 8
_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 16
_GROWTH = 16


class OverflowTable:
    """Slots for rows of one schema, allocated and released by index."""

    # A slot that was given back is the next to be taken, so that memory is touched only up to the
    # most slots that were ever in use at once. Each slot knows its owner, the number of a row,
    # which a reader looks at again after it has copied the slot: one that was given back, or is
    # somebody else's by now, was not stable.

    def __init__(
        self,
        schema: RowSchema,
        slots: int,
        *,
        lanes: int = 1,
        device: torch.device | str | None = None,
        memory: Memory | None = None,
        slab: Slab | None = None,
    ) -> None:
        self.schema = schema
        self.lanes = lanes
        self._slots = slots
        self._slab = slab
        self.device = torch.device(device or "cpu")
        self.on_host = self.device.type == "cpu"  # whether numpy works on the slots in place
        total = slots * lanes
        host_schema = schema if self.on_host and slab is None else None
        self.memory = memory or self.memory_for(host_schema, slots, lanes=lanes)
        array = self.memory.array
        owners, stack, links, rows = _starts(total, lanes)
        self._words = array[: lanes * _WORDS * 8].view(np.int64).reshape(lanes, _WORDS)
        self.owners: NDArray[np.int64] = array[owners : owners + total * 8].view(np.int64)
        self._stack = array[stack : stack + total * 4].view(np.int32)
        self.links: NDArray[np.int32] = array[links : links + total * 4].view(np.int32)
        self.space: NDArray[np.int64] | None = None
        if slab is not None:
            self.rows, self.space = slab.spare_rows, slab.space
        elif self.on_host:
            self.rows = Rows.over(schema, total, array[rows:])
        else:
            self.rows = Rows.zeros(schema, 1, device=device)
        self._columns = self.rows.columns() if self.on_host else {}

    @staticmethod
    def memory_for(
        schema: RowSchema | None, slots: int, *, lanes: int = 1, file: LazyFile | None = None
    ) -> Memory:
        """Reserves the memory of a table, for every process in a file that they have open."""
        size = _size(schema, slots * lanes, lanes)
        memory = Memory.promised_in(file, size) if file else Memory.private(0, promised=size)
        memory.secure(0, _starts(slots * lanes, lanes)[0], "the words of an overflow table")
        return memory

    @classmethod
    def for_slab(cls, slab: Slab, schema: RowSchema, file: LazyFile) -> Self:
        """The table for the rows of a shared slab, with one slot for each row."""
        each, lanes = slab.capacity // slab.lanes, slab.lanes
        inside = slab if slab.spare else None
        memory = cls.memory_for(None if inside else schema, each, lanes=lanes, file=file)
        held = slab.schema if inside else schema
        return cls(held, each, lanes=lanes, memory=memory, slab=inside)

    def secure_links(self) -> None:
        """Secures the memory of `links` for all processes."""
        if not self._words[0, _LINKED]:
            total = self._slots * self.lanes
            start = _starts(total, self.lanes)[2]
            take = self.memory.touch if self.memory.kind == "private" else self.memory.secure
            take(start, start + total * 4, f"what each of {total} rows names")
            self._words[0, _LINKED] = 1

    @property
    def nbytes(self) -> int:
        """Bytes secured so far, for slots and their bookkeeping."""
        secured = int(self._words[:, _SECURED].sum())
        held = secured if self.on_host else len(self.rows)
        return held * self.schema.nbytes + secured * 12

    def used_up_to(self, lane: int) -> int:
        """Slots of a lane that were ever touched."""
        return int(self._words[lane, _TOP])

    def in_use(self) -> int:
        """Slots that have an owner."""
        return int((self._words[:, _TOP] - self._words[:, _SPARE]).sum())

    def secure(self, lane: int, count: int) -> bool:
        """Secures memory for `count` more slots; False if the lane has too few."""
        words = self._words[lane]
        # released slots serve first, the rest extends the used part
        top = int(words[_TOP]) + max(0, count - int(words[_SPARE]))
        if top > self._slots:
            return False
        if top > words[_SECURED]:
            self._secure(lane, top)
        return True

    def make_room(self, lane: int, count: int, named: Callable[[int], Ints]) -> None:
        """`secure`, where need be with slots that a killed writer took and that no row names."""
        if not self.secure(lane, count):
            self.rebuild(lane, named(lane))
            self.secure(lane, count)

    def take(self, lane: int, count: int) -> Ints:
        """Allocates slots `[count]`, the last released ones first."""
        if not self.secure(lane, count):
            raise ValueError(
                f"an overflow table of {self._slots} slots a lane cannot give {count} more: "
                f"{self.in_use()} are in use. Give some back first."
            )
        words, base = self._words[lane], lane * self._slots
        spare, top = int(words[_SPARE]), int(words[_TOP])
        again = min(spare, count)
        # counted before they are used: a writer that ends here loses slots and corrupts none
        words[_SPARE] = spare - again
        words[_TOP] = top + count - again
        old = self._stack[base + spare - again : base + spare]
        return np.concatenate([old, np.arange(base + top, base + top + count - again)])

    def take_one(self, lane: int) -> int:
        """`take` for one slot, whose memory was secured."""
        words, base = self._words[lane], lane * self._slots
        spare = int(words[_SPARE])
        if spare:
            words[_SPARE] = spare - 1
            return int(self._stack[base + spare - 1])
        top = int(words[_TOP])
        words[_TOP] = top + 1
        return base + top

    def release_one(self, lane: int, slot: int) -> None:
        """`release` for one slot."""
        words, base = self._words[lane], lane * self._slots
        spare = int(words[_SPARE])
        self.owners[slot] = FREE
        self._stack[base + spare] = slot
        words[_SPARE] = spare + 1

    def release(self, lane: int, slots: Ints) -> None:
        """Releases slots, which no row addresses any more."""
        words, base = self._words[lane], lane * self._slots
        spare = int(words[_SPARE])
        # before the count: a reader that copied such a slot sees that it lost its owner
        self.owners[slots] = FREE
        self._stack[base + spare : base + spare + len(slots)] = slots
        words[_SPARE] = spare + len(slots)

    def exchange(self, lane: int, slots: Ints, count: int) -> Ints:
        """Releases slots, which no row addresses any more, and takes `count`, first of these."""
        if len(slots) > count:
            self.release(lane, slots[count:])
        again = slots[:count]
        # as of a released slot: a reader that copied it sees that it lost its owner
        self.owners[again] = FREE
        if len(again) == count:
            return again
        return np.concatenate([again, self.take(lane, count - len(again))])

    def release_each(self, lanes: Ints, slots: Ints) -> None:
        """Releases slots, each to the free list of its lane."""
        if self.lanes == 1:
            self.release(0, slots)
            return
        for lane in np.unique(lanes).tolist():
            self.release(lane, slots[lanes == lane])

    def put(self, slots: Ints, numbers: NDArray[np.int64], leaves: Mapping[NestedKey, Any]) -> None:
        """Fills slots and records their owners."""
        self.write(slots, leaves)
        # last, so that no reader takes a half written slot for whole
        self.owners[slots] = numbers

    def write(self, slots: Ints, leaves: Mapping[NestedKey, Any]) -> None:
        """Copies leaves `[n, *shape]` into slots: on the host arrays of bits, else tensors."""
        if self.on_host:
            for key, leaf in leaves.items():
                self._columns[key][slots] = leaf
            return
        source = TensorDict(dict(leaves), batch_size=[len(slots)])
        self.rows.write(torch.from_numpy(slots).to(self.device), source, keys=list(leaves))

    def rebuild(self, lane: int, slots: Ints) -> None:
        """Frees every slot of a lane except `slots`."""
        base, words = lane * self._slots, self._words[lane]
        top = int(slots.max()) - base + 1 if len(slots) else 0
        used = np.zeros(top, dtype=np.bool_)
        used[slots - base] = True
        # descending, so that the lowest slots are taken first and memory stays compact
        free = np.flatnonzero(~used)[::-1] + base
        words[_SPARE] = 0  # interrupted, this loses slots and gives none out twice
        self.owners[free] = FREE
        self._stack[base : base + len(free)] = free
        words[_TOP], words[_SPARE] = top, len(free)

    def prepare(self, count: int) -> None:
        """Allocates the first `count` slots of an empty table, for `regroup`."""
        for lane in range(self.lanes):
            self.take(lane, min(self._slots, max(0, count - lane * self._slots)))

    def regroup(self, owners: NDArray[np.int64]) -> Ints:
        """Moves the first slots, filled in order of arrival, to the lanes of their owners."""
        # A lane's slots are given back to the lane, so that others must not have any of them.
        count, lanes = len(owners), owners >> LANE_SHIFT
        order, counts = np.argsort(lanes, kind="stable"), np.bincount(lanes, minlength=self.lanes)
        # [count], index of each slot within its lane
        inside = np.arange(count) - np.repeat(counts.cumsum() - counts, counts)
        places = np.empty(count, dtype=np.int64)
        places[order] = lanes[order] * self._slots + inside
        for lane, held in enumerate(counts.tolist()):
            self.rebuild(lane, np.empty(0, dtype=np.int64))
            self.take(lane, held)
        if (places != np.arange(count)).any():
            self.rows.write(torch.from_numpy(places), self.rows.read(slice(0, count)))
        self.owners[:count] = FREE
        self.owners[places] = owners
        return places

    def _secure(self, lane: int, top: int) -> None:
        words = self._words[lane]
        secured = int(words[_SECURED])
        # in small steps, so that hardly more is taken than is in use
        chunk = max(1, _CHUNK_BYTES // self.schema.nbytes, secured // _GROWTH)
        stop = min(self._slots, max(top, secured + chunk))
        first, last = lane * self._slots + secured, lane * self._slots + stop
        wanted = f"an overflow table of {stop} observations of {self.schema.nbytes} bytes"
        if self.on_host:
            for start, size in self._regions():
                self.memory.secure(start + first * size, start + last * size, wanted)
            if self._slab is not None:
                self._slab.secure(first, last, wanted)
        elif last > len(self.rows):
            self._grow(max(last, len(self.rows) * 5 // 4))
        words[_SECURED] = stop

    def _regions(self) -> Sequence[tuple[int, int]]:
        """The offset of each array, and its bytes for one slot."""
        total = self._slots * self.lanes
        owners, stack, _, start = _starts(total, self.lanes)
        found = [(owners, 8), (stack, 4)]
        if self._slab is not None:
            return found
        if self.schema.packed:
            found.append((start, self.schema.row_bytes))
            start += total * self.schema.row_bytes
        for field in self.schema.large:
            start = _aligned(start)
            found.append((start, field.nbytes))
            start += total * field.nbytes
        return found

    def _grow(self, count: int) -> None:
        grown = Rows.zeros(self.schema, count, device=self.device)
        grown.write(slice(0, len(self.rows)), self.rows.view())
        self.rows = grown

    def __reduce__(self) -> tuple[Any, ...]:
        return _over, (self.schema, self._slots, self.lanes, self.memory, self._slab)


def _size(schema: RowSchema | None, slots: int, lanes: int) -> int:
    """Bytes of a table; without a schema only its bookkeeping."""
    rows = 0 if schema is None else Rows.bytes_for(schema, slots)
    return _starts(slots, lanes)[3] + rows


def _over(
    schema: RowSchema, slots: int, lanes: int, memory: Memory, slab: Slab | None
) -> OverflowTable:
    return OverflowTable(schema, slots, lanes=lanes, memory=memory, slab=slab)


def _starts(slots: int, lanes: int) -> tuple[int, int, int, int]:
    """Offsets of owners, stack, links and rows; the words of the lanes come first."""
    owners = _aligned(lanes * _WORDS * 8)
    stack = _aligned(owners + slots * 8)
    links = _aligned(stack + slots * 4)
    return owners, stack, links, _aligned(links + slots * 4)


def _aligned(end: int) -> int:
    return -(-end // _ALIGNMENT) * _ALIGNMENT
