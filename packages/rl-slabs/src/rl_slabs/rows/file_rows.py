"""Rows of a mapped file that are written into the file, not stored through its mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.dtypes import carrier, name_of
from rl_slabs.memory.lazy_file import LazyFile
from rl_slabs.rows.copy_loop import CopyLoop
from rl_slabs.rows.match import as_cells
from rl_slabs.rows.selection import RowIndex
from rl_slabs.schema import Field, RowSchema
from rl_tensordict.types import KeyPath

LEAST_BYTES = 1 << 16
"""Fewer bytes are stored through the mapping in the time of the calls."""

_BLOCK_BYTES = 1 << 19  # they stay in the cache between being packed here and copied by the kernel


class FileRows:
    """Writes rows for the first time into the file that they are in."""

    # The first store to each page of a mapping is a fault of 2 to 5 us; what is written to the file
    # goes to the same pages of the kernel's cache, many pages a call. Linux keeps both the same.

    def __init__(
        self, file: LazyFile, schema: RowSchema, packed_at: int, large_at: Mapping[KeyPath, int]
    ) -> None:
        # the bytes of the file at which the packed rows begin, and each large leaf
        self._file, self._schema, self._packed_at = file, schema, packed_at
        self._large = [
            (number, field, large_at[field.path])
            for number, field in enumerate(schema.fields)
            if field.offset is None
        ]
        self._new = 0  # rows from here on were not written here yet

    def takes(self, rows: RowIndex, count: int) -> TypeGuard[slice]:
        """Whether rows are neighbours, new and many, so that they are to be written here."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            return False
        many = count * self._schema.nbytes >= LEAST_BYTES
        return many and (rows.start or 0) >= self._new and self._file.is_open

    def write(
        self,
        rows: slice,
        arrays: Sequence[NDArray[Any]],
        tensors: Sequence[torch.Tensor],
        loop: CopyLoop,
    ) -> None:
        """Writes leaves `[count, *shape]`, one for each field of the schema."""
        first, count, descriptor = rows.start or 0, len(arrays[0]), self._file.fileno()
        for number, field, place in self._large:
            leaf = np.ascontiguousarray(arrays[number])
            _write(descriptor, leaf, place + first * field.nbytes)
        if self._schema.row_bytes:
            block = _Block(self._schema, min(count, max(1, _BLOCK_BYTES // self._schema.row_bytes)))
            for begin in range(0, count, len(block)):
                here = slice(begin, min(begin + len(block), count))
                packed = block.of(arrays, tensors, here, loop)
                place = self._packed_at + (first + begin) * self._schema.row_bytes
                _write(descriptor, packed, place)
        self._new = first + count


class _Block:
    """Some packed rows, which leaves are copied into."""

    def __init__(self, schema: RowSchema, count: int) -> None:
        self._schema = schema
        # zeros, so that the bytes that pad a row are
        self._words = np.zeros((count, schema.row_bytes // 8), np.int64)
        self._cells = [
            (number, _cell(self._words, field))
            for number, field in enumerate(schema.fields)
            if field.offset is not None and field.nbytes
        ]

    def __len__(self) -> int:
        return len(self._words)

    def of(
        self,
        arrays: Sequence[NDArray[Any]],
        tensors: Sequence[torch.Tensor],
        here: slice,
        loop: CopyLoop,
    ) -> NDArray[np.int64]:
        """Some rows of leaves, packed."""
        count = here.stop - here.start
        given = [array[here] for array in arrays]
        known = [tensor[here] for tensor in tensors]
        copy = loop.bind(given, known, self._words.ctypes.data, slice(0, count))
        if copy is not None:
            copy()
            return self._words[:count]
        for number, cell in self._cells:
            leaf = given[number]
            opaque = cell.dtype.kind == "V"
            cell[:count] = as_cells(leaf, cell.dtype) if opaque else leaf.reshape(count)
        return self._words[:count]


def _cell(words: NDArray[np.int64], field: Field) -> NDArray[Any]:
    """Where a leaf goes in each row: one opaque item, or the number that it is."""
    kind = np.dtype(name_of(carrier(field.dtype)))
    if field.nbytes != kind.itemsize:
        kind = np.dtype(f"V{field.nbytes}")
    return np.ndarray((len(words),), kind, words.data, field.offset or 0, words.strides[:1])


def _write(descriptor: int, array: NDArray[Any], place: int) -> None:
    """Writes all bytes of an array."""
    rest = array.reshape(-1).view(np.uint8).data
    while rest:
        done = os.pwrite(descriptor, rest, place)
        rest, place = rest[done:], place + done
