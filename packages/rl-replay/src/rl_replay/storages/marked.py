"""Rows with markers: links and trajectories, updated as rows are written and changed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_replay.data.structure import Arrangement, Extent, Structure
from rl_replay.linking.links import Links
from rl_replay.linking.marker_keys import MarkerKeys, end_candidates
from rl_replay.linking.markers import MarkerColumns
from rl_replay.linking.observations import Comparisons, contradictions
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_replay.storages.storage import Storage
from rl_replay.trajectories.build import fill_index, pending
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import RowSchema, Window
from rl_slabs.internals import leaves_of
from rl_tensordict import NestedKey, build, nest

RowsAfter: TypeAlias = tuple[NDArray[np.int64], NDArray[np.bool_]]


class MarkedStorage(Storage):
    """What storages of tensors share: rows by key, their links and their trajectories.

    Attributes:
        structure: What one row is to its owner; None before the first write.
        store: The bytes of the rows; None before the first write.
        links: Who continues whom; None before the first write.
        ids: Columns that cut alongside those of the contract.
        ends: Flags of last steps alongside those of the contract.
        comparisons: What this process found where it compared observations of neighbours.
        rows_device: Where the rows lie.
        on_host: Whether that is the CPU.
    """

    structure: Structure | None = None
    store: RowStore | None = None
    links: Links | None = None
    ids: list[NestedKey]
    ends: list[NestedKey]
    comparisons: Comparisons
    _index: TrajectoryIndex | None
    _indexed = False  # whether rows are taken into the index as they come
    _is_time: bool = False  # whether the caller named the dimension of given tensors so
    rows_device: torch.device
    on_host: bool

    def read_keys(self, positions: torch.Tensor, keys: list[NestedKey]) -> TensorDict:
        """Copy some leaves of rows out.

        Args:
            positions: int64, any shape, which becomes the batch shape.
            keys: Leaves or groups.

        Raises:
            KeyError: There is no such leaf.
            RuntimeError: Nothing was ever written.
        """
        store, _ = self._made()
        return store.read(positions.to(self.rows_device), keys=keys)

    def read_standing(
        self,
        numbers: torch.Tensor,
        keys: list[NestedKey] | None = None,
        *,
        positions: torch.Tensor | None = None,
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies rows that may be overwritten meanwhile.

        Args:
            numbers: Row numbers, int64, any shape.
            keys: The leaves or groups wanted; all of them unless given.
            positions: Where the rows lie, if that is known already, of that shape.

        Returns:
            The leaves, and which rows are whole, bool, both of that shape.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        store, _ = self._made()
        places = self.ring.positions(numbers) if positions is None else positions
        cells = store.read(places.to(self.rows_device), keys=keys)
        return cells, self.ring.is_live(numbers)

    def read_linked(
        self, numbers: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, NDArray[np.int32]]:
        """Copies rows that may be overwritten meanwhile, and their links.

        Args:
            numbers: Row numbers, int64 `[n]`.

        Returns:
            The leaves `[n]`; which rows are whole, bool `[n]`; and for each of these the distance
            to the one that it continues, int32 `[n]`.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        cells, whole = self.read_standing(numbers)
        return cells, whole, self.back[self.ring.positions(numbers).numpy()]

    def own_index(self) -> AbstractContextManager[None]:
        """Uses trajectories rebuilt from the links, where the index may be inconsistent."""
        return nullcontext()

    def put_together(self, cells: TensorDict) -> Any:
        """Rows as their owner has them, from their leaves.

        Args:
            cells: The leaves of `read_standing`, any batch shape.
        """
        return self._made()[1].put_together(cells)

    def after(self, numbers: NDArray[np.int64], k: int) -> RowsAfter:
        """The rows k steps later in their trajectories; see `TrajectoryIndex.after`."""
        return self.trajectories().after(numbers, k)

    @property
    def back(self) -> NDArray[np.int32]:
        """For each position the offset of its row to the predecessor, int32; live.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        return self._linked().back

    def update(self, numbers: torch.Tensor, cells: TensorDictBase) -> None:
        """Updates some leaves of rows in place; shared storages are held `still` meanwhile.

        Args:
            numbers: Row numbers that stand, int64 `[n]`.
            cells: Some of the leaves, `[n, *shape]`.
        """
        store, _ = self._made()
        positions = self.ring.positions(numbers)
        links = self._linked()
        given = leaves_of(cells)
        store.schema.select(list(given))
        behind = links.back[positions.cpu().numpy()]
        positions = positions.to(self.rows_device)
        marks = any(key in links.keys.columns for key in cells.keys(True, True))
        # kept until the update has succeeded, to undo it where relinking is refused
        former = store.read(positions, keys=list(given)), links.back.copy() if marks else None
        touches, whole = store.touches, False
        try:
            try:
                store.update(positions, numbers, cells, behind)
                if marks:
                    self._relink()
                whole = True
            except BaseException:
                if store.touches != touches:
                    store.update(positions, numbers, former[0], behind)
                    if former[1] is not None:
                        links.back[:] = former[1]
                        self._relink()
                whole = True
                raise
        finally:
            if not whole:
                self.empty()  # rows that are neither the former nor the later ones

    def replace(self, positions: torch.Tensor, data: Any) -> None:
        """Replaces some or all leaves of rows in place.

        Trajectories follow where markers change.

        Args:
            positions: int64, any shape.
            data: As many rows, of that batch shape; tensordicts may have some of the leaves only.

        Raises:
            KeyError: A leaf that is not stored.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.
            RuntimeError: Nothing was ever written.
        """
        self.require_own()
        self._made()
        cells = self._cells_like(positions.shape, data)
        self.update(self._standing(positions), cells.reshape(-1) if cells.ndim != 1 else cells)

    def update_unmarked(self, numbers: torch.Tensor, tensordict: TensorDictBase) -> None:
        """Updates leaves of rows that are no markers, in place.

        Args:
            numbers: Row numbers that stand, int64 `[n]`.
            tensordict: Some of the leaves, `[n]`; keys that only samples have are left out.

        Raises:
            KeyError: A leaf that is not stored, or nothing but markers.
        """
        self.require_own()
        given = Structure.of(tensordict).take_apart(tensordict, Arrangement()).cells
        cells = given.exclude(*self._linked().keys.columns)
        if not leaves_of(cells):
            raise KeyError(
                f"there is nothing to write among {list(tensordict.keys(True, True))}: markers "
                "are written with buffer[index] = value."
            )
        if len(numbers):
            self.update(numbers, cells)

    def replace_leaf(self, positions: torch.Tensor, key: NestedKey, value: Any) -> None:
        """Replaces one leaf of rows in place.

        Args:
            positions: int64, any shape.
            key: The leaf.
            value: Of that shape and the leaf's, or what can be expanded to it.

        Raises:
            KeyError: There is no such leaf.
        """
        self.require_own()
        field = self._made()[0].schema[key]
        leaf = torch.as_tensor(value, dtype=field.dtype).expand(*positions.shape, *field.shape)
        flat = leaf.reshape(-1, *field.shape)
        cells = build(nest({field.path: flat}), flat.shape[:1])
        self.update(self._standing(positions), cells)

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now.

        Raises:
            RuntimeError: Nothing was ever written.
            KeyError: A column that was named to find them by is not there.
        """
        self._require_columns()
        # an index whose changes were interrupted is made anew
        index, self._index = self._index, None
        if index is None:
            index = TrajectoryIndex(self.ring.capacity)
        index.catch_up(self._linked().back, self.ring.window())
        self._index = index
        return index

    @property
    def pending_rows(self) -> int:
        """Rows that are not in the index of trajectories yet; the next slices take them in."""
        return (
            0 if self.links is None or self.is_shared else pending(self._index, self.ring.window())
        )

    def keep_index(self, wanted: bool) -> None:
        """Say whether slices are drawn, so that rows are taken into the index as they come.

        Args:
            wanted: Whether a sampler asks for trajectories.
        """
        self._indexed = wanted
        if wanted:
            self._take_into_index()

    def _take_into_index(self) -> None:
        """Builds the trajectory index, if slices are sampled."""
        if not self._indexed or self.links is None or self.is_shared:
            return  # the writers of a shared storage index what they write
        # an index whose changes were interrupted is made anew
        index, self._index = self._index, None
        if index is None:
            index = TrajectoryIndex(self.ring.capacity)
        fill_index(index, self.links.back, self.ring.window())
        self._index = index

    def require_boundaries(self) -> None:
        """Raise for slices where flags are stored that are no known markers.

        Raises:
            KeyError: No column is known to mark boundaries, and others look as if they did.
        """
        if self.links is None or self.links.keys.cuts:
            return
        schema = self._made()[0].schema
        if found := end_candidates(schema):
            raise KeyError(
                f"nothing is known to say where trajectories end among the leaves {list(schema)}, "
                f"so slices would run over episode ends: name the flag, as in "
                f"end_key={found[0]!r} (candidates: {found}), the ids with traj_key=, or store "
                "the flags under ('next', 'done')."
            )

    def index_state(self) -> dict[str, NDArray[np.generic]] | None:
        """The contents of the trajectory index; None before the first slices."""
        return None if self._index is None else self.trajectories().state()

    def lane_order(self) -> list[int]:
        """The lanes, the one written longest ago first."""
        return [0]

    def floor_since(self, window: Window) -> list[int]:
        """For each lane the oldest of some rows that is still live.

        Args:
            window: The rows that could be read at some moment.
        """
        return list(window.first)

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Adds columns that cut trajectories, also those stored already.

        Args:
            ids: Columns that must be equal in two rows for one to continue the other.
            ends: Flags of last steps; missing ones are ignored if another is stored.

        Raises:
            KeyError: There is no such column.
        """
        if (ids, ends) == (self.ids, self.ends):
            return
        self.ids, self.ends = list(ids), list(ends)
        if self.links is not None:
            self._require_columns()
            self.links.keys = self._marker_keys()
            self._relink()

    def fill(self) -> None:
        """Let every row of the tensors count as written, as a dataset's do."""
        store, _ = self._made()
        if len(self):
            return
        count = len(store)
        self.ring.restore(count, 0)
        known, inner = self._linked().keys, self.columns.numel()
        cells = store.read(slice(0, count), keys=list(known.columns) or None)
        marks = MarkerColumns.of(cells, known)
        # [count - inner], row i and row i + inner of the same column
        joined = marks.joined(slice(0, count - inner), slice(inner, count))
        if known.compares and not self._is_time:
            rows = (
                store.rows.view() if isinstance(store, PlainRows) else store.read(slice(0, count))
            )
            leaves = leaves_of(rows)
            wrong, found = contradictions(
                leaves, known, Extent(count, inner, count // inner), joined
            )
            joined = joined if wrong is None else joined & ~wrong
            self.comparisons.add(found)
        self._linked().back[inner:] = np.where(joined, inner, 0)
        self._relink()

    def stats(self) -> dict[str, float]:
        """Figures about what is stored."""
        self.sync()
        found = super().stats()
        if self.store is not None:
            index = self.trajectories()
            found |= {"trajectories": len(index), "one_row_pieces": index.one_row_pieces}
            linked = index.steps - len(index)
            found["contradicted"] = self.comparisons.cut
            found["linked_share"] = linked / index.steps if index.steps else 1.0
        return found

    def _standing(self, positions: torch.Tensor) -> torch.Tensor:
        """The ids of the live rows at some positions, `[n]`."""
        numbers = self.ring.numbers_at(positions.reshape(-1))
        if self.is_shared and bool((numbers < 0).any()):
            raise RuntimeError(
                "some of these rows are being overwritten: use update_rows, which passes over them "
                "and says so."
            )
        return numbers

    def _cells_like(self, shape: torch.Size, data: Any) -> TensorDictBase:
        """Data as rows `[*shape]`."""
        _, structure = self._made()
        if structure.is_tensordict and is_tensor_collection(data):
            return structure.take_apart(data, Arrangement()).cells
        structure_of_data = Structure.of(data)
        leaves = structure._leaves(data) if structure_of_data.form == structure.form else None
        if leaves is None:
            raise structure._another(data)
        return build(nest(leaves), shape)

    def _relink(self) -> None:
        """Recomputes all links, after markers changed or were loaded."""
        links, window = self._linked(), self.ring.window()
        if self._index is not None:
            self._index.clear()
        if not len(window):
            return
        numbers = torch.arange(window.first[0], window.first[0] + len(window))
        if columns := list(links.keys.columns):
            cells = self.read_keys(self.ring.positions(numbers), columns)
            links.revise(MarkerColumns.of(cells, links.keys), window.first[0])
        self._know_last(links, numbers)

    def _know_last(self, links: Links, numbers: torch.Tensor) -> None:
        """Prepares matches by observation with the newest rows."""
        observed = [key for pair in links.keys.observations for key in pair]
        stride = self.columns.numel()
        if links.keys.numbered or not observed or len(numbers) < stride:
            return
        positions = self.ring.positions(numbers[-stride:])
        last = self.read_keys(positions, [*links.keys.columns, *observed])
        links.observe_tail(last, links.back[positions.numpy()])

    def _marker_keys(self, schema: RowSchema | None = None) -> MarkerKeys:
        schema = schema or self._made()[0].schema
        ids, ends = ([key for key in found if key in schema] for found in (self.ids, self.ends))
        return MarkerKeys.of(schema).with_explicit(ids, ends)

    def _require_columns(self) -> None:
        """Raises if the columns that trajectories are sought by are not stored."""
        schema = self._made()[0].schema
        missing = [key for key in self.ids if key not in schema]
        if self.ends and not any(key in schema for key in self.ends):
            missing += self.ends
        if missing:
            raise KeyError(
                f"no column {missing[0]!r} to find trajectories by: choose from {list(schema)}."
            )

    def _made(self) -> tuple[RowStore, Structure]:
        self.sync()
        if self.store is None or self.structure is None:
            raise RuntimeError("nothing is stored yet: extend the buffer first.")
        return self.store, self.structure

    def _linked(self) -> Links:
        if self.links is None:
            raise RuntimeError("nothing is stored yet: extend the buffer first.")
        return self.links
