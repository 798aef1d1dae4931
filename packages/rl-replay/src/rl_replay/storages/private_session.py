"""Rows that only the threads of one process write, under their buffer's lock: session and ring."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.linking.links import Links, Predecessors
from rl_replay.storages.layout import StorageLayout
from rl_replay.storages.row_store import Allocate
from rl_replay.storages.session import (
    Chosen,
    RowSampler,
    Session,
    StoredSample,
    nothing_stored,
)
from rl_replay.storages.table import RowTable
from rl_replay.trajectories.bulk_append import fill_index, pending
from rl_replay.trajectories.index import PENDING_ROWS, TrajectoryIndex
from rl_slabs import Span, Window
from rl_tensordict import CPU


class PrivateRing:
    """A ring for the threads of one process, under their buffer's lock."""

    def __init__(self, capacity: int, *, after: int = -1) -> None:
        self.capacity = capacity
        self.published = self.floor = self._reserved = self._before = self._skipped = 0
        self._window: Window | None = None  # made again only where something changed
        self._attempt: range | None = None
        self._begin_after(after)

    def begin_attempt(self) -> None:
        """Forgets the last span; see `attempt_stands`."""
        self._attempt = None

    def attempt_stands(self) -> bool:
        """Whether a span was reserved since `begin_attempt` and published."""
        return self._attempt is not None and self._attempt.stop <= self.published

    @property
    def span_limit(self) -> int:
        """The most rows of one write."""
        return self.capacity

    @property
    def written(self) -> int:
        """Rows ever published."""
        return self.published - self._skipped

    @property
    def first(self) -> int:
        """The oldest readable row id."""
        return max(self._reserved - self.capacity, self.floor)

    def __len__(self) -> int:
        return max(self.published - self.first, 0)

    def reserve(self, count: int) -> Span:
        """Reserves the next rows, which cannot be read from then on."""
        first, self._before = self.published, self._reserved
        # never back: rows that an interrupted write half overwrote would look whole again
        self._reserved, self._window = max(self._reserved, first + count), None
        start = first % self.capacity
        numbers = self._attempt = range(first, first + count)
        if start + count <= self.capacity:
            return Span(slice(start, start + count), numbers)
        return Span(torch.arange(start, start + count, device=CPU) % self.capacity, numbers)

    def publish(self, count: int) -> None:
        """Makes the rows of the span readable."""
        # one line, so that no interrupt leaves one without the other
        self.published, self._window = self.published + count, None

    def cancel(self) -> None:
        """Returns the span untouched: none of its rows was written."""
        self._reserved, self._window = self._before, None

    def window(self) -> Window:
        """The row ids that can be read now."""
        window = self._window
        if window is None:
            first = self.first
            window = self._window = Window((first,), (max(self.published - first, 0),))
        return window

    def floors(self) -> tuple[int, ...]:
        """The first row id since the last `empty` or `restore`."""
        return (self.floor,)

    def positions(self, numbers: torch.Tensor) -> torch.Tensor:
        """The positions of row ids, also of overwritten ones."""
        if self.published <= self.capacity:
            return numbers
        if numbers.is_cpu:
            return torch.from_numpy(np.asarray(numbers.numpy() % self.capacity))
        return numbers % self.capacity

    def numbers_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The row id at each position, -1 if none can be read."""

        def newest(found: NDArray[np.int64]) -> NDArray[np.int64]:
            capacity, first = self.capacity, self.first
            # as unsigned numbers, negative ones are large
            signed = found.dtype == np.int64
            inside = not found.size or (signed and int(found.view(np.uint64).max()) < capacity)
            if inside and not first:  # the ring never went round
                return np.where(found < self.published, found, -1)
            here = found if inside else found % capacity  # a division takes as long as all the rest
            begin, lap = self.published - self.published % capacity, self.published % capacity
            numbers = here + np.where(here < lap, begin, begin - capacity)
            return np.where(numbers >= first, numbers, -1)

        return _through_numpy(positions, newest)

    def is_live(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row ids are live."""
        first, end = self.first, self.published
        return _through_numpy(numbers, lambda found: (found >= first) & (found < end))

    def empty(self) -> None:
        """Drops every published row; the next one is at position 0, with a new id."""
        self._begin_after(self.published - 1)

    def restore(self, published: int, floor: int) -> None:
        """Restores the bounds of a ring."""
        self._reserved, self._before = published, published
        self.floor, self.published, self._skipped, self._window = floor, published, 0, None

    def renumber(self) -> None:
        """Gives every row another id at the same position: one that it had is never live again."""
        more = self.capacity
        self._reserved, self._before = self._reserved + more, self._before + more
        self.floor, self.published, self._skipped, self._window = (
            self.floor + more,
            self.published + more,
            self._skipped + more,
            None,
        )

    def _begin_after(self, number: int) -> None:
        begin = -(-(number + 1) // self.capacity) * self.capacity
        skipped = self._skipped + begin - self.published
        self.floor, self._reserved, self._before, self.published, self._skipped, self._window = (
            *(begin,) * 4,
            skipped,
            None,
        )


class PrivateSession(Session):
    """Writes without a claim, reads without a proof: the buffer's lock excludes all others."""

    is_shared = False
    takes_turns = True
    epoch = replacements = 0
    ring: PrivateRing

    def __init__(self, capacity: int, allocate: Allocate) -> None:
        super().__init__(capacity)
        self.ring = PrivateRing(capacity)
        self._allocate = allocate
        self._process = os.getpid()
        self._index: TrajectoryIndex | None = None
        self._indexed = False  # whether rows are taken into the index as they come
        self._unindexed = 0  # rows since some were taken into the index
        self._doubted = False  # whether links may name rows that were never published

    def sync(self) -> RowTable | None:
        """The rows; no other process creates any."""
        return self.table

    def require_own(self) -> None:
        """Raises if the rows belong to the process that this one was forked from."""
        if self._process != os.getpid():
            raise RuntimeError(
                f"this storage belongs to process {self._process} and is not shared, so what "
                f"process {os.getpid()} writes would be lost: make the buffer with "
                "shared=True."
            )

    def require_portable(self, what: str) -> None:
        """Raises: other processes cannot see the rows."""
        raise TypeError(
            f"{what} is not shared and stays in its process: make the buffer with shared=True to "
            "hand it to another one, or use dumps() to keep its rows."
        )

    def take(self, table: RowTable) -> None:
        """Replaces the rows, and all that depends on them."""
        self.table = None  # until all that belongs to it is made
        capacity = len(table.store)
        if self.ring.capacity != capacity:
            # row ids continue, so that ids of former rows are refused
            after = self.ring.window().first[0] - 1 if self.ring.written else -1
            self.ring = PrivateRing(capacity, after=after)
        self._index = None
        self.table, self.is_open = table, False

    def make(self, layout: StorageLayout, device: torch.device, *, instead: bool = False) -> None:
        """Allocates rows, unless those there have the same leaves."""
        former, capacity = self.table, self.capacity_for(layout.columns)
        same = former is not None and former.layout.schema == layout.schema
        if former is None or not same or len(former.store) != capacity:
            back = np.zeros(capacity, np.int32)
            store = self._allocate(layout, capacity, back, device)
            self.take(RowTable(layout, store, back, span_limit=capacity))
        elif former.layout[:3] != layout[:3]:
            back = former.links.back
            self.take(RowTable(layout, former.store, back, span_limit=capacity))
        self.is_open = False

    def begin(self, count: int) -> Links:
        """The links, learned anew if a write was interrupted in them."""
        if self._doubted:
            self._relearn()
        if self.table is None:
            raise nothing_stored()
        return self.table.links

    def doubt(self) -> None:
        """Marks links for relearning, unless this write ends or is recovered from."""
        self._doubted = True

    def published(self, span: Span, found: Predecessors) -> None:
        """Indexes published rows, in batches."""
        self._doubted = False
        if self._indexed:
            self._unindexed += len(span.numbers)
            if self._unindexed >= PENDING_ROWS:
                self._unindexed = 0
                self._take_into_index()

    def recover(self, span: Span | None, *, touched: bool) -> None:
        """Restores a consistent state; what the links had taken over is learned anew."""
        if self.rows.recover(self.ring, span, touched=touched):
            self._relearn()
        self._doubted = False
        self.is_open = not len(self.ring.window())

    def _relearn(self) -> None:
        """Rebuilds the open trajectories from the stored rows."""
        self._doubted = True
        self.rows.links.forget()
        self.relink()
        self._doubted = False

    def relink(self) -> None:
        """Recomputes all links; the index is made anew when it is asked for."""
        if self._index is not None:
            self._index.clear()
        self.relinked += 1
        self.rows.relink(self.ring)

    def empty(self) -> None:
        """Drops every row; the index is made anew."""
        self._drop_all()

    def _forget(self) -> None:
        self._index = None
        super()._forget()

    def restore(
        self, layout: StorageLayout, contents: Contents, fill: FillRows, device: torch.device
    ) -> None:
        """Replaces the contents; where that fails there is none."""
        self.empty()
        try:
            self.make(layout, device)
            self._fill(contents, fill)
        except BaseException:
            self.empty()
            raise

    def _fill(self, contents: Contents, fill: FillRows) -> None:
        table, (first,), (count,) = self.rows, contents.window.first, contents.window.counts
        table.links.back[:] = 0
        table.fill(contents, fill)
        self.ring.restore(first + count, first)
        self.relink()
        if contents.index is not None:
            index = TrajectoryIndex(self.ring.capacity)
            index.restore(contents.index)
            self._index = index
        self._take_into_index()

    def fill_with_given(self, *, is_time: bool) -> None:
        """Counts every row of the memory as written."""
        table = self.rows
        if len(self.ring.window()):
            return
        self.ring.restore(len(table.store), 0)
        table.link_given(self, is_time=is_time)
        self.relink()

    def renumber(self) -> None:
        """Gives every row another id; the index is made anew."""
        self._index = None
        self.ring.renumber()

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now."""
        table = self.table
        if table is None:
            raise nothing_stored()
        if table.lacks_columns:
            table.layout.require_columns()
        index = self._taken_index()
        index.catch_up(table.links.back, self.ring.window())
        self._index = index
        return index

    def _taken_index(self) -> TrajectoryIndex:
        """The index, to be put back once it is changed: an interrupted change makes it anew."""
        index, self._index = self._index, None
        return TrajectoryIndex(self.ring.capacity) if index is None else index

    def _take_into_index(self) -> None:
        """Indexes all rows, if slices are sampled."""
        if self._indexed and self.table is not None:
            index = self._taken_index()
            fill_index(index, self.table.links.back, self.ring.window())
            self._index = index

    def index_state(self) -> dict[str, NDArray[np.generic]] | None:
        """The contents of the index; None before the first slices."""
        return None if self._index is None else self.trajectories().state()

    def keep_index(self, wanted: bool) -> None:
        """Says whether rows are to be indexed as they are written."""
        self._indexed = wanted
        self._take_into_index()

    @property
    def pending_rows(self) -> int:
        """Rows that are not in the index yet; the next slices take them in."""
        return 0 if self.table is None else pending(self._index, self.ring.window())

    def choose(self, storage: Any, sampler: RowSampler, size: int) -> Chosen:
        """Lets a sampler choose rows."""
        return sampler.sample(storage, size)

    def draw(
        self,
        storage: Any,
        sampler: RowSampler,
        size: int,
        chosen: Chosen,
        *,
        contiguous: bool,
    ) -> StoredSample:
        """Copies chosen rows."""
        numbers, info = chosen
        positions = self.ring.positions(numbers)
        rows = storage.gather(positions, contiguous=contiguous)
        return StoredSample(rows, numbers, positions, info)


def _through_numpy(numbers: torch.Tensor, compute: Any) -> torch.Tensor:
    # numpy takes a third of torch's time on a few hundred numbers
    if numbers.is_cpu:
        return torch.from_numpy(np.asarray(compute(numbers.numpy())))
    return torch.from_numpy(np.asarray(compute(numbers.cpu().numpy()))).to(numbers.device)
