"""Rows of tensors: structure, bytes, links and trajectories under one roof."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_layout.keys import NestedKey
from rl_layout.tensordict_fast import build, nest
from rl_replay.compact import CompactRows
from rl_replay.explain import storage_lines
from rl_replay.links import Links
from rl_replay.marker_keys import MarkerKeys
from rl_replay.ring import PrivateRing
from rl_replay.row_store import PlainRows, RowStore
from rl_replay.storages.marked import MarkedStorage
from rl_replay.storages.one_row import OneRow
from rl_replay.stored_samples import is_sample, without_own_marks
from rl_replay.structure import Arrangement, Batch, Structure
from rl_replay.trajectory_index import TrajectoryIndex
from rl_slabs import Rows, RowSchema, Span
from rl_slabs.schema import PACKED_LEAF_BYTES, leaves_of
from rl_slabs.writing import fitting_leaves

Device = torch.device | str | Literal["auto"] | None


class TensorStorage(MarkedStorage):
    """Rows in tensors that the caller gives: a tensor, a tensordict, a tensorclass or a tree.

    The tensors are used as they are, never copied: writing to the buffer writes to them. They
    count as room to be filled, or, under an `ImmutableDatasetWriter`, as rows.

    Args:
        storage: Tensors `[max_size, *columns, ...]`, the storage's dimensions in front.
        max_size: How many rows it holds; must be what the tensors hold where given.
        device: Where they lie; only checked. "auto" takes them where they are.
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
        self._begin(1, device=device, ndim=ndim)
        structure = Structure.of(storage)
        batch = structure.take_apart(storage, Arrangement(ndim))
        found = leaves_of(batch.cells)
        self._require_views(storage, found)
        count = len(batch.cells)
        if max_size is not None and max_size != count:
            raise ValueError(f"max_size is {max_size}, but the tensors hold {count} rows.")
        self._asked, self._packed_bytes = count, 0  # the caller's tensors lie apart
        schema = self._schema(batch.cells)
        arrays = {field.path: found[field.path] for field in schema.fields}
        self.columns = torch.Size(batch.shape[1:])
        self._take(structure, PlainRows(Rows(schema, None, arrays)), _no_links(count))

    def _begin(self, max_size: int, *, device: Device, ndim: int) -> None:
        super().__init__(max_size, ndim=ndim)
        self.device = device
        self.ids: list[NestedKey] = []
        self.ends: list[NestedKey] = []
        self._index: TrajectoryIndex | None = None
        self._asked = int(max_size)
        self._packed_bytes = PACKED_LEAF_BYTES
        self._one_row: OneRow | None = None
        self._open = True  # what is written next says what rows are like

    @property
    def is_tensordict(self) -> bool:
        """Whether rows are handed out as tensordicts; False before the first write."""
        return self.structure is not None and self.structure.form == "tensordict"

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
        self.require_own()
        if self._open or self.structure is None:
            return self._write(self._make(data, None))
        batch = self.structure.take_apart(data, self.arrangement)
        if self.columns != self.arrangement.columns(batch.shape):
            raise self._other_columns(batch.shape)
        if self.ndim == 1 and self.structure.form == "tensordict" and is_sample(data):
            return self._write(*without_own_marks(batch, self._came(), self._linked().keys))
        return self._write(batch)

    def add(self, data: Any) -> Span:
        """Write one element: one row, or with `ndim` above 1 one for each column.

        Raises:
            KeyError: A leaf that is missing, or that the first rows did not have.
            TypeError: A leaf of another dtype, or data of another structure.
            ValueError: A leaf of another shape.
            OSError: Too little memory or disk.
        """
        if self._one_row is not None and type(data) is TensorDict and not data.batch_size:
            leaves = self._one_row.leaves(data)
            if leaves is not None and not self._open:
                return self._write_one(self._one_row, leaves)
        dim = self.arrangement.dim_extend
        if is_tensor_collection(data):
            self._require_one(data.batch_size)
            rows = data.unsqueeze(dim)
            if not self._open:
                return self.extend(rows)
            self.require_own()
            return self._write(self._make(rows, data.batch_size if self.ndim == 1 else None))
        structure = Structure.of(data)
        parts = structure._leaves(data)
        if structure.form == "tensor":
            return self.extend(next(iter(parts.values())).unsqueeze(dim))
        flat = {path: leaf.unsqueeze(dim) for path, leaf in parts.items()}
        return self.extend(structure.put_together(build(nest(flat), torch.Size())))

    def read(self, positions: torch.Tensor) -> Any:
        """Copy rows out.

        Args:
            positions: int64, any shape, which becomes the batch shape.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        store, structure = self._made()
        cells = store.read(positions if self.on_host else positions.to(self.rows_device))
        return structure.put_together(cells)

    def read_one(self, position: int) -> Any:
        """Copy one row out, without a batch dimension.

        Args:
            position: Where it lies.
        """
        store, structure = self._made()
        return structure.put_together(store.read(position))

    def replace(self, positions: torch.Tensor, data: Any) -> None:
        """Write some or all leaves of rows where they lie.

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
        self.update(positions.reshape(-1), cells.reshape(-1) if cells.ndim != 1 else cells)

    def update_unmarked(self, numbers: torch.Tensor, tensordict: TensorDictBase) -> None:
        """Write the leaves of rows that are no markers where they lie.

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
            self.update(self.ring.positions(numbers), cells)

    def replace_leaf(self, positions: torch.Tensor, key: NestedKey, value: Any) -> None:
        """Write one leaf of rows where they lie.

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
        self.update(positions.reshape(-1), build(nest({field.path: flat}), flat.shape[:1]))

    def empty(self) -> None:
        """Drop every row; what is written next may have other keys."""
        super().empty()
        self._index = None
        self._open = True
        if self.links is not None and self.store is not None:
            self.links.forget()
            self.store.clear()

    def state_dict(self) -> dict[str, Any]:
        """A copy of every row, where the ring stands, and who continues whom."""
        if self._open or self.store is None or self.structure is None:
            return {"rows": None}
        window = self.ring.window()
        numbers = torch.arange(window.first[0], window.first[0] + window.counts[0])
        positions = self.ring.positions(numbers)
        rows = self.store.read(positions.to(self.rows_device), contiguous=True)
        return {
            "rows": rows.to_dict(),
            "back": torch.from_numpy(self._linked().back[positions.numpy()]),
            "first": window.first[0],
            "capacity": self.ring.capacity,
            "columns": list(self.columns),
            "structure": self.structure.to_plain(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what another storage held.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It had another capacity or other keys.
        """
        if state["rows"] is None:
            self.empty()
            return
        back, first = state["back"].numpy(), state["first"]
        cells = TensorDict(state["rows"], batch_size=[len(back)])
        columns, schema = torch.Size(state["columns"]), self._schema(cells)
        capacity = self._capacity(cells, columns)
        if capacity != state["capacity"]:
            raise ValueError(
                f"the state is of a storage of {state['capacity']} rows and this one has "
                f"{capacity}: make one of the same size."
            )
        self.empty()
        structure = Structure.from_plain(state["structure"])
        if self.store is None or _schema_of(self.store) != schema:
            self._take_new(structure, schema, capacity)
        self.structure, self.columns, self._open = structure, columns, False
        store, numbers = self._made()[0], range(first, first + len(back))
        self.ring.restore(numbers.stop, first)
        positions = torch.arange(numbers.start, numbers.stop) % capacity
        store.write(positions, numbers, cells, back)
        self._linked().back[positions.numpy()] = back
        store.settle(numbers)
        self._relink()

    def explain(self) -> list[str]:
        """What is stored, a line each."""
        return storage_lines(self)

    def _make(self, data: Any, element: torch.Size | None) -> Batch:
        """Take the first data apart, and make room for as many rows like them."""
        structure = Structure.of(data, element=element)
        batch = structure.take_apart(data, self.arrangement)
        schema = self._schema(batch.cells)
        columns = self.arrangement.columns(batch.shape)
        capacity = self._capacity(batch.cells, columns)
        self._require_room(batch.extent.count, capacity)
        old = self.store
        if old is not None and _schema_of(old) == schema and len(old) == capacity:
            self.structure = structure
        else:
            self._take_new(structure, schema, capacity)
        self.columns, self._open = columns, False
        return batch

    def _capacity(self, cells: TensorDictBase, columns: torch.Size) -> int:
        if self.device == "auto":
            self.device = next(iter(leaves_of(cells).values())).device
        inner = columns.numel()
        return -(-self._asked // inner) * inner

    def _schema(self, cells: TensorDictBase) -> RowSchema:
        return RowSchema.from_tensordict(cells, packed_bytes=self._packed_bytes)

    def _take_new(self, structure: Structure, schema: RowSchema, capacity: int) -> None:
        back = _no_links(capacity)
        self._take(structure, self._allocate(schema, capacity, back), back)

    def _allocate(self, schema: RowSchema, capacity: int, back: NDArray[np.int32]) -> RowStore:
        raise RuntimeError(
            f"the tensors of this storage hold other rows, not {list(schema)} of which there "
            f"would be {capacity}: make another storage."
        )

    def _take(self, structure: Structure, store: RowStore, back: NDArray[np.int32]) -> None:
        """Stand over new rows."""
        self.structure, self.store, self._open = structure, store, False
        self._one_row = None
        capacity = len(store)
        if self.ring.capacity != capacity:
            after = self.ring.window().first[0] - 1 if self.ring.written else -1
            self.ring = PrivateRing(capacity, after=after)
        self.links = Links(capacity, self._marker_keys(), back=back)
        self._index = None
        self._look_at_device()
        plain = self.ndim == 1 and self.on_host and structure.form == "tensordict"
        if plain and isinstance(store, PlainRows) and not structure.element:
            self._one_row = OneRow(store.rows)

    def _look_at_device(self) -> None:
        kind = torch.device("cpu" if self.device in (None, "auto") else self.device)
        self.rows_device, self.on_host = kind, kind.type == "cpu"

    def _write(self, batch: Batch, marks: MarkerKeys | None = None) -> Span:
        store, _ = self._made()
        links, count = self._linked(), batch.extent.count
        self._require_room(count, self.ring.capacity)
        span = self.ring.reserve(count)
        try:
            found = self._find(links, batch, span, marks or links.keys)
            cells = batch.cells
            if marks is not None:
                cells = cells.exclude(*(key for key in marks.columns if key not in self._came()))
            store.write(span.rows, span.numbers, cells, found.back)
        except (KeyError, TypeError, ValueError, OSError):
            self.ring.cancel()  # all of these come before the first byte is written
            raise
        links.write(span, found)
        self.ring.publish(count)
        store.settle(span.numbers)
        return span

    def _write_one(self, one_row: OneRow, leaves: dict[NestedKey, Any]) -> Span:
        self.require_own()
        links, span = self._linked(), self.ring.reserve(1)
        found = links.find_one(leaves.__getitem__, span.numbers.start)
        one_row.write(span.rows.start, leaves)  # type: ignore[union-attr]  # one row is a slice
        links.write(span, found)
        self.ring.publish(1)
        return span

    def _find(self, links: Links, batch: Batch, span: Span, marks: MarkerKeys) -> Any:
        usual, links.keys = links.keys, marks
        try:
            return links.find(batch.cells, batch.extent, span.numbers)
        except Exception:
            # a marker does not fit: say which, in the words of the schema
            count, fields = batch.extent.count, self._made()[0].schema.fields
            fitting_leaves(batch.cells, fields, torch.Size([count]), exact=True)
            raise
        finally:
            links.keys = usual

    def _came(self) -> RowSchema:
        return _schema_of(self._made()[0])

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

    def _require_room(self, count: int, capacity: int) -> None:
        if count > capacity:
            raise ValueError(
                f"{count} rows do not fit a storage of {capacity}: extend by fewer, or make a "
                "larger one."
            )

    def _require_one(self, batch: torch.Size) -> None:
        """Refuse several elements where one is meant."""
        if self._open and self.ndim == 1:
            return  # the first element says what one is
        inner = self.structure.element if self.structure is not None and not self._open else ()
        if len(batch) != self.ndim - 1 + len(inner):
            raise ValueError(
                f"expected one element of {self.ndim - 1 + len(inner)} batch dimension(s), got "
                f"batch size {list(batch)}: use extend() for several."
            )

    def _other_columns(self, shape: torch.Size) -> ValueError:
        return ValueError(
            f"expected batches with columns {list(self.columns)} behind dimension "
            f"{self.arrangement.dim_extend}, as first stored, got batch size {list(shape)}."
        )

    def _require_views(self, storage: Any, found: dict[tuple[str, ...], torch.Tensor]) -> None:
        if is_tensor_collection(storage):
            given = leaves_of(storage)
        else:
            given = Structure.of(storage)._leaves(storage)
        for path, leaf in found.items():
            if leaf.data_ptr() != given[path].data_ptr() and leaf.numel():
                raise ValueError(
                    f"leaf {path} of shape {list(given[path].shape)} cannot be laid flat without "
                    "a copy: make it contiguous first."
                )


def _no_links(capacity: int) -> NDArray[np.int32]:
    return np.zeros(capacity, dtype=np.int32)


def _schema_of(store: RowStore) -> RowSchema:
    """The leaves of rows as they came, which may lack the next observations."""
    return store.layout.given if isinstance(store, CompactRows) else store.schema
