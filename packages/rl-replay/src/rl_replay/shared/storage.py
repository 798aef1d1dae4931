"""Storages whose rows other processes may write and read as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.data.containers import portable, register_container
from rl_replay.data.structure import Batch, Structure
from rl_replay.linking.links import Links, Predecessors
from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.rows import ALL_VALID, LosslessRows
from rl_replay.shared.concurrent_reads import choose, gather, read_rows, rows_after
from rl_replay.shared.files import MISSES, REACH, SharedFiles
from rl_replay.shared.restore import loaded
from rl_replay.shared.schema import SharedRows
from rl_replay.shared.session import Sharing
from rl_replay.storages.marked import RowsAfter
from rl_replay.storages.row_store import RowStore
from rl_replay.storages.storage import RowSampler, StoredSample
from rl_replay.storages.tensor import TensorStorage
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import RowSchema, Span, Window
from rl_slabs.internals import leaves_of
from rl_tensordict import NestedKey, as_tuple

LANES = 8
"""Lanes of a storage that is shared, unless it says otherwise."""

_OWN = (
    "ring",
    "structure",
    "store",
    "links",
    "_index",
    "_plain",
    "_one_row",
    "_sharing",
    "_writer",
    "_seen",
)


class SharableStorage(TensorStorage):
    """A storage that makes its own memory, for this process or for all that have a handle.

    Derive from it and write `_allocate` for the one and `_new_files` for the other.

    Attributes:
        lanes: Number of concurrent writers if shared; None for the default.
        lossless: Which observations are kept once.
    """

    lanes: int | None = None
    _sharing: Sharing | None = None
    _seen = 0  # the epoch of the last check for valid rows

    @property
    def is_shared(self) -> bool:
        """Whether other processes that are given the storage see the same rows."""
        return self._sharing is not None

    @property
    def epoch(self) -> int:
        """How often rows were dropped or loaded, by whichever process."""
        return 0 if self._sharing is None else self._sharing.epoch

    @property
    def takes_turns(self) -> bool:
        """Whether writers exclude each other, as with one lane."""
        return self._sharing is None or self._sharing.ring.takes_turns

    def share(self) -> None:
        """Let processes that are given the storage see the same rows, several writing at a time.

        Raises:
            RuntimeError: Rows were written already, where no other process sees them.
            ValueError: Rows on another device than the CPU.
        """
        self.sync()
        lanes = self.lanes or LANES
        if self._sharing is not None and self._sharing.ring.lanes == lanes:
            return
        if self.store is not None:
            raise RuntimeError(
                "rows were written before the storage was shared: share it first, or dump them and "
                "load them."
            )
        if self.device not in ("auto", None) and torch.device(self.device).type != "cpu":
            raise ValueError(f"memory of the CPU can be shared, not that of {self.device}.")
        self.device = "cpu"
        self._share(lanes)

    def _share(self, lanes: int) -> None:
        self._adopt(self._over(self._new_files(lanes)))

    def _over(self, files: SharedFiles) -> Sharing:
        return Sharing(files, -(-self._asked // files.rows.lanes) * files.rows.lanes)

    def _adopt(self, sharing: Sharing) -> None:
        self._sharing, self.ring = sharing, sharing.ring

    def _new_files(self, lanes: int, suffix: str = "") -> SharedFiles:
        """New files; with a suffix, alongside the files in use."""
        del suffix
        return SharedFiles.in_memory(lanes)

    def _commit_files(self, suffix: str) -> None:
        """Renames files with a suffix to the names of the files that they replace."""

    def _discard_files(self, suffix: str) -> None:
        """Removes unused files with a suffix."""

    def capacity_for(self, columns: torch.Size) -> int:
        """Rows that the storage holds where they have such columns: as many in every lane."""
        lanes = 1 if self._sharing is None else self._sharing.ring.lanes
        inner = columns.numel() * lanes
        return -(-self._asked // inner) * inner

    def sync(self) -> None:
        """Attaches the rows that another process created, if any.

        Raises:
            RuntimeError: Another process emptied the storage and stores other keys elsewhere.
        """
        sharing = self._sharing
        if sharing is None or not sharing.attach_if_created():
            return
        sharing.require_current()
        if self.store is None:
            rows = SharedRows.of(sharing, self._layout if self.lossless else None)
            self._attach(sharing, rows, rows.over(sharing))
        epoch = sharing.epoch
        if epoch != self._seen or self._open:
            self._seen, self._open = epoch, not len(self.ring.window())

    def update(self, numbers: torch.Tensor, cells: TensorDictBase) -> None:
        """Write some leaves of rows where they lie; see `MarkedStorage.update`.

        Raises:
            ValueError: Leaves that others depend on, in a storage with several lanes.
        """
        if not self.takes_turns:
            self._require_free(cells)
        super().update(numbers, cells)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Rows that stand when it begins are not overwritten before it ends.

        Raises:
            TimeoutError: A process that was stopped in here, or that holds the only lane.
        """
        self.sync()
        sharing = self._sharing
        if sharing is None or self.store is None:
            yield
        elif sharing.ring.takes_turns:
            inside = sharing.ring.is_held()  # by who calls: a change in a dump, for one
            self._begin_write(0)
            try:
                yield
            finally:
                if not inside:
                    self._end_write()
        else:
            with sharing.update_lock.closed():
                yield

    def read_ahead(self) -> AbstractContextManager[None]:
        """Rows are read from the first to the last inside, as a dump does."""
        slab = None if self._sharing is None else self._sharing.slab
        return nullcontext() if slab is None else slab.read_ahead()

    def exclusive_writer(self) -> AbstractContextManager[None]:
        """Where processes take turns to write, have the turn; nothing elsewhere."""
        return self.exclusive() if self.takes_turns else nullcontext()

    def choose(self, sampler: RowSampler, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Lets a sampler choose rows; in a shared storage from the links if its index is torn."""
        if self._sharing is None:
            return super().choose(sampler, size)
        return choose(self, sampler, size)

    def may_be_chosen(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row numbers `draw` can copy, or replace by others."""
        return super().may_be_chosen(numbers) if self._sharing is None else numbers >= 0

    def draw(
        self,
        sampler: RowSampler,
        size: int,
        chosen: tuple[torch.Tensor, dict[str, Any]],
        *,
        contiguous: bool = False,
    ) -> StoredSample:
        """Copies chosen rows; chooses others in place of those that were overwritten meanwhile."""
        if self._sharing is None:
            return super().draw(sampler, size, chosen, contiguous=contiguous)
        found = gather(self, sampler, size, chosen)
        rows = self.put_together(found.rows.contiguous() if contiguous else found.rows)
        return found._replace(rows=rows)

    def read_live(
        self, positions: torch.Tensor | int, *, some: bool = False
    ) -> tuple[torch.Tensor | int, Any]:
        """Copies rows, each as one write left it; see `Storage.read_live`."""
        if self._sharing is None or not len(self):
            return super().read_live(positions, some=some)
        return read_rows(self, positions, some=some)

    def after(self, numbers: NDArray[np.int64], k: int) -> RowsAfter:
        """The rows k steps later; in a shared storage those that the links lead to as well."""
        return super().after(numbers, k) if self._sharing is None else rows_after(self, numbers, k)

    def read_standing(
        self,
        numbers: torch.Tensor,
        keys: list[NestedKey] | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies rows that other processes may be overwriting; see `MarkedStorage.read_standing`.

        Args:
            numbers: Row numbers, int64, any shape.
            keys: The leaves or groups wanted; all of them unless given.
            positions: Where the rows lie, if that is known already, of that shape.
        """
        if self._sharing is None:
            return super().read_standing(numbers, keys)
        places, epoch = self.ring.positions(numbers) if positions is None else positions, self.epoch
        cells, valid = self._gathered(numbers, places, keys)
        return cells, self._good(numbers, valid, epoch)

    def read_linked(
        self, numbers: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, NDArray[np.int32]]:
        """Copies rows that other processes may be overwriting, and their links."""
        # the epoch is read before the rows: a change of it meanwhile voids the copy
        positions, epoch = self.ring.positions(numbers), self.epoch
        cells, valid = self._gathered(numbers, positions, None)
        back = self.back[positions.numpy()]
        return cells, self._good(numbers, valid, epoch), back

    def _good(self, numbers: torch.Tensor, valid: torch.Tensor, epoch: int) -> torch.Tensor:
        """Which rows are complete: checked after the copy, as rows live now were live then."""
        good = self.ring.is_live(numbers)
        if self.epoch != epoch:  # others were loaded, which may have the same numbers
            return torch.zeros_like(good)
        return good if valid is ALL_VALID else valid & good

    def _gathered(
        self, numbers: torch.Tensor, positions: torch.Tensor, keys: list[NestedKey] | None
    ) -> tuple[TensorDict, torch.Tensor]:
        store, _ = self._made()
        if not isinstance(store, LosslessRows):
            quick = keys is None and positions.ndim == 1
            cells = store.gather(positions) if quick else store.read(positions, keys=keys)
            return cells, ALL_VALID
        sharing, unchanged = self._sharing, None
        if sharing is not None:
            if sharing.board[MISSES]:
                self._know_others(store)
            unchanged = partial(sharing.ring.unchanged_since, sharing.ring.version_snapshot())
        return store.read_concurrent(positions, numbers, keys=keys, unchanged=unchanged)

    @contextmanager
    def own_index(self) -> Iterator[None]:
        """Uses trajectories rebuilt from the links, where the shared index is inconsistent."""
        self.sync()
        if self._sharing is None:
            yield
        else:
            with self._sharing.own_index():
                yield

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories; of a shared storage as its writers have them, which may be torn."""
        self.sync()
        if self._sharing is None:
            return super().trajectories()
        self._require_columns()
        return self._sharing.trajectories()

    def index_state(self) -> dict[str, NDArray[np.generic]] | None:
        """The contents of the trajectory index; None while writers change it."""
        if self._sharing is None:
            return super().index_state()
        # a seqlock by the window: equal before and after means that the copy is consistent
        window, index = self.ring.window(), self.trajectories()
        if not index.covers(window):
            return None
        state = index.state()
        # a writer publishes before it changes the index
        return state if self.ring.window() == window and index.covers(window) else None

    def lane_order(self) -> list[int]:
        """The lanes, the one written longest ago first."""
        return [0] if self._sharing is None else self._sharing.ring.order()

    def floor_since(self, window: Window) -> list[int]:
        """For each lane the oldest of some rows that is still live; see `MarkedStorage`.

        Raises:
            RuntimeError: Lossless rows were written since, which changes older ones too.
        """
        now = self.ring.window()
        if isinstance(self.store, LosslessRows) and now != window:
            raise RuntimeError(
                "rows were written while this lossless buffer was dumped, and name each other: let "
                "its writers pause meanwhile."
            )
        return [max(pair) for pair in zip(now.first, window.first, strict=True)]

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Let further columns cut trajectories; see `MarkedStorage.mark`.

        Raises:
            ValueError: Rows of a shared storage with several lanes are linked already.
        """
        self.sync()
        if (ids, ends) == (self.ids, self.ends):
            return
        if self.takes_turns or self.links is None:
            with self.exclusive():
                super().mark(ids, ends)
        elif (found := self.links.keys.with_explicit(ids, ends)) != self.links.keys:
            raise ValueError(
                f"a shared buffer found trajectories by {list(self.links.keys.columns)} from its "
                f"first rows on, not by {list(found.columns)}: name them when it is made."
            )

    def empty(self) -> None:
        """Drop every row; what is written next may have other keys.

        Rows with other keys are stored elsewhere: processes that have the storage already are
        refused from then on, and want to be given it again.
        """
        self.sync()
        sharing = self._sharing
        if sharing is None or self.store is None:
            super().empty()
        elif sharing.ring.takes_turns:
            with self.exclusive():
                super().empty()
                sharing.index.clear()
                sharing.epoch += 1
        else:
            sharing.ring.empty()
            sharing.epoch += 1

    def stand(self, contents: Contents, fill: FillRows) -> None:
        """Replaces the contents with restored rows; see `TensorStorage.stand`.

        Raises:
            RuntimeError: Another thread or process holds a lane.
            ValueError: The rows are in another number of lanes.
        """
        self.sync()
        if self._sharing is None:
            super().stand(contents, fill)
            return
        ring = self._sharing.ring
        ring.release_lane()
        ring.require_free()
        wanted = contents.structure, contents.schema, contents.columns
        if self.store is None or (self.structure, self._came(), self.columns) != wanted:
            self._take_new(*wanted, instead=True)
        store = self._made()[0]
        self._open = False
        with loaded(self._sharing, store, contents):
            self._fill_rows(contents, fill, self._sharing.back)
            self._before_publish()

    def explain(self) -> list[str]:
        """What is stored, a line each."""
        self.sync()
        lines = super().explain()
        if self._sharing is not None:
            lines[1:1] = [f"  {line}" for line in self._sharing.explain()]
        return lines

    def __len__(self) -> int:
        self.sync()
        return super().__len__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._sharing is None:
            return super().__reduce_ex__(protocol)
        return object.__reduce_ex__(self, protocol)

    def __getstate__(self) -> dict[str, Any]:
        assert self._sharing is not None  # others are refused before
        state = {name: value for name, value in self.__dict__.items() if name not in _OWN}
        known = [] if self.structure is None else portable(self.structure.class_names())
        return state | {"_files": self._sharing.files, "_known": known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files")
        for kind in state.pop("_known"):
            register_container(kind)
        self.__dict__.update(state)
        self._index = self._plain = self._one_row = None
        self._watched = False
        self._process, self._open = os.getpid(), True
        self._adopt(self._over(files))

    def _make(self, data: Any, element: torch.Size | None) -> Batch:
        """Keeps the rows that other processes know, for data of the same structure."""
        known = self.structure
        if self._sharing is not None and known and (element or torch.Size()) == known.element:
            with suppress(KeyError, TypeError, ValueError):
                batch = known.take_apart(data, self.arrangement)
                same = self._schema(batch.cells) == self._came()
                if same and self.arrangement.columns(batch.shape) == self.columns:
                    self._open = False
                    return batch
        return super()._make(data, element)

    def _take_new(
        self, structure: Structure, schema: RowSchema, columns: torch.Size, *, instead: bool = False
    ) -> None:
        former = self._sharing
        if former is None:
            super()._take_new(structure, schema, columns)
            return
        layout = self._layout(schema) if self.lossless else None  # refuses before anything changes
        dim = self.arrangement.dim_extend
        rows = SharedRows(structure, schema, columns, self.ids, self.ends, layout, dim)
        capacity = self.capacity_for(columns)
        if self.store is None:
            self._attach(former, rows, rows.make(former, capacity))
            return
        came = None if instead else self._came()
        former.require_no_rows(came, schema)
        suffix = f".{uuid4().hex}"
        try:
            sharing = self._over(self._new_files(former.ring.lanes, suffix))
            store = rows.make(sharing, capacity)  # all memory, before anybody is sent away
            with former.update_lock.left():
                former.require_no_rows(came, schema)
                sharing.continue_from(former)
                self._commit_files(suffix)
        except BaseException:
            self._discard_files(suffix)
            raise
        self._adopt(sharing)
        self._attach(sharing, rows, store)

    def _attach(self, sharing: Sharing, rows: SharedRows, store: RowStore) -> None:
        self.columns, self.ids, self.ends = rows.columns, rows.ids, rows.ends
        self._take(rows.structure, store, sharing.back)

    def _layout(self, schema: RowSchema) -> LosslessLayout:
        return LosslessLayout(schema, None if self.lossless is True else self.lossless or ())

    def _begin_write(self, count: int) -> Links:
        sharing = self._sharing
        if sharing is None:
            return self._linked()
        store, _ = self._made()
        try:
            arrangement, inner = self.arrangement, self.columns.numel()
            stride = inner if arrangement.dim_extend == arrangement.ndim - 1 else 1
            self._writer = sharing.begin(store, self._linked(), stride, count)
        except BaseException:
            self._end_write()
            raise
        return self._writer.links

    def _before_publish(self) -> None:
        if self._sharing is not None and isinstance(self.store, LosslessRows):
            self._know_others(self.store)
            board = self._sharing.board
            board[MISSES] |= self.store.misses
            board[REACH] = max(board[REACH], self.store.reach)

    def _published(self, span: Span, found: Predecessors) -> None:
        if self._sharing is None:
            super()._published(span, found)
        else:
            self._writer.took_in(span.numbers.start, found.back)

    def _end_write(self) -> None:
        if self._sharing is not None:
            self._sharing.end()

    def _doubt_links(self) -> None:
        if self._sharing is None:
            super()._doubt_links()
        else:
            self._writer.doubt()

    def _relearn(self) -> None:
        if self._sharing is None:
            super()._relearn()

    def _recover(self, span: Span | None, *, touched: bool) -> None:
        if self._sharing is not None:
            self._writer.forget()  # the next write reads the lane's contents
        super()._recover(span, touched=touched)

    def _know_others(self, store: LosslessRows) -> None:
        if self._sharing is not None:
            board = self._sharing.board
            store.expect(misses=bool(board[MISSES]), reach=int(board[REACH]))

    def _relink(self) -> None:
        super()._relink()
        sharing = self._sharing
        if sharing is not None:
            sharing.index.clear()
            sharing.index.catch_up(sharing.back, self.ring.window())
            sharing.epoch += 1

    def _require_free(self, cells: TensorDictBase) -> None:
        """Raise for changes of leaves from which links and next observations were made."""
        given = list(leaves_of(cells))
        fixed = [as_tuple(key) for key in self._linked().keys.columns]
        if isinstance(self.store, LosslessRows):
            fixed += [path for pair in self.store.layout.pairs for path in (pair.root, pair.next)]
        found = [path for path in given if path in fixed]
        if found:
            raise ValueError(
                f"{found} cannot be changed in a shared buffer with several lanes: markers, and "
                "observations that are stored once, are fixed when they are written. Give the "
                "other leaves alone."
            )
