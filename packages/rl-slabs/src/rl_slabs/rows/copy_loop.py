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

BYTES_TO_STREAM = 1 << 25
"""Rows of so many bytes in all outgrow the caches: what is written to them goes around these."""

_BLOCK_BYTES = 1 << 13  # of a quarter of the smallest cache: packed there, then streamed


class CopyLoop:
    """Copies leaves into packed rows, row by row, once enough rows came to compile it."""

    # Leaf by leaf, every cache line of the rows is visited once for each leaf.

    def __init__(self, schema: RowSchema, capacity: int) -> None:
        self._schema = schema
        self._streams = capacity * schema.row_bytes >= BYTES_TO_STREAM
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
        """The copy of the packed leaves into rows that exist; None if numpy is to copy them.

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
                self._loops = _compiled(self._schema, streams=self._streams)
            self._uncompiled = left
        return self._loops


def _compiled(schema: RowSchema, *, streams: bool) -> tuple[Loop, Loop] | None:
    sources = loop_source(schema, streams=streams), loop_source(schema, by_index=True)
    straight, by_index = map(compile_loop, sources)
    return None if straight is None or by_index is None else (straight, by_index)


def loop_source(schema: RowSchema, *, by_index: bool = False, streams: bool = False) -> str:
    """The loop over at least one row, as LLVM reads it; it `streams` into neighbouring rows."""
    # Copies of known sizes become moves of vectors; an address counts as aligned to single bytes.
    fields = [field for field in schema.fields if field.offset is not None]
    begin = [_BEGIN.format(k=k) for k in range(len(fields))]
    copies = [_COPY.format(k=k, offset=f.offset, size=f.nbytes) for k, f in enumerate(fields)]
    used = max(f.offset + f.nbytes for f in fields if f.offset is not None)
    if streams and used < schema.row_bytes:
        copies.append(_PAD.format(offset=used, size=schema.row_bytes - used))
    rows = max(1, _BLOCK_BYTES // schema.row_bytes)
    return (_STREAMS if streams else _LOOP).format(
        begin="".join(begin),
        copies="".join(copies),
        place=_BY_INDEX if by_index else _STRAIGHT,
        row_bytes=schema.row_bytes,
        block=rows,
        block_bytes=rows * schema.row_bytes + 2 * 64,  # what the lines of both ends hold besides
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

# A block of rows is packed on the stack, then written by moves of 32 bytes that load no cache line
# of the rows. Only whole lines are written so: what a block begins of its last line goes to the
# front of the next block; words of 8 bytes fill the first line of all and the last one. The fence
# keeps the count of published rows from being visible before the rows.
_STREAMS = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define void @loop(ptr noalias %rows, ptr noalias %leaves, i64 %count, ptr noalias %index) {{
entry:
  %block = alloca [{block_bytes} x i8], align 64
  {begin}
  %address = ptrtoint ptr %rows to i64
  %lead = and i64 %address, 63
  %back = sub i64 0, %lead
  %line = getelementptr i8, ptr %rows, i64 %back
  br label %pack
pack:
  %first = phi i64 [0, %entry], [%end, %carry]
  %goal = phi ptr [%line, %entry], [%goal_after, %carry]
  %filled = phi i64 [%lead, %entry], [%over, %carry]
  %full = add i64 %first, {block}
  %is_last = icmp sge i64 %full, %count
  %end = select i1 %is_last, i64 %count, i64 %full
  %begun = getelementptr i8, ptr %block, i64 %filled
  br label %row
row:
  %n = phi i64 [%first, %pack], [%next, %row]
  %at = sub i64 %n, %first
  %start = mul i64 %at, {row_bytes}
  %here = getelementptr i8, ptr %begun, i64 %start
  {copies}
  %next = add i64 %n, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %row, label %filling
filling:
  %many = sub i64 %end, %first
  %bytes = mul i64 %many, {row_bytes}
  %size = add i64 %filled, %bytes
  %lines = and i64 %size, -64
  %is_first = icmp eq i64 %first, 0
  %has_lead = icmp ne i64 %lead, 0
  %leads = and i1 %is_first, %has_lead
  %is_short = icmp slt i64 %size, 64
  %lead_end = select i1 %is_short, i64 %size, i64 64
  br i1 %leads, label %word, label %whole
word:
  %done = phi i64 [%lead, %filling], [%done_next, %word], [%lines_done, %tail]
  %until = phi i64 [%lead_end, %filling], [%until, %word], [%size, %tail]
  %from = getelementptr i8, ptr %block, i64 %done
  %to = getelementptr i8, ptr %goal, i64 %done
  %bits = load i64, ptr %from, align 8
  store i64 %bits, ptr %to, align 8
  %done_next = add i64 %done, 8
  %words_left = icmp slt i64 %done_next, %until
  br i1 %words_left, label %word, label %whole
whole:
  %written = phi i64 [0, %filling], [%done_next, %word]
  %has_lines = icmp slt i64 %written, %lines
  br i1 %has_lines, label %vector, label %rest
vector:
  %moved = phi i64 [%written, %whole], [%moved_next, %vector]
  %source = getelementptr i8, ptr %block, i64 %moved
  %target = getelementptr i8, ptr %goal, i64 %moved
  %lanes = load <4 x i64>, ptr %source, align 32
  store <4 x i64> %lanes, ptr %target, align 32, !nontemporal !0
  %moved_next = add i64 %moved, 32
  %goes_on = icmp slt i64 %moved_next, %lines
  br i1 %goes_on, label %vector, label %rest
rest:
  %lines_done = phi i64 [%written, %whole], [%moved_next, %vector]
  br i1 %is_last, label %tail, label %carry
carry:
  %over = sub i64 %size, %lines
  %goal_after = getelementptr i8, ptr %goal, i64 %lines
  %last_line = getelementptr i8, ptr %block, i64 %lines
  %kept = load <8 x i64>, ptr %last_line, align 64
  store <8 x i64> %kept, ptr %block, align 64
  br label %pack
tail:
  %has_tail = icmp slt i64 %lines_done, %size
  br i1 %has_tail, label %word, label %fence
fence:
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
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

_PAD = """
  %pad = getelementptr i8, ptr %here, i64 {offset}
  call void @llvm.memset.p0.i64(ptr align 1 %pad, i8 0, i64 {size}, i1 0)"""
