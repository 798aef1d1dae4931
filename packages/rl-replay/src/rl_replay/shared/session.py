"""The session of rows that several processes write and read at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.data.containers import portable, register_container
from rl_replay.data.structure import Structure
from rl_replay.linking.links import Links, Predecessors
from rl_replay.lossless.rows import LosslessRows
from rl_replay.samplers.slices import TrajectorySampler
from rl_replay.shared.concurrent_reads import ConcurrentReader
from rl_replay.shared.files import MISSES, REACH, FileSource, SharedFiles
from rl_replay.shared.memory import SharedMemory, loaded
from rl_replay.storages.layout import Lossless, StorageLayout
from rl_replay.storages.row_store import RowStore
from rl_replay.storages.session import (
    Chosen,
    Look,
    RowsAfter,
    RowSampler,
    Session,
    StoredSample,
    nothing_stored,
)
from rl_replay.storages.table import RowTable
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Span, Window
from rl_tensordict import NestedKey
from rl_tensordict.types import Ints

LANES = 8
"""Lanes of a storage that is shared, unless it says otherwise."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01

_PORTABLE = (
    *("asked", "ids", "ends", "comparisons", "end_checks", "lossless", "source"),
    "_lost",
)


class SharedSession(Session):
    """Claims a lane for each writer; what readers copy is proved afterwards."""

    is_shared = True
    _seen = 0  # the epoch of the last check for valid rows
    _lost = False  # whether the files were removed, because they could not be filled

    def __init__(
        self, capacity: int, source: FileSource, files: SharedFiles, lossless: Lossless
    ) -> None:
        super().__init__(capacity)
        self.lossless = lossless
        self.source = source
        self._adopt(self._memory_in(files))

    def _memory_in(self, files: SharedFiles) -> SharedMemory:
        return SharedMemory(files, -(-self.asked // files.lanes) * files.lanes)

    def _adopt(self, memory: SharedMemory) -> None:
        self.memory, self.ring = memory, memory.ring
        self.takes_turns = memory.ring.takes_turns

    def __getstate__(self) -> dict[str, Any]:
        known = [] if self.table is None else portable(self.table.layout.structure.class_names())
        kept = {name: getattr(self, name) for name in _PORTABLE}
        return kept | {"files": self.memory.files, "known": known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("files")
        for kind in state.pop("known"):
            register_container(kind)
        self.__dict__.update(state)
        self._adopt(self._memory_in(files))

    @property
    def lanes(self) -> int:
        """How many writers there may be at a time."""
        return self.memory.ring.lanes

    @property
    def epoch(self) -> int:
        """How often rows were dropped, loaded or linked anew, by whichever process."""
        return self.memory.epoch

    @property
    def replacements(self) -> int:
        """How often rows were dropped or loaded, by whichever process."""
        return self.memory.replacements

    @property
    def kept_structure(self) -> Structure | None:
        """The structure of the rows that other processes know."""
        return None if self.table is None else self.table.layout.structure

    def sync(self) -> RowTable | None:
        """Attaches the rows that another process created, if any."""
        memory = self.memory
        if not memory.attach_if_created():
            return None
        memory.require_current()
        if self.table is None:
            layout = memory.layout(self.lossless)
            self._attach(layout, memory.store(layout))
        epoch = memory.epoch
        if epoch != self._seen or self.is_open:
            self._seen, self.is_open = epoch, not len(self.ring.window())
        return self.table

    def _attach(self, layout: StorageLayout, store: RowStore) -> None:
        limit = self.ring.span_limit
        table = RowTable(layout, store, self.memory.back, span_limit=limit)
        self.ids, self.ends = layout.ids, layout.ends
        self._reader = ConcurrentReader(self.memory, table)
        self.table, self.is_open = table, False

    def make(self, layout: StorageLayout, device: torch.device, *, instead: bool = False) -> None:
        """Creates rows; of other leaves in other files, if no rows are left in the former ones."""
        if self._lost:
            self._adopt(self._memory_in(self.source.files(self.lanes)))
            self._lost = False
        try:
            self._make(layout, instead=instead)
        except OSError:
            # leave no empty file that no process waits for
            if self.table is None and self.takes_turns:
                self._lost = self.source.discard()
            raise
        self.source.describe()

    def _make(self, layout: StorageLayout, *, instead: bool) -> None:
        former, capacity = self.memory, self.capacity_for(layout.columns)
        if self.table is None:
            self._attach(layout, former.make(layout, capacity))
            return
        came = None if instead else self.table.layout.schema
        former.require_no_rows(came, layout.schema)
        suffix = f".{uuid4().hex}"
        try:
            memory = self._memory_in(self.source.files(self.lanes, suffix))
            store = memory.make(layout, capacity)  # all memory, before anybody is sent away
            with former.update_lock.left():
                former.require_no_rows(came, layout.schema)
                memory.continue_from(former)
                self.source.commit(suffix)
        except BaseException:
            self.source.discard(suffix)
            raise
        self._adopt(memory)
        self._attach(layout, store)

    def begin(self, count: int) -> Links:
        """Claims a lane, and reads the rows that others wrote there."""
        try:
            self._writer = self.memory.begin(self.rows, count)
        except BaseException:
            self.end()
            raise
        return self._writer.links

    def doubt(self) -> None:
        """Lets the lane be learned anew, unless this write ends."""
        self._writer.doubt()

    def before_publish(self) -> None:
        """Publishes whether rows lack a next observation, and how far one is away."""
        store, board = self.rows.store, self.memory.board
        if isinstance(store, LosslessRows):
            self.memory.inform(store)
            board[MISSES] |= store.misses
            board[REACH] = max(board[REACH], store.reach)

    def published(self, span: Span, found: Predecessors) -> None:
        """Indexes published rows."""
        self._writer.took_in(span.numbers.start, found.back)

    def recover(self, span: Span | None, *, touched: bool) -> None:
        """Restores the rows; the next write reads the lane's contents."""
        self._writer.forget()
        self.rows.recover(self.ring, span, touched=touched)
        self.is_open = not len(self.ring.window())

    def end(self) -> None:
        """Releases the lane, if there is only one."""
        self.memory.end()

    def relink(self) -> None:
        """Recomputes all links and the index."""
        memory = self.memory
        self.rows.relink(self.ring)
        memory.index.clear()
        memory.index.catch_up(memory.back, self.ring.window())
        memory.epoch += 1

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Names columns that cut trajectories, before rows of several lanes are linked."""
        self.sync()
        if (ids, ends) == (self.ids, self.ends):
            return
        if self.takes_turns or self.table is None:
            with self.exclusive():
                super().mark(ids, ends)
            return
        keys = self.table.links.keys
        if (found := keys.with_explicit(ids, ends)) != keys:
            raise ValueError(
                f"a shared buffer found trajectories by {list(keys.columns)} from its first rows "
                f"on, not by {list(found.columns)}: name them when it is made."
            )

    def empty(self) -> None:
        """Drops every row."""
        # Rows with other keys are stored elsewhere: processes that have the storage already are
        # refused from then on, and want to be given it again.
        self.sync()
        memory = self.memory
        if self.table is None:
            self._drop_all()
        elif self.takes_turns:
            with self.exclusive():
                self._drop_all()
                memory.index.clear()
                memory.note_replacement()
        else:
            memory.ring.empty()
            memory.note_replacement()

    def restore(
        self, layout: StorageLayout, contents: Contents, fill: FillRows, device: torch.device
    ) -> None:
        """Replaces the contents; no other thread or process may hold a lane."""
        self.sync()
        ring = self.memory.ring
        ring.release_lane()
        ring.require_free()
        if self.table is None or self.table.layout[:3] != layout[:3]:
            self.make(layout, device, instead=True)
        table = self.rows
        self.is_open = False
        with loaded(self.memory, table.store, contents):
            table.fill(contents, fill)
            self.before_publish()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Blocks writers while rows are updated in place."""
        self.sync()
        ring = self.memory.ring
        if self.table is None:
            yield
        elif ring.takes_turns:
            inside = ring.is_held()  # by who calls: a change in a dump, for one
            self.begin(0)
            try:
                yield
            finally:
                if not inside:
                    self.end()
        else:
            with self.memory.update_lock.closed():
                yield

    def read_ahead(self) -> AbstractContextManager[None]:
        """Rows are read from the first to the last inside, as a dump does."""
        slab = self.memory.slab
        return nullcontext() if slab is None else slab.read_ahead()

    def hold(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy of some rows, which writers may change while they are dumped."""
        return rows.clone()

    def wait(self, look: Look, wait_for_threads: Callable[[Look], bool]) -> bool:
        """Looks again and again: writers of other processes cannot notify this one."""
        return _poll(look)

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories as the writers have them, which may be torn."""
        self.sync()
        self.rows.layout.require_columns()
        return self.memory.trajectories()

    def index_state(self) -> dict[str, NDArray[np.generic]] | None:
        """The contents of the index; None while writers change it."""
        # a seqlock by the window: equal before and after means that the copy is consistent
        window, index = self.ring.window(), self.trajectories()
        if not index.covers(window):
            return None
        state = index.state()
        # a writer publishes before it changes the index
        return state if self.ring.window() == window and index.covers(window) else None

    def explain(self) -> list[str]:
        """How capacity is divided, and how many writers there are."""
        return self.memory.explain()

    def lane_order(self) -> list[int]:
        """The lanes, the one written longest ago first."""
        return self.memory.ring.order()

    def floor_since(self, window: Window) -> list[int]:
        """For each lane the oldest row of a former window that is still live."""
        now = self.ring.window()
        if isinstance(self.rows.store, LosslessRows) and now != window:
            raise RuntimeError(
                "rows were written while this lossless buffer was dumped, and name each other: let "
                "its writers pause meanwhile."
            )
        return [max(pair) for pair in zip(now.first, window.first, strict=True)]

    def choose(self, storage: Any, sampler: RowSampler, size: int) -> Chosen:
        """Lets a sampler choose rows; from the links if the shared index has nothing."""
        try:
            return sampler.sample(storage, size)
        except ValueError as error:
            self.sync()
            live = len(self.ring.window())
            if not live:
                error.add_note("Rows of a shared buffer count once they are published.")
            if not isinstance(sampler, TrajectorySampler) or not live:
                raise
        with self.memory.own_index():
            return sampler.sample(storage, size)

    def may_be_chosen(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which numbers may have been of rows; numbers of overwritten rows are replaced."""
        return numbers >= 0

    @property
    def reader(self) -> ConcurrentReader:
        """Copies rows and proves the copies."""
        if self.sync() is None:
            raise nothing_stored()
        return self._reader

    def draw(
        self,
        storage: Any,
        sampler: RowSampler,
        size: int,
        chosen: Chosen,
        *,
        contiguous: bool,
    ) -> StoredSample:
        """Copies chosen rows; chooses others in place of rows that were overwritten meanwhile."""
        found = self.reader.draw(storage, sampler, size, chosen)
        rows = storage.put_together(found.rows.contiguous() if contiguous else found.rows)
        return StoredSample(rows, *found[1:])

    def read_live(
        self, storage: Any, positions: torch.Tensor | int, *, some: bool
    ) -> tuple[torch.Tensor | int, Any]:
        """Copies rows, each as one write left it."""
        if len(self.ring.window()):
            found, cells = self.reader.read_live(positions, some=some)
            return found, storage.put_together(cells)
        return super().read_live(storage, positions, some=some)

    def read_standing(
        self, numbers: torch.Tensor, keys: list[NestedKey] | None = None
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies leaves of rows that other processes may be overwriting."""
        return self.reader.read_standing(numbers, keys)

    def after(self, numbers: Ints, k: int) -> RowsAfter:
        """The rows k steps later that the index names and the links lead to."""
        return self.reader.after(numbers, k)


def _poll(look: Look) -> bool:
    pause = _FIRST_PAUSE_S
    while (left := look()) is not None:
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True
