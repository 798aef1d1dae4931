"""Sessions: who writes the rows of a storage, who else may, and what a reader may trust."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.data.structure import Structure
from rl_replay.linking.ends import EndChecks
from rl_replay.linking.observations import Comparisons
from rl_replay.storages.layout import StorageLayout
from rl_replay.storages.table import RowTable, WriteSession
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Window
from rl_tensordict import NestedKey, UnfitValue, as_tuple
from rl_tensordict.types import Ints

Chosen: TypeAlias = tuple[torch.Tensor, dict[str, Any]]
"""Row numbers, int64 `[N]`, and what a sampler knows about them."""
RowsAfter: TypeAlias = tuple[Ints, NDArray[np.bool_]]
"""Row numbers, and which of them are there; both `[n]`."""


Look: TypeAlias = Callable[[], float | None]
"""Seconds that are left to wait; None if the condition holds."""


class RowSampler(Protocol):
    """What a storage needs from a sampler."""

    def sample(self, storage: Any, batch_size: int) -> Chosen:
        """Row numbers, and what is known about them."""
        ...


class StoredSample(NamedTuple):
    """Copies of the rows that a sampler chose."""

    rows: Any  # As their owner stored them, [N]
    numbers: torch.Tensor  # Their row numbers, int64 [N]
    positions: torch.Tensor  # Where they were when they were copied, int64 [N]
    info: dict[str, Any]  # What the sampler knows about them
    redrawn: int = 0  # How many were chosen in place of rows that were overwritten meanwhile


class Session(WriteSession):
    """The rows of a storage, the ring that numbers them, and the order of writes to them."""

    # methods with a body are for rows that no other process writes

    is_shared: bool  # whether other processes that are given the storage see the same rows
    table: RowTable | None = None  # None before the first write
    is_open = True  # whether the next write says what rows are like
    relinked = 0  # how often links of stored rows were computed again, where `epoch` tells nothing

    def __init__(self, capacity: int) -> None:
        self.asked = capacity
        self.ids: list[NestedKey] = []
        self.ends: list[NestedKey] = []
        self.comparisons, self.end_checks = Comparisons(), EndChecks()

    @property
    def rows(self) -> RowTable:
        """The rows; raises if nothing was ever written."""
        if self.table is None:
            raise nothing_stored()
        return self.table

    @property
    def lanes(self) -> int:
        """How many rings there are, one for each writer at a time."""
        return len(self.ring.window().first)

    def capacity_for(self, columns: torch.Size) -> int:
        """The capacity in rows with such columns: as many in every lane."""
        inner = columns.numel() * self.lanes
        return -(-self.asked // inner) * inner

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Names columns that cut trajectories, also those of rows that are stored already."""
        if (ids, ends) == (self.ids, self.ends):
            return
        self.ids, self.ends = list(ids), list(ends)
        if self.table is not None:
            self.table.mark(ids, ends)
            self.relink()

    @property
    def kept_structure(self) -> Structure | None:
        """The structure that rows keep where those of the next write have the same leaves."""
        return None

    def require_own(self) -> None:
        """Raises if the rows belong to the process that this one was forked from."""

    def require_portable(self, what: str) -> None:
        """Raises for what stays in this process."""

    def hold(self, rows: torch.Tensor) -> torch.Tensor:
        """Some rows as they are now, while they are dumped."""
        return rows

    def wait(self, look: Look, wait_for_threads: Callable[[Look], bool]) -> bool:
        """Whether `look` finds what it waits for in time, by the writes of any process."""
        return wait_for_threads(look)

    @abstractmethod
    def sync(self) -> RowTable | None:
        """The rows, also if another process created them; None before the first write."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """How often other processes dropped or loaded all rows, or linked them anew."""

    @property
    @abstractmethod
    def replacements(self) -> int:
        """How often other processes dropped or loaded all rows."""

    @abstractmethod
    def make(self, layout: StorageLayout, device: torch.device, *, instead: bool = False) -> None:
        """Allocates rows, unless those there are the same; `instead` of any for restored ones."""

    def _drop_all(self) -> None:
        """Drops every row, and links and overflow slots of them."""
        try:
            self.ring.empty()
            self._forget()
        except BaseException:
            if not len(self.ring.window()):
                self._forget()
            raise

    def _forget(self) -> None:
        self.is_open = True
        if self.table is not None:
            self.table.links.forget()
            self.table.store.clear()

    @abstractmethod
    def restore(
        self, layout: StorageLayout, contents: Contents, fill: FillRows, device: torch.device
    ) -> None:
        """Replaces the contents; no row can be read before all are written."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Blocks writers of other processes while rows are updated in place."""
        return nullcontext()

    def exclusive_writer(self) -> AbstractContextManager[None]:
        """Blocks the other writers where they take turns to write; else does nothing."""
        return self.exclusive() if self.takes_turns else nullcontext()

    def read_ahead(self) -> AbstractContextManager[None]:
        """Rows are read from the first to the last inside, as a dump does."""
        return nullcontext()

    @abstractmethod
    def trajectories(self) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now."""

    @abstractmethod
    def index_state(self) -> dict[str, NDArray[np.generic]] | None:
        """The contents of the index; None if there is none, or while writers change it."""

    def keep_index(self, wanted: bool) -> None:
        """Says whether rows are to be indexed as they are written, if they are not anyway."""

    @property
    def pending_rows(self) -> int:
        """Rows that are not in the index yet."""
        return 0

    def stats(self) -> dict[str, float]:
        """Figures about trajectories and links; none before the first write."""
        if self.table is None:
            return {}
        index = self.trajectories()
        linked = index.steps - len(index)
        return {
            "trajectories": len(index),
            "one_row_pieces": index.one_row_pieces,
            "contradicted": self.comparisons.cut,
            "linked_share": linked / index.steps if index.steps else 1.0,
        }

    def explain(self) -> list[str]:
        """How capacity is divided between writers, if there are several."""
        return []

    def lane_order(self) -> list[int]:
        """The lanes, the one written longest ago first."""
        return [0]

    def floor_since(self, window: Window) -> list[int]:
        """For each lane the oldest row of a former window that no other process overwrote."""
        return list(window.first)

    @abstractmethod
    def choose(self, storage: Any, sampler: RowSampler, size: int) -> Chosen:
        """Lets a sampler choose rows."""

    def may_be_chosen(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row numbers `draw` can copy, bool of the same shape."""
        return self.ring.is_live(numbers)

    @abstractmethod
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

    def read_live(
        self, storage: Any, positions: torch.Tensor | int, *, some: bool
    ) -> tuple[torch.Tensor | int, Any]:
        """Copies rows, each as one write left it; with `some` without those being overwritten."""
        del some
        if isinstance(positions, int):
            return positions, storage.read_one(positions)
        return positions, storage.read(positions)

    def read_standing(
        self, numbers: torch.Tensor, keys: list[NestedKey] | None = None
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies leaves of rows that may be overwritten meanwhile, and says which are whole."""
        rows, positions = self.rows, self.ring.positions(numbers)
        cells = rows.store.read(positions.to(rows.device), keys=keys)
        return cells, self.ring.is_live(numbers)

    def leaf_of(self, row_ids: torch.Tensor, key: NestedKey) -> torch.Tensor | None:
        """A leaf of rows `[N]`; None if no such leaf is stored."""
        table, path = self.sync(), as_tuple(key)
        if table is None or all(field.path != path for field in table.layout.schema.fields):
            return None
        leaf: torch.Tensor = self.read_standing(row_ids, [key])[0][key]
        return leaf

    def after(self, numbers: Ints, k: int) -> RowsAfter:
        """The rows k steps later in their trajectories."""
        return self.trajectories().after(numbers, k)


def nothing_stored() -> UnfitValue:
    """The error of reads before the first write, a ValueError as those of an emptied buffer are."""
    return UnfitValue("nothing is stored yet: extend the buffer first.")
