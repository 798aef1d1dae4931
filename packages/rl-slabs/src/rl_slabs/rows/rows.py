"""Rows of one schema in memory: read, written and looked at as TensorDicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_slabs.arguments import as_device, key_list, positive
from rl_slabs.dtypes import carrier
from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.memory.memory import Memory
from rl_slabs.rows.block import RowBlock
from rl_slabs.rows.copy_loop import CopyLoop
from rl_slabs.rows.file_rows import FileRows
from rl_slabs.rows.match import as_cells, bits_of, match_fields
from rl_slabs.rows.selection import RowIndex, Selection, require_inside, select
from rl_slabs.rows.tensordict_leaves import ValidatedLeaves
from rl_slabs.rows.unpack import Plan
from rl_slabs.schema import RowSchema
from rl_tensordict import Leaves, as_tensor
from rl_tensordict.types import KeyPath, NestedKey

PARALLEL_ITEMS = 32768
"""From so many items on torch gathers with several threads; below it numpy takes half its time."""

ALIGNMENT = 64
"""Own arrays begin at multiples of this many bytes: a cache line."""


# from here on it pays to see a leaf's row as one opaque item, which takes 1 us a leaf
_ROWS_FOR_CELLS = 256

# so many bytes of packed rows stay in the cache while leaf after leaf is written into them; fewer
# rows cost more in calls than they save
_BLOCK_BYTES = 1 << 19
_ROWS_OF_BLOCK = 256


class Rows:
    """Rows of one schema: one packed tensor, and one tensor for each large leaf.

    The memory is zeroed when it is made. Nothing here locks: who writes while others read uses
    `Lanes`.

    Attributes:
        schema: What each row holds.
        packed: The packed leaves, `[rows, schema.row_bytes / 8]`, int64; None if no leaf is packed.
        arrays: The large leaves by path, each `[rows, *shape]`.
        touches: How many writes have changed a byte or were about to: one that was refused or
            interrupted before leaves it as it was.

    Example:
        >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
        >>> rows.write(2, TensorDict({"reward": torch.ones(1)}))
        >>> rows.read(slice(1, 4))["reward"].squeeze(-1)
        tensor([0., 1., 0.])
    """

    def __init__(
        self,
        schema: RowSchema,
        packed: torch.Tensor | None,
        arrays: dict[KeyPath, torch.Tensor],
    ) -> None:
        self.schema = schema
        self.packed = packed
        self.arrays = arrays
        self.touches = 0
        self._count = next(len(t) for t in (packed, *arrays.values()) if t is not None)
        self._words = packed.numpy() if packed is not None and packed.is_cpu else None
        self._whole = Plan(schema, schema.fields)
        self._unpack = self._whole.unpack[True, False]
        self._parts: dict[tuple[NestedKey, ...], Plan] = {}
        live = self.view()
        # leaf by leaf in the order of the schema's fields, in dtypes that can be moved
        self._views: dict[KeyPath, torch.Tensor] = {
            field.path: live.get(field.key).view(carrier(field.dtype)) for field in schema.fields
        }
        self._columns: dict[KeyPath, NDArray[Any]] = {
            path: view.numpy() for path, view in self._views.items() if view.is_cpu
        }
        self._whole.attach(self._columns)
        self._loop = CopyLoop(schema, self._count)
        self._file: FileRows | None = None  # where new rows are written
        self._address = 0 if self._words is None else self._words.ctypes.data

    @classmethod
    def zeros(
        cls, schema: RowSchema, count: int, *, device: torch.device | str | None = None
    ) -> Self:
        """New rows of zeros, in private memory that is touched now rather than later.

        Args:
            schema: What each row holds.
            count: How many rows.
            device: Where; the CPU unless given.

        Raises:
            ValueError: `count` is below 1.

        Example:
            >>> len(Rows.zeros(RowSchema({"done": (torch.bool, (1,))}), 3))
            3
        """
        count = positive(count, "count")
        if torch.device(device or "cpu").type == "cpu":
            memory = Memory.private(max(1, cls.bytes_for(schema, count)))
            return cls.over(schema, count, memory.array)
        words = torch.zeros(count, schema.row_bytes // 8, dtype=torch.int64, device=device)
        arrays = {
            field.path: torch.empty(count, *field.shape, dtype=field.dtype, device=device).zero_()
            for field in schema.large
        }
        return cls(schema, words if schema.packed else None, arrays)

    @classmethod
    def over(
        cls,
        schema: RowSchema,
        count: int,
        memory: NDArray[np.uint8],
        *,
        file: LazyFile | None = None,
        offset: int = 0,
    ) -> Self:
        """Rows that live in memory made elsewhere, which they keep alive.

        Args:
            schema: What each row holds.
            count: How many rows.
            memory: At least `Rows.bytes_for(schema, count)` bytes, `[bytes]`, aligned to 64.
            file: The file on a disk that it maps: new rows are written there many at a time, which
                spares a fault for each page.
            offset: The byte of the file that the memory begins at.

        Example:
            >>> schema = RowSchema({"done": (torch.bool, (1,))})
            >>> memory = np.zeros(Rows.bytes_for(schema, 3), dtype=np.uint8)
            >>> len(Rows.over(schema, 3, memory))
            3
        """
        count = positive(count, "count")
        flat = torch.from_numpy(memory)
        packed, arrays, start = None, {}, 0
        if schema.packed:
            start = count * schema.row_bytes
            # int64 [rows, words]: a row is a whole number of words
            packed = flat[:start].view(torch.int64).view(count, schema.row_bytes // 8)
        for field in schema.large:
            start = aligned(start)
            piece = flat[start : start + count * field.nbytes]
            arrays[field.path] = piece.view(field.dtype).view(count, *field.shape)
            start += count * field.nbytes
        rows = cls(schema, packed, arrays)
        if file is not None:
            places = {path: offset + t.data_ptr() - flat.data_ptr() for path, t in arrays.items()}
            # blocks are packed in the cache: nothing is to go around it
            rows._file, rows._loop = FileRows(file, schema, offset, places), CopyLoop(schema, 0)
        return rows

    @staticmethod
    def bytes_for(schema: RowSchema, count: int) -> int:
        """Bytes that `count` rows take, the gaps before own arrays included.

        Example:
            >>> Rows.bytes_for(RowSchema({"done": (torch.bool, (1,))}), 3)
            24
        """
        end = count * schema.row_bytes
        for field in schema.large:
            end = aligned(end) + count * field.nbytes
        return end

    def __len__(self) -> int:
        return self._count

    def read(
        self,
        rows: RowIndex,
        *,
        keys: Sequence[NestedKey] | None = None,
        contiguous: bool = False,
        device: torch.device | str | None = None,
    ) -> TensorDict:
        """A copy of some rows: one gather of the packed row, one for each large leaf.

        The leaves are views into the gathered rows, so they are not contiguous, but each has its
        own version counter. Keeping one of them keeps the rows.

        Args:
            rows: One row, a slice, or int64 rows of any shape, on the device of these rows.
            keys: The leaves or groups wanted; all of them unless given.
            contiguous: Copy each leaf to memory of its own, as in-place writes under
                `torch.compile` need.
            device: Where the result goes, in one copy of the packed rows.

        Returns:
            `[]` for one row, `[M]` for a slice, else the shape of `rows`.

        Raises:
            ValueError: A row out of range.
            TypeError: `rows` is no index.
            KeyError: An unknown key.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> rows.read(torch.tensor([[4, 0, 2]]))["reward"].shape
            torch.Size([1, 3, 1])
        """
        plan = self._whole if keys is None else self._part(key_list(keys))
        index, shape = select(rows, self._count)
        device = None if device is None else as_device(device)
        # by the carrier, since index_select is not there for every dtype on every device
        arrays = [
            self._gather(self._views[path], index, shape).view(dtype) for path, dtype in plan.large
        ]
        packed: Any = self._packed_rows(index, shape) if plan.packed else None
        if device is not None:
            packed = None if packed is None else as_tensor(packed).to(device)
            arrays = [array.to(device) for array in arrays]
        return plan.unpack[isinstance(packed, np.ndarray), contiguous](packed, arrays, shape)

    def gather(self, rows: torch.Tensor) -> TensorDict:
        """What `read` returns, of rows that are known to be there.

        Args:
            rows: int64 `[n]`. One out of range may give any row.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> rows.gather(torch.tensor([4, 0]))["reward"].shape
            torch.Size([2, 1])
        """
        plan, words = self._whole, self._words
        if words is None or plan.large:
            return self.read(rows)
        return self._unpack(take_known_rows(words, rows.numpy()), [], rows.shape)

    def block(self, count: int) -> RowBlock:
        """Room for copies of `count` rows of this schema, which `gather_into` fills.

        Args:
            count: How many rows.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> block = rows.block(3)
            >>> for start, some in ((0, [4, 0]), (2, [1])):
            ...     rows.gather_into(torch.tensor(some), block, start)
            >>> block.tensordict(torch.Size([3]))["reward"].shape
            torch.Size([3, 1])
        """
        return RowBlock(self.schema, self._whole, count)

    def gather_into(self, rows: torch.Tensor, block: RowBlock, start: int) -> None:
        """Copies rows that are known to be there into a block of the same schema, on the CPU.

        Args:
            rows: int64 `[n]`. One out of range may give any row.
            block: What `block` of any rows of this schema returned.
            start: The place of the first of them in the block.
        """
        stop = start + len(rows)
        if self._words is not None and block.words is not None:
            room = block.words[start:stop]
            if room.size < PARALLEL_ITEMS:
                # without a mode numpy makes another copy
                self._words.take(rows.numpy(), 0, out=room, mode="clip")
            else:
                words = torch.from_numpy(self._words)
                torch.index_select(words, 0, rows, out=torch.from_numpy(room))
        for (path, _), array in zip(self._whole.large, block.arrays, strict=True):
            torch.index_select(self._views[path], 0, rows, out=array[start:stop])

    def write(
        self,
        rows: RowIndex,
        source: TensorDictBase | Leaves | ValidatedLeaves,
        *,
        keys: Sequence[NestedKey] | None = None,
    ) -> None:
        """Copy a tensordict into some rows. Everything is checked before anything is written.

        Args:
            rows: One row, a slice, or int64 rows of any shape, each row at most once.
            source: Leaves `[*B, *shape]`, B the shape of `rows`; no live view of these rows.
                `ValidatedLeaves` ones, of one batch dimension, are not checked again.
            keys: The leaves or groups to write, others in `source` being left alone. Unless
                given, `source` must have exactly the leaves of the schema.

        Raises:
            ValueError: A row out of range, or a leaf of another shape.
            TypeError: A leaf of another dtype, or `rows` is no index.
            KeyError: A leaf that is missing, or that the schema does not know.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> rows.write(slice(0, 2), TensorDict({"reward": torch.ones(2, 1)}))
        """
        index, shape = select(rows, self._count)
        if isinstance(index, torch.Tensor):
            require_inside(index, self._count)
        plan = self._whole if keys is None else self._part(key_list(keys))
        if type(source) is ValidatedLeaves:
            arrays = [source[key] for key in plan.keys]
            self._write_on_cpu(index, plan, arrays, () if keys else source.tensors)
        else:
            leaves = match_fields(source, plan.fields, shape, exact=keys is None)
            self._put(index, shape, plan, leaves)

    def put(
        self,
        rows: slice | torch.Tensor,
        leaves: ValidatedLeaves | Sequence[torch.Tensor] | Sequence[NDArray[Any]],
    ) -> None:
        """What `write` does, of leaves that are known to fit.

        Args:
            rows: A slice without negative ends, or int64 rows `[n]` that are there.
            leaves: One for each field of the schema, in its order, `[n, *shape]`. On the CPU also
                arrays of the dtypes that `columns` has, or all of them as `ValidatedLeaves`.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
            >>> rows.put(slice(0, 2), [torch.ones(2, 1)])
            >>> rows.put(slice(2, 3), [np.ones((1, 1), np.float32)])
        """
        if isinstance(leaves, ValidatedLeaves):
            known = [leaves[key] for key in self._whole.keys]
            self._write_on_cpu(rows, self._whole, known, leaves.tensors)
            return
        arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if arrays:
            self._write_on_cpu(rows, self._whole, arrays)
        else:
            self._put(rows, torch.Size([len(tensors[0])]), self._whole, tensors)

    @property
    def is_compiled(self) -> bool:
        """Whether large writes are copied by a compiled loop, as after a million rows with numba.

        Example:
            >>> Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 2).is_compiled
            False
        """
        return self._loop.is_compiled

    def view(self) -> TensorDict:
        """All rows as live views: writing to a leaf in place writes the rows.

        Returns:
            `[rows]`; a new TensorDict each time, over the same memory.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 2)
            >>> rows.view()["reward"][1] = 3
            >>> rows.read(1)["reward"]
            tensor([3.])
        """
        return self._whole.unpack[False, False](
            self.packed, list(self.arrays.values()), torch.Size([self._count])
        )

    def columns(self) -> dict[NestedKey, NDArray[Any]]:
        """One numpy array for each leaf, `[rows, *shape]`, live: the quickest way to write a row.

        A dtype that numpy lacks appears as integers of its size (bfloat16 as int16).

        Raises:
            TypeError: The rows are not on the CPU.

        Example:
            >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 2)
            >>> rows.columns()["reward"][1] = 3
            >>> rows.read(1)["reward"]
            tensor([3.])
        """
        if not self._columns:
            raise TypeError("numpy sees rows on the CPU only: use view() on these.")
        return {field.key: self._columns[field.path] for field in self.schema.fields}

    def _part(self, keys: tuple[NestedKey, ...]) -> Plan:
        if keys not in self._parts:
            if not keys:
                raise ValueError("keys is empty: name at least one leaf, or leave keys out.")
            plan = Plan(self.schema, self.schema.select(keys))
            plan.attach(self._columns)
            self._parts[keys] = plan  # whole: an interrupt before leaves none
        return self._parts[keys]

    def _packed_rows(
        self, index: int | slice | torch.Tensor, shape: torch.Size
    ) -> NDArray[np.int64] | torch.Tensor:
        """A copy of packed rows, on the CPU by numpy."""
        assert self.packed is not None  # the plan wants some of its leaves
        if self._words is None:
            return self._gather(self.packed, index, shape)
        words = take_rows(self._words, index)
        whole = words.ndim == len(shape) + 1
        return words if whole else words.reshape(*shape, words.shape[-1])

    def _gather(
        self, array: torch.Tensor, index: int | slice | torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        if not isinstance(index, torch.Tensor):
            return array[index].clone()
        try:
            found = array.index_select(0, index)
        except IndexError:
            require_inside(index, self._count)
            raise
        return found if len(shape) == 1 else found.view(shape + array.shape[1:])

    def _put(
        self,
        index: int | slice | torch.Tensor,
        shape: torch.Size,
        plan: Plan,
        leaves: Sequence[torch.Tensor],
    ) -> None:
        if not self._columns:
            self._write_on_device((index, shape), plan, leaves)
            return
        arrays = [bits_of(leaf, dtype) for (_, dtype), leaf in zip(plan.moves, leaves, strict=True)]
        if len(shape) != 1 and not isinstance(index, int):
            count = shape.numel()
            arrays = [array.reshape(count, *array.shape[len(shape) :]) for array in arrays]
        self._write_on_cpu(index, plan, arrays)

    def _write_on_cpu(
        self,
        index: int | slice | torch.Tensor,
        plan: Plan,
        arrays: Sequence[NDArray[Any]],
        tensors: Sequence[torch.Tensor] = (),
    ) -> None:
        # numpy, because torch's copy_ takes 3 us a leaf and, where other processes want the
        # cores, milliseconds until its threads have met
        count = 1 if isinstance(index, int) else len(arrays[0])
        place = index.numpy() if isinstance(index, torch.Tensor) else index
        if count < _ROWS_FOR_CELLS:
            self.touches += 1
            for column, array in zip(plan.columns, arrays, strict=True):
                column[place] = array
            return
        copy, file = None, self._file
        if file is not None and plan is self._whole and file.takes(place, count):
            self.touches += 1
            file.write(place, arrays, tensors, self._loop)
            return
        if plan is self._whole and self._words is not None and not isinstance(place, int):
            copy = self._loop.bind(arrays, tensors, self._address, place)
        moves = [
            (cell, as_cells(arrays[number], cell.dtype) if opaque else arrays[number])
            for number, cell, opaque in plan.widest_first
            if copy is None or plan.fields[number].offset is None
        ]
        self.touches += 1
        if copy is not None:
            copy()
        block = max(_ROWS_OF_BLOCK, _BLOCK_BYTES // max(1, self.schema.row_bytes))
        if not isinstance(index, slice) or index.step not in (None, 1) or count <= block:
            for cell, array in moves:
                cell[place] = array
            return
        start = index.start
        for begin in range(0, count, block):
            end = min(begin + block, count)
            there, here = slice(start + begin, start + end), slice(begin, end)
            for cell, array in moves:
                cell[there] = array[here]

    def _write_on_device(
        self, chosen: Selection, plan: Plan, leaves: Sequence[torch.Tensor]
    ) -> None:
        index, _ = chosen
        self.touches += 1
        for (path, dtype), leaf in zip(plan.moves, leaves, strict=True):
            live = self._views[path]
            bits = leaf.detach().view(dtype)
            if isinstance(index, torch.Tensor):
                live[index] = bits.reshape(-1, *live.shape[1:]).to(live.device)
            else:
                live[index].copy_(bits)


def aligned(end: int) -> int:
    """The next aligned offset for an own array."""
    return -(-end // ALIGNMENT) * ALIGNMENT


def take_rows(words: NDArray[np.int64], index: int | slice | torch.Tensor) -> NDArray[np.int64]:
    """Copies packed rows."""
    if not isinstance(index, torch.Tensor):
        return words[index].copy()
    places = index.numpy()
    # numpy would count a row below 0 from the end; all bits together are negative if one of them is
    if np.bitwise_or.reduce(places) < 0:
        require_inside(index, len(words))
    try:
        return take_known_rows(words, places)
    except IndexError:
        require_inside(index, len(words))
        raise


def take_known_rows(words: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Copies packed rows without checks for negative indices."""
    if places.size * words.shape[1] < PARALLEL_ITEMS:
        return words.take(places, 0)
    found = torch.from_numpy(words).index_select(0, torch.from_numpy(places))
    gathered: NDArray[np.int64] = found.numpy()
    return gathered
