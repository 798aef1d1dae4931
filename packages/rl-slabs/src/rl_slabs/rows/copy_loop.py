"""A loop written for a row schema: copies leaves that lie apart into packed rows in one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs.dtypes import carrier, name_of
from rl_slabs.rows.native import Loop, compile_loop
from rl_slabs.schema import RowSchema

LEAST_ROWS = 512
"""Fewer rows are copied leaf by leaf in the time that it takes to collect addresses."""

ROWS_BEFORE_COMPILING = 1 << 20
"""So many rows, in calls of at least `LEAST_ROWS`, lose about the time that compiling takes."""


class CopyLoop:
    """Copies leaves into packed rows, row by row, once enough rows came to compile it."""

    # Leaf by leaf, every cache line of the rows is visited once for each leaf.

    def __init__(self, schema: RowSchema) -> None:
        self._schema = schema
        # number among the fields, dtype as numpy sees it, bytes in one row
        self._leaves = [
            (number, np.dtype(name_of(carrier(field.dtype))), field.nbytes)
            for number, field in enumerate(schema.fields)
            if field.offset is not None
        ]
        self._uncompiled = ROWS_BEFORE_COMPILING
        self._loops: tuple[Loop, Loop] | None = None  # into neighbouring rows, and by index

    @property
    def is_compiled(self) -> bool:
        """Whether enough rows came, and could be compiled for."""
        return self._loops is not None

    def bind(
        self,
        leaves: Sequence[NDArray[Any]],
        tensors: Sequence[torch.Tensor],
        rows: int,
        index: slice | NDArray[np.int64],
    ) -> Callable[[], None] | None:
        """The copy of the packed leaves into rows that exist; None where numpy is to copy them.

        `rows` is the address of row 0. `tensors` are the same leaves, if they are known to fit.
        """
        count = len(leaves[0])
        loops = self._loops if self._uncompiled < 0 else self._loops_after(count)
        apart = isinstance(index, slice) and index.step not in (None, 1)
        if loops is None or count < LEAST_ROWS or apart:
            return None
        held: list[NDArray[Any]] = []
        found = [tensors[number] for number, _, _ in self._leaves] if tensors else []
        if found and all(tensor.is_contiguous() for tensor in found):
            addresses = [tensor.data_ptr() for tensor in found]
        else:
            for number, dtype, nbytes in self._leaves:
                leaf = leaves[number]
                if leaf.dtype != dtype or len(leaf) != count or leaf.nbytes != count * nbytes:
                    return None
                held.append(np.ascontiguousarray(leaf))  # a copy lives as long as `copy` below
            addresses = [leaf.ctypes.data for leaf in held]
        # the loop reads the addresses as it runs: `copy` keeps them
        begin = (ctypes.c_int64 * len(addresses))(*addresses)
        if not isinstance(index, slice):
            index = np.ascontiguousarray(index)

        def copy() -> None:
            if isinstance(index, slice):
                # in bytes, and without an index: rows follow each other
                first = rows + (index.start or 0) * self._schema.row_bytes
                loops[0](first, ctypes.addressof(begin), count, 0)
            else:
                loops[1](rows, ctypes.addressof(begin), count, index.ctypes.data)
            held.clear()

        return copy

    def _loops_after(self, rows: int) -> tuple[Loop, Loop] | None:
        """The loops, compiled once that many rows came."""
        if rows >= LEAST_ROWS:
            left = self._uncompiled - rows
            if left < 0:
                self._loops = _compiled(self._schema)
            self._uncompiled = left
        return self._loops


def _compiled(schema: RowSchema) -> tuple[Loop, Loop] | None:
    straight, by_index = (compile_loop(loop_source(schema, by_index=way)) for way in (False, True))
    return None if straight is None or by_index is None else (straight, by_index)


def loop_source(schema: RowSchema, *, by_index: bool) -> str:
    """The loop over at least one row, as LLVM reads it."""
    # Copies of known sizes become moves of vectors; an address counts as aligned to single bytes.
    fields = [field for field in schema.fields if field.offset is not None]
    begin = [_BEGIN.format(k=k) for k in range(len(fields))]
    copies = [_COPY.format(k=k, offset=f.offset, size=f.nbytes) for k, f in enumerate(fields)]
    return _LOOP.format(
        begin="".join(begin),
        copies="".join(copies),
        place=_BY_INDEX if by_index else _STRAIGHT,
        row_bytes=schema.row_bytes,
    )


_LOOP = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @loop(ptr noalias %rows, ptr noalias %leaves, i64 %count, ptr noalias %index) {{
entry:
  {begin}
  br label %row
row:
  %n = phi i64 [0, %entry], [%next, %row]
  {place}
  %start = mul i64 %at, {row_bytes}
  %here = getelementptr i8, ptr %rows, i64 %start
  {copies}
  %next = add i64 %n, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %row, label %done
done:
  ret void
}}
"""

_BEGIN = """
  %given{k} = getelementptr ptr, ptr %leaves, i64 {k}
  %leaf{k} = load ptr, ptr %given{k}"""

_STRAIGHT = "%at = add i64 %n, 0"

_BY_INDEX = """
  %place = getelementptr i64, ptr %index, i64 %n
  %at = load i64, ptr %place"""

_COPY = """
  %away{k} = mul i64 %n, {size}
  %from{k} = getelementptr i8, ptr %leaf{k}, i64 %away{k}
  %to{k} = getelementptr i8, ptr %here, i64 {offset}
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %to{k}, ptr align 1 %from{k}, i64 {size}, i1 0)"""
