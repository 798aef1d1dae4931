"""Storage of tensors: from the caller's data to rows, and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.data.dicts import without_wrapper
from rl_replay.data.resampled import is_sample, without_own_marks
from rl_replay.data.structure import Arrangement, Batch, Structure, is_time
from rl_replay.edges import edge
from rl_replay.linking.markers import (
    Extent,
    MarkerKeys,
    refuse_unknown_ends,
    warn_of_endless,
)
from rl_replay.storages.explain import session_lines
from rl_replay.storages.layout import Lossless, StorageLayout, lossless_layout
from rl_replay.storages.private_session import PrivateSession
from rl_replay.storages.row_store import PlainRows, RowStore, refuse_to_allocate
from rl_replay.storages.session import RowsAfter, nothing_stored
from rl_replay.storages.state import restored, state_of
from rl_replay.storages.storage import Storage
from rl_replay.storages.table import RowTable, require_room
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Rows, RowSchema, Span
from rl_slabs.internals import PACKED_LEAF_BYTES, ValidatedLeaves, leaves_of
from rl_tensordict import NestedKey, as_tensor, build, nest

Device = torch.device | str | Literal["auto"] | None


class TensorStorage(Storage):
    """Rows in tensors that the caller gives: a tensor, a tensordict, a tensorclass or a tree.

    The tensors are used as they are, never copied: writing to the buffer writes to them. They
    count as room to be filled, or, under an `ImmutableDatasetWriter`, as rows.

    Args:
        storage: Tensors `[max_size, *columns, ...]`, the storage's dimensions in front.
        max_size: How many rows it holds; must be what the tensors hold where given.
        device: Their device; only checked. "auto" takes the tensors' own.
        ndim: Its dimensions.

    Raises:
        ValueError: Leaves of different lengths, another size, another device, or tensors whose
            rows cannot be laid flat without a copy.
        TypeError: No tensors.

    Example:
        >>> from rl_replay import ReplayBuffer
        >>> room = torch.zeros(10, 3, dtype=torch.uint8)
        >>> buffer = ReplayBuffer(storage=TensorStorage(room))
        >>> _ = buffer.add(torch.tensor([7, 8, 9], dtype=torch.uint8))
        >>> room[0].tolist(), len(buffer)
        ([7, 8, 9], 1)
    """

    lossless: Lossless = False
    device: Device
    _packed_bytes = PACKED_LEAF_BYTES
    _warned_of_endless = False

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: Device = "cpu",
        ndim: int = 1,
    ) -> None:
        if storage is None:
            raise ValueError("expected tensors, got None: use LazyTensorStorage(max_size).")
        super().__init__(1, ndim=ndim)
        self.device = device
        structure = Structure.of(storage)
        batch = structure.take_apart(storage, Arrangement(ndim))
        found = leaves_of(batch.cells)
        _require_views(storage, found)
        count = len(batch.cells)
        if max_size is not None and max_size != count:
            raise ValueError(f"max_size is {max_size}, but the tensors hold {count} rows.")
        self._packed_bytes = 0  # the caller's tensors lie apart
        schema = self._schema(batch.cells)
        arrays = {field.path: found[field.path] for field in schema.fields}
        self._is_time = structure.is_tensordict and is_time(storage, 0)
        layout = self._layout(structure, schema, torch.Size(batch.shape[1:]))
        rows, back = PlainRows(Rows(schema, None, arrays)), np.zeros(count, np.int32)
        session = self.session = PrivateSession(count, refuse_to_allocate)
        session.take(RowTable(layout, rows, back, span_limit=count))

    @property
    def structure(self) -> Structure | None:
        """What one row is to its owner; None before the first write."""
        table = self.session.table
        return None if table is None else table.layout.structure

    @property
    def store(self) -> RowStore | None:
        """The bytes of the rows; None before the first write."""
        table = self.session.table
        return None if table is None else table.store

    @property
    def back(self) -> NDArray[np.int32]:
        """For each position the offset of its row to the predecessor, int32; live.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        return self._table.links.back

    @property
    def rows_device(self) -> torch.device:
        """Where the rows lie."""
        return self._table.device

    @property
    def on_host(self) -> bool:
        """Whether the rows lie in memory of the CPU."""
        return self._table.on_host

    def extend(self, data: Any) -> Span:
        """Write several elements.

        Args:
            data: Elements along the storage's dimensions; tensordicts may have more, which are
                laid row by row.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape, no row, or more rows than there is room for.
            OSError: Too little memory or disk.
        """
        session = self.session
        table = session.sync()
        session.require_own()
        if session.is_open or table is None:
            return self._append(self._make(without_wrapper(data), None))
        if type(data) is TensorDict and data.ndim == 1:
            few = table.few_rows(count := len(data))
            if few is not None and (known := few.take_batch(data)) is not None:
                return table.append(session, known, Extent(count, 1, count), few=few)
        known = table.read(data, 1)
        if known is not None and (count := len(next(iter(known.values())))):
            named = table.links.keys.compares and isinstance(data, TensorDict) and is_time(data, 0)
            return table.append(session, known, Extent(count, 1, count, named))
        data = without_wrapper(data)
        structure, schema, columns = table.layout[:3]
        batch = structure.take_apart(data, self.arrangement)
        if self.ndim > 1 and columns != self.arrangement.columns(batch.shape):
            raise ValueError(
                f"expected batches with columns {list(columns)} after dimension "
                f"{self.arrangement.dim_extend}, as first stored, got batch size "
                f"{list(batch.shape)}."
            )
        if self.ndim == 1 and structure.form == "tensordict" and is_sample(data):
            return self._append(*without_own_marks(batch, schema, table.links.keys))
        return self._append(batch)

    def add(self, data: Any) -> Span:
        """Write one element: one row, or with `ndim` above 1 one for each column.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.
            OSError: Too little memory or disk.
        """
        session = self.session
        table = session.sync()
        table = None if session.is_open else table
        if table is not None and table.one_row is not None:
            row = table.one_row.take(data)
            if row is not None:
                session.require_own()
                return table.append_one(session, table.one_row, row)
        if table is not None and (known := table.read(data, 0)) is not None:
            session.require_own()
            one = ValidatedLeaves((key, array[None]) for key, array in known.items())
            return table.append(session, one, Extent(1, 1, 1))
        data = without_wrapper(data)
        dim = self.arrangement.dim_extend
        if is_tensor_collection(data):
            return self.extend_elements(data.unsqueeze(dim))
        structure = Structure.of(data)
        parts = structure.leaves_by_path(data)
        if structure.form == "tensor":
            return self.extend(next(iter(parts.values())).unsqueeze(dim))
        flat = {path: leaf.unsqueeze(dim) for path, leaf in parts.items()}
        return self.extend(structure.put_together(build(nest(flat), torch.Size())))

    def extend_elements(self, rows: Any) -> Span:
        """Write tensordicts stacked along the dimension that grows, each as `add` writes it.

        Raises:
            ValueError: Each has more or fewer batch dimensions than one element.
        """
        dim, shape = self.arrangement.dim_extend, rows.batch_size
        element = torch.Size([*shape[:dim], *shape[dim + 1 :]])
        self._require_one(element)
        if not self.session.is_open:
            return self.extend(rows)
        self.session.require_own()
        return self._append(self._make(rows, element if self.ndim == 1 else None))

    def read(self, positions: torch.Tensor) -> Any:
        """Copies rows.

        Args:
            positions: int64, any shape, which becomes the batch shape.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        table = self._synced()
        cells = table.store.read(positions if table.on_host else positions.to(table.device))
        return table.layout.structure.put_together(cells)

    def gather(self, positions: torch.Tensor, *, contiguous: bool = False) -> Any:
        """Copies rows that are known to exist.

        Args:
            positions: int64 `[n]`. One out of range may give any row.
            contiguous: Give each leaf memory of its own.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        table = self._synced()
        if contiguous or not table.on_host:
            cells = table.store.read(positions.to(table.device), contiguous=contiguous)
        else:
            cells = table.store.gather(positions)
        structure = table.layout.structure
        return cells if structure.is_plain else structure.put_together(cells)

    def read_one(self, position: int) -> Any:
        """Copies one row, without a batch dimension.

        Args:
            position: Its storage position.
        """
        return self.put_together(self._synced().store.read(position))

    def put_together(self, cells: TensorDict) -> Any:
        """Rows as their owner has them, from their leaves.

        Args:
            cells: The leaves, any batch shape.
        """
        return self._table.layout.structure.put_together(cells)

    def read_keys(self, positions: torch.Tensor, keys: list[NestedKey]) -> TensorDict:
        """Copy some leaves of rows out.

        Args:
            positions: int64, any shape, which becomes the batch shape.
            keys: Leaves or groups.

        Raises:
            KeyError: There is no such leaf.
            RuntimeError: Nothing was ever written.
        """
        return self._synced().read_keys(positions, keys)

    def read_standing(
        self, numbers: torch.Tensor, keys: list[NestedKey] | None = None
    ) -> tuple[TensorDict, torch.Tensor]:
        """Copies rows that may be overwritten meanwhile.

        Args:
            numbers: Row numbers, int64, any shape.
            keys: The leaves or groups wanted; all of them unless given.

        Returns:
            The leaves, and which rows are whole, bool, both of that shape.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        return self.session.read_standing(numbers, keys)

    def after(self, numbers: NDArray[np.int64], k: int) -> RowsAfter:
        """The rows k steps later in their trajectories; see `TrajectoryIndex.after`."""
        return self.session.after(numbers, k)

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
        table = self._synced()
        cells = table.layout.structure.cells(data, positions.shape)
        table.update(self.session, self._standing(positions), cells.reshape(-1))

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
        cells = given.exclude(*self._synced().links.keys.columns)
        if not leaves_of(cells):
            raise KeyError(
                f"there is nothing to write among {list(tensordict.keys(True, True))}: markers "
                "are written with buffer[index] = value."
            )
        if len(numbers):
            self._synced().update(self.session, numbers, cells)

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
        table = self._synced()
        field = table.store.schema[key]
        leaf = as_tensor(value, field.dtype).expand(*positions.shape, *field.shape)
        flat = leaf.reshape(-1, *field.shape)
        cells = build(nest({field.path: flat}), flat.shape[:1])
        table.update(self.session, self._standing(positions), cells)

    def trajectories(self) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now; of a shared storage perhaps torn.

        Raises:
            RuntimeError: Nothing was ever written.
            KeyError: A column that was named to find them by is not there.
        """
        return self.session.trajectories()

    def require_boundaries(self) -> None:
        """Raise for slices where flags are stored that are no known markers; warn without any.

        Raises:
            KeyError: No column is known to mark boundaries, and others look as if they did.
        """
        table = self.session.table
        if table is None or table.links.keys.cuts:
            return
        refuse_unknown_ends(table.store.schema)
        if not self._warned_of_endless:
            self._warned_of_endless = warn_of_endless(table.store.schema, table.links.keys)

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Adds columns that cut trajectories, also those stored already.

        Args:
            ids: Columns that must be equal in two rows for one to continue the other.
            ends: Flags of last steps; missing ones are ignored if another is stored.

        Raises:
            KeyError: There is no such column.
            ValueError: Rows of a shared storage with several lanes are linked already.
        """
        self.session.mark(ids, ends)

    def fill(self) -> None:
        """Let every row of the tensors count as written, as a dataset's do."""
        session = self.session
        assert isinstance(session, PrivateSession)  # of given tensors
        session.fill_with_given(is_time=self._is_time)

    def stats(self) -> dict[str, float]:
        """Figures about what is stored."""
        self.sync()
        return super().stats() | self.session.stats()

    def explain(self) -> list[str]:
        """What is stored, a line each."""
        return session_lines(super().explain()[0], self.session)

    def state_dict(self) -> dict[str, Any]:
        """A copy of every row, the bounds of the ring, and the links."""
        self.sync()
        return state_of(self.session)

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the contents of another storage.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It had a larger capacity, more rows than other lanes have room for, or other
                keys.
        """
        if state["rows"] is None:
            self.empty()
            return
        cells = TensorDict(state["rows"], batch_size=[len(state["back"])])
        # a lossless storage adds next observations to rows that came without
        came = [tuple(path) for path in state.get("came", ())] if self.lossless else []
        schema = self._schema(cells.select(*came) if came else cells)
        self.stand(*restored(self.session, state, cells, schema))

    def stand(self, contents: Contents, fill: FillRows) -> None:
        """Replaces the contents with restored rows; the former rows are dropped first.

        No row can be read before all of them are there; where that fails there is none.

        Args:
            contents: The rows, and the state of the ring.
            fill: Writes the rows, which are cleared, and their links, which are 0.

        Raises:
            RuntimeError: Another thread or process holds a lane of a shared storage.
            ValueError: They do not fit.
            OSError: Too little memory or disk.
        """
        layout = self._layout(contents.structure, contents.schema, contents.columns)
        self.session.restore(layout, contents, fill, self._target())

    def capacity_for(self, columns: torch.Size) -> int:
        """The capacity in rows with such columns: as many in every lane.

        Example:
            >>> from rl_replay import LazyTensorStorage
            >>> LazyTensorStorage(100, ndim=2).capacity_for(torch.Size([3]))
            102
        """
        return self.session.capacity_for(columns)

    def _append(self, batch: Batch, marks: MarkerKeys | None = None) -> Span:
        (table := self._table).arrange(self.arrangement.dim_extend)
        return table.append(self.session, table.with_casts(batch.cells), batch.extent, marks)

    def _make(self, data: Any, element: torch.Size | None) -> Batch:
        """Reads the structure of the first data, and allocates rows for it."""
        session = self.session
        known = session.kept_structure
        if known is not None and (element or torch.Size()) == known.element:
            with suppress(KeyError, TypeError, ValueError):
                batch = known.take_apart(data, self.arrangement)
                here = self._schema(batch.cells), self.arrangement.columns(batch.shape)
                if here == session.rows.layout[1:3]:
                    session.is_open = False
                    return batch
        layout, batch = plan_of(self, data, element)
        session.make(layout, self._target())
        return batch

    def _layout(
        self, structure: Structure, schema: RowSchema, columns: torch.Size
    ) -> StorageLayout:
        once, session = lossless_layout(schema, self.lossless), self.session
        dim = self.arrangement.dim_extend
        return StorageLayout(structure, schema, columns, session.ids, session.ends, once, dim)

    def _schema(self, cells: TensorDictBase) -> RowSchema:
        """The leaves of rows; the first ones decide the device if it is "auto"."""
        if self.device == "auto":
            self.device = next(iter(leaves_of(cells).values())).device
        return RowSchema.from_tensordict(cells, packed_bytes=self._packed_bytes)

    def _target(self) -> torch.device:
        """The device of the next rows."""
        return torch.device("cpu" if self.device in (None, "auto") else self.device)

    @property
    def _table(self) -> RowTable:
        """The rows that are known here; raises if nothing was ever written."""
        table = self.session.table
        if table is None:
            raise nothing_stored()
        return table

    def _synced(self) -> RowTable:
        """The rows; raises if nothing was ever written."""
        self.session.sync()
        return self._table

    def _standing(self, positions: torch.Tensor) -> torch.Tensor:
        """The ids of the live rows at some positions, `[n]`."""
        numbers = self.ring.numbers_at(positions.reshape(-1))
        if self.is_shared and bool((numbers < 0).any()):
            raise RuntimeError(
                "some of these rows are being overwritten: use update_rows, which passes over them "
                "and says so."
            )
        return numbers

    def _require_one(self, batch: torch.Size) -> None:
        """Raises if data are several elements rather than one."""
        is_open, structure = self.session.is_open, self.structure
        if is_open and self.ndim == 1:
            return  # the first element says what one is
        inner = structure.element if structure is not None and not is_open else ()
        if len(batch) != self.ndim - 1 + len(inner):
            raise ValueError(
                f"expected one element of {self.ndim - 1 + len(inner)} batch dimension(s), got "
                f"batch size {list(batch)}: use extend() for several."
            )


def plan_of(
    storage: TensorStorage, data: Any, element: torch.Size | None = None
) -> tuple[StorageLayout, Batch]:
    """The layout of a storage whose first data these are; nothing is written or allocated."""
    structure = Structure.of(data, element=element)
    batch = structure.take_apart(data, storage.arrangement)
    schema, columns = storage._schema(batch.cells), storage.arrangement.columns(batch.shape)
    layout = storage._layout(structure, schema, columns)
    room = storage.capacity_for(columns)
    require_room(storage.ring, batch.extent.count, room // storage.session.lanes)
    return layout, batch


def _require_views(storage: Any, found: dict[tuple[str, ...], torch.Tensor]) -> None:
    collection = is_tensor_collection(storage)
    given = leaves_of(storage) if collection else Structure.of(storage).leaves_by_path(storage)
    for path, leaf in found.items():
        if leaf.data_ptr() != given[path].data_ptr() and leaf.numel():
            raise ValueError(
                f"leaf {path} of shape {list(given[path].shape)} cannot be laid flat without a "
                "copy: make it contiguous first."
            )
