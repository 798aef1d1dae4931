"""A linear recurrence over rows, cut into chunks: totals of the chunks, then every row.

Step u of the scan, y(u) = b(u) + a(u) y(u - 1), is the triple (a, b, cut), and cut where a is 0.
Chunks are numbered in the order of the scan, from the last row to the first. A cut is carried along
as a flag: a product that underflows to zero is none, and nothing is multiplied across a cut.
R, C, G in comments are a chunk's rows, a program's columns, and the totals read at once.

Only primitives of Triton are used, none of its library functions: those are compiled when Triton is
imported, so that they could not be interpreted in a process that imported it earlier.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a kernel takes its tensors one by one, as untyped pointers

import triton
import triton.language as tl


@triton.jit
def follow(a_first, b_first, cut_first, a_then, b_then, cut_then):
    """Two runs of steps as one: nothing comes through the second where it holds a cut."""
    b = tl.where(cut_then != 0, b_then, b_then + a_then * b_first)
    return a_first * a_then, b, cut_first | cut_then  # after a cut the product is not used


@triton.jit
def add(left, right):
    """Sum of two values."""
    return left + right


@triton.jit
def both(left, right):
    """Whether both are set."""
    return left & right


@triton.jit
def load_steps(a, b, row, column, num_rows, num_columns):
    """Steps (a, b, cut) [R, C] of a chunk, and their addresses; the neutral step after the end."""
    inside = (row < num_rows)[:, None] & (column < num_columns)[None, :]
    place = row[:, None] * num_columns + column[None, :]
    decay = tl.load(a + place, mask=inside, other=1.0)
    term = tl.load(b + place, mask=inside, other=0.0)
    return decay, term, (decay == 0).to(tl.int32), place, inside


@triton.jit(do_not_specialize=["num_rows", "chunks"])
def chunk_totals(
    a,
    b,
    totals,  # [3, chunks, num_columns]: a, b and cut of each chunk
    num_rows,
    num_columns,
    chunks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What each chunk does as one step."""
    position = tl.program_id(0)
    chunk = chunks - 1 - position
    inner = tl.arange(0, ROWS)
    row = chunk.to(tl.int64) * ROWS + inner
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    decay, term, gone, _, _ = load_steps(a, b, row, column, num_rows, num_columns)
    decay, term, gone = tl.associative_scan((decay, term, gone), 0, follow, reverse=True)
    last = (inner == 0)[:, None] & (column < num_columns)[None, :]
    at = totals + tl.broadcast_to((position * num_columns + column)[None, :], [ROWS, COLUMNS])
    tl.store(at, decay, mask=last)
    tl.store(at + chunks * num_columns, term, mask=last)
    tl.store(at + 2 * chunks * num_columns, gone.to(term.dtype), mask=last)


@triton.jit
def carry_before(totals, position, column, num_columns, chunks, GROUP, COLUMNS, dtype):
    """Value [C] that enters a chunk: the chunks before it, nearest first, up to a cut."""
    a = tl.full([COLUMNS], 1.0, dtype)
    b = tl.full([COLUMNS], 0.0, dtype)
    cut = (column >= num_columns).to(tl.int32)  # an empty column asks for no more chunks
    left = position
    while (left > 0) & (tl.reduce(cut, 0, both) == 0):
        left -= GROUP
        earlier = left + tl.arange(0, GROUP)
        known = (earlier >= 0)[:, None] & (column < num_columns)[None, :]
        at = totals + earlier[:, None] * num_columns + column[None, :]
        decay = tl.load(at, mask=known, other=1.0)
        term = tl.load(at + chunks * num_columns, mask=known, other=0.0)
        gone = tl.load(at + 2 * chunks * num_columns, mask=known, other=0.0).to(tl.int32)
        decay, term, gone = tl.associative_scan((decay, term, gone), 0, follow)
        last = (tl.arange(0, GROUP) == GROUP - 1)[:, None]
        decay = tl.reduce(tl.where(last, decay, 0.0), 0, add)
        term = tl.reduce(tl.where(last, term, 0.0), 0, add)
        gone = tl.reduce(tl.where(last, gone, 0), 0, add)
        a, b, cut = follow(decay, term, gone, a, b, cut)
    return b


@triton.jit(do_not_specialize=["num_rows", "chunks"])
def scan_chunks(
    a,
    b,
    totals,
    y,
    num_rows,
    num_columns,
    chunks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The recurrence at every row."""
    position = tl.program_id(0)
    chunk = chunks - 1 - position
    row = chunk.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    carry = carry_before(
        totals, position, column, num_columns, chunks, GROUP, COLUMNS, b.dtype.element_ty
    )
    decay, term, gone, place, inside = load_steps(a, b, row, column, num_rows, num_columns)
    decay, term, gone = tl.associative_scan((decay, term, gone), 0, follow, reverse=True)
    found = tl.where(gone != 0, term, term + decay * carry[None, :])
    tl.store(y + place, found, mask=inside)
