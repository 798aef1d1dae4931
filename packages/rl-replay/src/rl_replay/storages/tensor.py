"""Storage of tensors: structure, bytes, links and trajectories of the rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_replay.checkpoint.contents import Contents, FillRows
from rl_replay.checkpoint.moves import join
from rl_replay.data.resampled import is_sample, without_own_marks
from rl_replay.data.structure import Arrangement, Batch, Extent, Structure, is_time
from rl_replay.edges import edge
from rl_replay.linking.links import NOTHING_COMPARED, Links, Predecessors
from rl_replay.linking.marker_keys import MarkerKeys
from rl_replay.linking.observations import Comparisons
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.casts import with_exact_casts
from rl_replay.storages.explain import storage_lines, warn_of_few_links
from rl_replay.storages.marked import MarkedStorage
from rl_replay.storages.ring import PrivateRing
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_replay.storages.single_row import OneRow
from rl_replay.trajectories.build import PENDING_ROWS
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Rows, RowSchema, Span
from rl_slabs.internals import (
    PACKED_LEAF_BYTES,
    Leaves,
    TensordictReader,
    ValidatedLeaves,
    leaves_of,
    match_leaves,
)
from rl_tensordict import NestedKey, build, nest

_ENOUGH_ROWS, _ENOUGH_CALLS = 1024, 8

Device = torch.device | str | Literal["auto"] | None


class TensorStorage(MarkedStorage):
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

    lossless: bool | list[NestedKey] = False

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
        _require_views(storage, found)
        count = len(batch.cells)
        if max_size is not None and max_size != count:
            raise ValueError(f"max_size is {max_size}, but the tensors hold {count} rows.")
        self._asked, self._packed_bytes = count, 0  # the caller's tensors lie apart
        schema = self._schema(batch.cells)
        arrays = {field.path: found[field.path] for field in schema.fields}
        self.columns = torch.Size(batch.shape[1:])
        self._is_time = structure.is_tensordict and is_time(storage, 0)
        self._take(structure, PlainRows(Rows(schema, None, arrays)), np.zeros(count, np.int32))

    def _begin(self, max_size: int, *, device: Device, ndim: int) -> None:
        super().__init__(max_size, ndim=ndim)
        self.device = device
        self.ids: list[NestedKey] = []
        self.ends: list[NestedKey] = []
        self._index: TrajectoryIndex | None = None
        self.comparisons = Comparisons()
        self._asked = int(max_size)
        self._packed_bytes = PACKED_LEAF_BYTES
        self._plain: TensordictReader | None = None
        self._one_row: OneRow | None = None
        self._watched = False
        self._unindexed = 0  # rows since some were taken into the index
        self._open = True  # what is written next says what rows are like
        self._doubted = False  # whether links may name rows that were never published

    @property
    def is_tensordict(self) -> bool:
        """Whether rows are returned as tensordicts; False before the first write."""
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
        self.sync()
        self.require_own()
        if self._open or self.structure is None:
            return self._write(self._make(data, None))
        known = None if self._plain is None else self._plain.of(data, 1)
        if known is not None and (count := data.batch_size[0]):
            named = self._linked().keys.compares and is_time(data, 0)
            return self._write_leaves(known, Extent(count, 1, count, named))
        batch = self.structure.take_apart(data, self.arrangement)
        if self.ndim > 1 and self.columns != self.arrangement.columns(batch.shape):
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
        self.sync()
        if self._one_row is not None and not self._open:
            row = self._one_row.take(data)
            if row is not None:
                return self._write_one(self._one_row, row)
        known = None if self._open or self._plain is None else self._plain.of(data, 0)
        if known is not None:
            self.require_own()
            one = ValidatedLeaves((key, array[None]) for key, array in known.items())
            return self._write_leaves(one, Extent(1, 1, 1))
        dim = self.arrangement.dim_extend
        if is_tensor_collection(data):
            return self.extend_elements(data.unsqueeze(dim))
        structure = Structure.of(data)
        parts = structure._leaves(data)
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
        if not self._open:
            return self.extend(rows)
        self.require_own()
        return self._write(self._make(rows, element if self.ndim == 1 else None))

    def read(self, positions: torch.Tensor) -> Any:
        """Copies rows.

        Args:
            positions: int64, any shape, which becomes the batch shape.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        store, structure = self._made()
        cells = store.read(positions if self.on_host else positions.to(self.rows_device))
        return structure.put_together(cells)

    def gather(self, positions: torch.Tensor, *, contiguous: bool = False) -> Any:
        """Copies rows that are known to exist.

        Args:
            positions: int64 `[n]`. One out of range may give any row.
            contiguous: Give each leaf memory of its own.

        Raises:
            RuntimeError: Nothing was ever written.
        """
        store, structure = self._made()
        if contiguous or not self.on_host:
            cells = store.read(positions.to(self.rows_device), contiguous=contiguous)
        else:
            cells = store.gather(positions)
        return structure.put_together(cells)

    def read_one(self, position: int) -> Any:
        """Copies one row, without a batch dimension.

        Args:
            position: Its storage position.
        """
        store, structure = self._made()
        return structure.put_together(store.read(position))

    def empty(self) -> None:
        """Drops every row; the next rows may have other keys."""
        try:
            super().empty()
            self._forget()
        except BaseException:
            if not len(self.ring.window()):
                self._forget()
            raise

    def _forget(self) -> None:
        """Drops links, index and overflow slots of dropped rows."""
        self._index = None
        self._open = True
        if self.links is not None and self.store is not None:
            self.links.forget()
            self.store.clear()

    def state_dict(self) -> dict[str, Any]:
        """A copy of every row, the bounds of the ring, and the links."""
        self.sync()
        if self._open or self.store is None or self.structure is None:
            return {"rows": None}
        window = self.ring.window()
        positions = self.ring.positions(window.numbers(torch.arange(len(window))))
        rows = self.store.read(positions.to(self.rows_device), contiguous=True)
        back, index = self.back[positions.numpy()], self.index_state()
        floor = self.floor_since(window)
        order = self.lane_order()
        came = self._came()
        head = Contents(self.structure, came, self.columns, window, index, floor, order)
        links = {"back": torch.from_numpy(back)}  # no arrays, which torch.load takes for pickles
        leaves = {"rows": rows.to_dict(), "came": [list(field.path) for field in came.fields]}
        return head.state(self.ring.capacity) | leaves | links

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
        back = torch.as_tensor(state["back"]).numpy()
        cells = TensorDict(state["rows"], batch_size=[len(back)])
        self._choose_device(cells)
        # a lossless storage adds next observations to rows that came without
        came = [tuple(path) for path in state.get("came", ())] if self.lossless else []
        contents = Contents.of_state(state, self._schema(cells.select(*came) if came else cells))
        room, lanes = self.capacity_for(contents.columns), len(self.ring.window().first)
        contents = contents.in_room(state["capacity"], room, lanes)

        def fill(store: RowStore, links: NDArray[np.int32]) -> None:
            for run in contents.runs():
                positions, behind = run.positions(room // lanes), back[run.rows]
                behind = run.inside(behind) if contents.joins else behind
                links[positions] = behind
                store.write(torch.from_numpy(positions), run.numbers, cells[run.rows], behind)
                store.link_predecessors(run.numbers)

        self.stand(contents, fill)

    def stand(self, contents: Contents, fill: FillRows) -> None:
        """Replaces the contents with restored rows; the former rows are dropped first.

        Nobody can read a row before all of them are there; where that fails there is none.

        Args:
            contents: The rows, and the state of the ring.
            fill: Writes the rows, which are cleared, and their links, which are 0.

        Raises:
            ValueError: They do not fit.
            OSError: Too little memory or disk.
        """
        self.empty()
        try:
            self._fill(contents, fill)
        except BaseException:
            self.empty()
            raise

    def _fill(self, contents: Contents, fill: FillRows) -> None:
        if self.store is None or _schema_of(self.store) != contents.schema:
            self._take_new(contents.structure, contents.schema, contents.columns)
        self.structure, self.columns, self._open = contents.structure, contents.columns, False
        links, (first,), (count,) = self._linked(), contents.window.first, contents.window.counts
        links.back[:] = 0
        self._fill_rows(contents, fill, links.back)
        self.ring.restore(first + count, first)
        self._relink()
        if contents.index is not None:
            index = TrajectoryIndex(self.ring.capacity)
            index.restore(contents.index)
            self._index = index
        self._take_into_index()

    def _fill_rows(self, contents: Contents, fill: FillRows, back: NDArray[np.int32]) -> None:
        """Write rows and links; those of several lanes may go on in each other then."""
        store, _ = self._made()
        fill(store, back)
        if contents.joins:
            join(contents.runs(), store, self._linked().keys, back, len(contents.window.first))

    def explain(self) -> list[str]:
        """What is stored, a line each."""
        return storage_lines(self)

    def _make(self, data: Any, element: torch.Size | None) -> Batch:
        """Reads the structure of the first data, and allocates rows for it."""
        structure = Structure.of(data, element=element)
        batch = structure.take_apart(data, self.arrangement)
        schema, columns = self._schema(batch.cells), self.arrangement.columns(batch.shape)
        self._choose_device(batch.cells)
        capacity = self.capacity_for(columns)
        self._require_room(batch.extent.count, capacity // len(self.ring.window().first))
        old = None if self.is_shared else self.store  # others know the contents as they were
        if old is not None and _schema_of(old) == schema and len(old) == capacity:
            self.structure = structure
        else:
            self._take_new(structure, schema, columns)
        self.columns, self._open = columns, False
        return batch

    def capacity_for(self, columns: torch.Size) -> int:
        """The capacity in rows with such columns.

        Example:
            >>> from rl_replay import LazyTensorStorage
            >>> LazyTensorStorage(100, ndim=2).capacity_for(torch.Size([3]))
            102
        """
        inner = columns.numel()
        return -(-self._asked // inner) * inner

    def _choose_device(self, cells: TensorDictBase) -> None:
        if self.device == "auto":
            self.device = next(iter(leaves_of(cells).values())).device

    def _schema(self, cells: TensorDictBase) -> RowSchema:
        return RowSchema.from_tensordict(cells, packed_bytes=self._packed_bytes)

    def _take_new(self, structure: Structure, schema: RowSchema, columns: torch.Size) -> None:
        capacity = self.capacity_for(columns)
        back = np.zeros(capacity, np.int32)
        self._take(structure, self._allocate(schema, capacity, back), back)

    def _allocate(self, schema: RowSchema, capacity: int, back: NDArray[np.int32]) -> RowStore:
        raise RuntimeError(
            f"the tensors of this storage hold other rows, not {list(schema)} of which there "
            f"would be {capacity}: make another storage."
        )

    def _take(self, structure: Structure, store: RowStore, back: NDArray[np.int32]) -> None:
        """Replaces the row store, and all that depends on it."""
        self.store = None  # until all that belongs to it is made
        self.structure = structure
        self._watched = isinstance(store, LosslessRows)
        self._plain = self._one_row = None
        capacity = len(store)
        if self.ring.capacity != capacity:
            # row ids continue, so that ids of former rows are refused
            after = self.ring.window().first[0] - 1 if self.ring.written else -1
            self.ring = PrivateRing(capacity, after=after)
        self.links = Links(self.ring.span_limit, self._marker_keys(store.schema), back=back)
        self._index = None
        self._look_at_device()
        plain = self.ndim == 1 and self.on_host and structure.form == "tensordict"
        misses = isinstance(store, LosslessRows) and store.layout.may_miss
        if plain and not misses and not structure.element:
            self._plain = TensordictReader(_schema_of(store))
            if isinstance(store, PlainRows):
                self._one_row = OneRow(store.rows, self._plain)
        self.store, self._open = store, False

    def _look_at_device(self) -> None:
        kind = torch.device("cpu" if self.device in (None, "auto") else self.device)
        self.rows_device, self.on_host = kind, kind.type == "cpu"

    def _write(self, batch: Batch, marks: MarkerKeys | None = None) -> Span:
        leaves = with_exact_casts(leaves_of(batch.cells), self._came())
        return self._write_leaves(leaves, batch.extent, marks)

    def _write_leaves(
        self, leaves: Leaves | ValidatedLeaves, extent: Extent, marks: MarkerKeys | None = None
    ) -> Span:
        store, _ = self._made()
        count = extent.count
        self._require_room(count, self.ring.span_limit)
        links = self._begin_write(count)
        touches, span, keys = store.touches, None, links.keys
        try:
            span = self.ring.reserve(count)
            found = self._find(links, leaves, extent, span, marks)
            if marks is not None and isinstance(leaves, Leaves):
                new = {path for key, path in marks.paths if key not in self._came()}
                leaves = Leaves((path, leaf) for path, leaf in leaves.items() if path not in new)
            # order: bytes, links, publication, links of older rows; a reader sees only published
            # rows
            store.write(span.rows, span.numbers, leaves, found.back)
            self._doubt_links()
            links.write(span, found)
            self._before_publish()
            self.ring.publish(count)
            store.link_predecessors(span.numbers)
            self._published(span, found)
        except BaseException:
            links.keys = keys
            self._recover(span, touched=store.touches != touches)
            raise
        finally:
            self._end_write()
        if found.contradictions is not NOTHING_COMPARED:
            self.comparisons.add(found.contradictions)
        if self._watched:
            self._watch(store, count)
        return span

    def _watch(self, store: RowStore, count: int) -> None:
        """Warns once, after enough rows, if lossless storage saves little."""
        # rows of the last calls may still wait for the ones that continue them
        if self.ring.written >= max(_ENOUGH_ROWS, _ENOUGH_CALLS * count):
            self._watched = False
            if isinstance(store, LosslessRows):
                warn_of_few_links(store, len(self.ring.window()))

    def _write_one(self, one_row: OneRow, row: ValidatedLeaves) -> Span:
        self.require_own()
        links = self._begin_write(1)
        span, touched = None, False
        try:
            span = self.ring.reserve(1)
            found = links.match_one(row.__getitem__, span.numbers.start)
            # from here on the old row may be gone
            touched = True
            one_row.write(span.rows.start)  # type: ignore[union-attr]  # one row is a slice
            self._doubt_links()
            links.write(span, found)
            self.ring.publish(1)
            self._published(span, found)
        except BaseException:
            self._recover(span, touched=touched)
            raise
        finally:
            self._end_write()
        return span

    def _recover(self, span: Span | None, *, touched: bool) -> None:
        """Restores a consistent state after a write that was refused or interrupted.

        Where no byte was written the old rows can be read again. Else they are gone: the ring
        never gives out that they stand. What the links had taken over is learned anew.
        """
        store, _ = self._made()
        if span is not None and not touched:
            self.ring.cancel()
        elif span is not None:
            published = bool(self.ring.is_live(torch.tensor([span.numbers.stop - 1]))[0])
            store.repair(span.numbers, published=published)
            if not published:
                self._relearn()
        self._doubted = False
        self._open = not len(self.ring.window())

    def _relearn(self) -> None:
        """Rebuilds the open trajectories from the stored rows."""
        self._doubted = True
        self._linked().forget()
        self._relink()
        self._doubted = False

    def _begin_write(self, count: int) -> Links:
        """Acquires what a write needs; shared storages claim a lane."""
        if self._doubted:
            self._relearn()
        return self._linked()

    def _doubt_links(self) -> None:
        """Marks links for relearning, unless this write ends or is recovered from."""
        self._doubted = True

    def _before_publish(self) -> None:
        """Publishes facts that readers of the new rows need first."""

    def _published(self, span: Span, found: Predecessors) -> None:
        """Indexes published rows, in batches."""
        self._doubted = False
        if self._indexed:
            self._unindexed += len(span.numbers)
            if self._unindexed >= PENDING_ROWS:
                self._unindexed = 0
                self._take_into_index()

    def _end_write(self) -> None:
        """Releases what `_begin_write` acquired."""

    def _find(
        self,
        links: Links,
        leaves: Leaves | ValidatedLeaves,
        extent: Extent,
        span: Span,
        marks: MarkerKeys | None,
    ) -> Predecessors:
        usual = links.keys
        if marks is not None:
            links.keys = marks
        try:
            return links.match(leaves, extent, span.numbers)
        except Exception:
            if isinstance(leaves, ValidatedLeaves):
                raise
            # a marker does not fit: say which, in the words of the schema
            fields = self._made()[0].schema.fields
            match_leaves(leaves, fields, torch.Size([extent.count]), exact=True)
            raise
        finally:
            links.keys = usual

    def _came(self) -> RowSchema:
        return _schema_of(self._made()[0])

    def _require_room(self, count: int, limit: int) -> None:
        if count > limit:
            lanes = len(self.ring.window().first)
            what = "a storage" if lanes == 1 else f"one of the {lanes} lanes of a storage, each"
            raise ValueError(
                f"{count} rows do not fit {what} of {limit}: extend by fewer, or make a larger one."
            )

    def _require_one(self, batch: torch.Size) -> None:
        """Raises if data are several elements rather than one."""
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
            f"expected batches with columns {list(self.columns)} after dimension "
            f"{self.arrangement.dim_extend}, as first stored, got batch size {list(shape)}."
        )


def _require_views(storage: Any, found: dict[tuple[str, ...], torch.Tensor]) -> None:
    collection = is_tensor_collection(storage)
    given = leaves_of(storage) if collection else Structure.of(storage)._leaves(storage)
    for path, leaf in found.items():
        if leaf.data_ptr() != given[path].data_ptr() and leaf.numel():
            raise ValueError(
                f"leaf {path} of shape {list(given[path].shape)} cannot be laid flat without a "
                "copy: make it contiguous first."
            )


def _schema_of(store: RowStore) -> RowSchema:
    """The leaves of rows as they were given, possibly without next observations."""
    return store.layout.given if isinstance(store, LosslessRows) else store.schema
