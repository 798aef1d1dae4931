"""The memory that the processes of a shared storage have in common, and its writers here."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.contents import Contents
from rl_replay.linking.links import Links
from rl_replay.linking.markers import MarkerColumns
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_replay.shared.files import EPOCH, MISSES, REACH, REPLACED, SharedFiles
from rl_replay.shared.ring import InPlaceUpdateLock, SharedRing
from rl_replay.storages.layout import Lossless, StorageLayout
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_replay.storages.table import RowTable
from rl_replay.trajectories.index import TrajectoryIndex
from rl_replay.trajectories.tables import TrajectoryTables
from rl_slabs import Arrays, Slab
from rl_slabs.internals import LANE_MASK, LANE_SHIFT, fence
from rl_tensordict import as_key, as_tuple
from rl_tensordict.types import NestedKey


class LaneWriter:
    """The open trajectories of a lane, in the process that writes it."""

    epoch = 0

    def __init__(self, lane: int, links: Links, index: TrajectoryIndex) -> None:
        self.lane = lane
        self.links = links
        self._index = index
        self.forget()

    def forget(self) -> None:
        """Drops all knowledge, so that the whole lane is read again."""
        self.links.forget()
        self._end = self._floor = -1

    def knows(self, published: int, floor: int) -> bool:
        """Whether no other process wrote to the lane or dropped rows of it."""
        base = self.lane << LANE_SHIFT
        known = base + published == self._end and base + floor == self._floor
        return known and self._index.reaches(self._end)

    def doubt(self) -> None:
        """Let the lane be learned anew, unless `took_in` is told what was published."""
        self._end = -1

    def catch_up(self, ring: SharedRing, store: RowStore, stride: int) -> None:
        """Reads the rows that other processes wrote since; the calling thread holds the lane."""
        # Costs what the new rows cost: nothing where no other process had the lane.
        low, end, floor = ring.bounds(self.lane)
        back = self.links.back
        self._index.catch_up_lane(self.lane, back, low, end)
        if not low <= self._end <= end:
            self.links.forget()
        first = self._end if low <= self._end <= end else low
        if floor != self._floor:
            self.links.drop_before(floor)
        if first < end:
            numbers = torch.arange(first, end, device="cpu")
            positions = ring.positions(numbers)
            keys, distances = self.links.keys, back[positions.numpy()]
            if keys.numbered:
                marks = MarkerColumns.of(store.read(positions, keys=list(keys.columns)), keys)
                self.links.observe_external(marks, distances, range(first, end))
            else:
                self.links.forget()
                observed = [key for pair in keys.observations for key in pair]
                if observed and stride <= len(numbers):
                    last = store.read(positions[-stride:], keys=[*keys.columns, *observed])
                    self.links.observe_tail(last, distances[-stride:])
        self._end, self._floor = end, floor

    def took_in(self, first: int, back: np.ndarray) -> None:
        """Indexes rows that this writer has published."""
        self._index.append(first, back)
        self._end = first + len(back)  # last: what was interrupted is learned anew


class SharedMemory:
    """The files of a shared storage, its ring and its index, and the writers of this process."""

    board: NDArray[np.int64]  # A few words for all processes
    back: NDArray[np.int32]  # The links of all rows
    index: TrajectoryIndex  # The trajectories, in tables that others write too
    _arrays: Arrays  # Board, links and trajectories in their file
    update_lock: InPlaceUpdateLock  # What holds writers back while rows are changed in place

    def __init__(self, files: SharedFiles, capacity: int) -> None:
        self.files = files
        self.ring = SharedRing(files.rows, capacity, files.lanes)
        self.slab: Slab | None = None
        self._threads = threading.local()
        self._writer: LaneWriter | None = None  # of all threads in turn, if there is one lane
        self._own: TrajectoryIndex | None = None
        _here.add(self)

    def require_no_rows(self, came: Iterable[NestedKey] | None, given: Iterable[NestedKey]) -> None:
        """Raises if rows with other keys were written since the buffer was emptied."""
        if came is not None and (rows := len(self.ring.window())):
            first, other = ([as_key(as_tuple(key)) for key in leaves] for leaves in (came, given))
            raise ValueError(
                f"{rows} rows with the leaves {first} were written since this buffer was emptied: "
                f"to store {other} instead, let their writers end and empty it again."
            )

    def continue_from(self, former: SharedMemory) -> None:
        """Continues row ids and epochs of other files; call it inside `update_lock.left()`."""
        self.ring.continue_from(former.ring)
        self.board[REPLACED] = former.replacements + 1
        self.epoch = former.epoch + 1

    def forget(self) -> None:
        """Drops the writers of the parent process after a fork."""
        self._threads, self._writer, self._own = threading.local(), None, None

    def make(self, layout: StorageLayout, capacity: int) -> RowStore:
        """Creates the rows and secures all of their memory, unless another process did."""
        spare = 0 if layout.lossless is None else capacity * layout.lossless.joins
        lanes, about = self.files.lanes, layout.to_json()
        slab = Slab.in_file(
            self.files.rows, layout.stored, capacity, lanes=lanes, spare=spare, about=about
        )
        self.ring.attach(slab)
        self.attach_if_created()
        return self.store(layout)

    def layout(self, lossless: Lossless) -> StorageLayout:
        """What the rows are, as their creator stored it with them."""
        slab = self.slab
        assert slab is not None  # it was opened
        return StorageLayout.from_json(slab.about, slab.schema, lossless)

    def store(self, layout: StorageLayout) -> RowStore:
        """A row store over existing rows."""
        slab = self.slab
        assert slab is not None  # it was opened
        if layout.lossless is None:
            return PlainRows(slab.rows)
        side = OverflowTable.for_slab(slab, layout.lossless.side, self.files.side)
        return LosslessRows(layout.lossless, slab.rows, side, back=self.back)

    def flush(self, store: RowStore) -> None:
        """Waits until all files are on the disk: rows, slots, links and trajectories."""
        if self.slab is not None:
            self.slab.flush()
            self._arrays.flush()
        if isinstance(store, LosslessRows):
            store.side.memory.flush()

    def attach_if_created(self) -> bool:
        """Whether the rows exist, and with them the tables; attaches both."""
        if self.slab is not None:
            return True
        slab = self.ring.slab
        if slab is None:
            return False
        lanes, capacity = slab.lanes, slab.capacity // slab.lanes
        arrays = self._arrays = self.files.arrays(capacity, lanes)
        tables = {name: arrays[name] for name in TrajectoryTables.shapes(capacity, lanes)}
        self.board, self.back = arrays["board"], arrays["back"]
        made = TrajectoryTables.over(tables, capacity, lanes)
        self.index = TrajectoryIndex(capacity, lanes=lanes, tables=made)
        self.update_lock = self.ring.update_lock = InPlaceUpdateLock(self.board, self.files.tables)
        self.slab = slab
        return True

    @property
    def epoch(self) -> int:
        """How often all rows were dropped, loaded or linked anew, by any process."""
        return int(self.board[EPOCH]) if self.slab is not None else 0

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.board[EPOCH] = value

    @property
    def replacements(self) -> int:
        """How often all rows were dropped or loaded, by any process."""
        return int(self.board[REPLACED]) if self.slab is not None else 0

    def note_replacement(self) -> None:
        """Tells every process that all rows were dropped or loaded."""
        self.board[REPLACED] += 1
        self.epoch += 1

    def require_current(self) -> None:
        """Raises if the other processes use other files by now."""
        if self.slab is not None:
            self.update_lock.require_current()

    def inform(self, store: LosslessRows) -> None:
        """Tells a store what other processes wrote: missing observations, and far ones."""
        store.expect(misses=bool(self.board[MISSES]), reach=int(self.board[REACH]))

    def begin(self, table: RowTable, count: int) -> LaneWriter:
        """Claims a lane, and reads the rows that others wrote there."""
        links = table.links
        lane = self.ring.claim(count)
        if self.ring.takes_turns:
            writer = self._writer
            # with one lane all threads share a writer; other links mean that the rows were replaced
            if writer is None or writer.links is not links:
                writer = self._writer = LaneWriter(0, links, self.index)
        else:
            found: LaneWriter | None = getattr(self._threads, "writer", None)
            if found is None or found.lane != lane.number:
                own = Links(self.ring.span_limit, links.keys, back=self.back)
                found = self._threads.writer = LaneWriter(lane.number, own, self.index)
            writer = found
        # all rows were dropped or loaded: what the writer knows is of former ones
        if writer.epoch != self.epoch:
            writer.forget()
            writer.epoch = self.epoch
        if not writer.knows(lane.published, lane.floor):
            writer.catch_up(self.ring, table.store, table.layout.stride)
        return writer

    def end(self) -> None:
        """Releases the lane, if there is only one."""
        if self.ring.takes_turns:
            self.ring.release_lane()

    def explain(self) -> list[str]:
        """How capacity is divided, and how many writers there are."""
        ring = self.ring
        each = f"{ring.lanes} lanes of {ring.span_limit} rows"
        if ring.takes_turns:
            return ["shared by processes that take turns to write it"]
        held = sum(state.standing in ("held", "elsewhere") for state in ring.states())
        return [
            f"shared: {each}, {held} of them held by writers; who has filled one writes the free "
            "one that was written longest ago"
        ]

    @contextmanager
    def own_index(self) -> Iterator[TrajectoryIndex]:
        """Builds a private index from the links, for use where the shared tables are torn."""
        made = TrajectoryIndex(self.ring.span_limit, lanes=self.ring.lanes)
        made.catch_up(self.back, self.ring.window())
        # all queries of this process use it until the block ends
        self._own = made
        try:
            yield made
        finally:
            self._own = None

    def trajectories(self) -> TrajectoryIndex:
        """The index to draw from: the shared one, or inside `own_index` the private one."""
        return self.index if self._own is None else self._own


_here: weakref.WeakSet[SharedMemory] = weakref.WeakSet()


def _forget_in_child() -> None:
    for memory in list(_here):
        memory.forget()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def loaded(memory: SharedMemory, store: RowStore, contents: Contents) -> Iterator[None]:
    """Drops all rows, and publishes the restored ones only after the block has written them all."""
    try:
        _drop(memory, store)
        memory.back[:] = 0
        yield
        _publish(memory, contents)
    except BaseException:  # an index that is half cleared would stay so until its lane is written
        _drop(memory, store)
        raise


def _drop(memory: SharedMemory, store: RowStore) -> None:
    """Drops all rows and releases the lane."""
    try:
        memory.ring.empty()
    finally:
        memory.end()
    store.clear()
    memory.index.clear()


def _publish(memory: SharedMemory, contents: Contents) -> None:
    ring, index = memory.ring, memory.index
    first = [number & LANE_MASK for number in contents.window.first]
    ends = [low + count for low, count in zip(first, contents.window.counts, strict=True)]
    floor = [number & LANE_MASK for number in contents.floor or first]
    # before any number is valid again: a reader that copied rows meanwhile may mean another row
    memory.note_replacement()
    fence()
    floor = [min(pair) for pair in zip(floor, ends, strict=True)]
    ring.restore_lanes(ends, floor, contents.order)
    index.clear()
    if contents.index is not None:
        index.restore(contents.index)
    index.catch_up(memory.back, ring.window())
    memory.note_replacement()
