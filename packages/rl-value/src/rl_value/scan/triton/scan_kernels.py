"""A linear recurrence over rows, cut into chunks: totals of chunks, what enters each, every row.

Step u of the scan, y(u) = b(u) + a(u) y(u - 1), is the pair (a, b); a zero in a, which is a cut, is
held as infinity, so that a product that underflows to zero is none. Nothing is multiplied across a
cut. Chunks are numbered in the order of the scan, from the last row to the first.

Only primitives of Triton are used, none of its library functions: those are compiled when Triton is
imported, so that they could not be interpreted in a process that imported it earlier.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a kernel takes its tensors one by one, as untyped pointers

import triton
import triton.language as tl

CUT = tl.constexpr(float("inf"))  # of products of factors in [0, 1], none is infinite


@triton.jit
def follow(a_first, b_first, a_then, b_then):
    """Two runs of steps as one: nothing comes through the second where it holds a cut."""
    b = tl.where(a_then == CUT, b_then, b_then + a_then * b_first)
    return tl.where((a_first == CUT) | (a_then == CUT), CUT, a_first * a_then), b


@triton.jit
def add(left, right):
    """Sum of two values."""
    return left + right


@triton.jit
def reached(a, b, entering):
    """Value after a run of steps, given the value before it."""
    return tl.where(a == CUT, b, b + a * entering)


@triton.jit
def reverse_fours(values, ROWS: tl.constexpr):
    """Values ``[ROWS // 4, 4]`` with each four in the other order, within a thread's registers."""
    even, odd = tl.split(tl.reshape(values, [ROWS // 4, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return tl.join(tl.join(fourth, second), tl.join(third, first))  # [ROWS // 4, 2, 2]


@triton.jit(do_not_specialize=["num_rows", "chunks"])
def chunk_totals(
    a,
    b,
    totals,  # [2, chunks]: a and b of each chunk
    num_rows,
    chunks,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What each chunk does as one step, read from its first row up to the first cut."""
    position = tl.program_id(0)
    start = (chunks - 1 - position).to(tl.int64) * ROWS
    inner = tl.arange(0, BLOCK)
    whole_a = tl.full([], 1.0, b.dtype.element_ty)
    whole_b = tl.full([], 0.0, b.dtype.element_ty)
    done = 0
    while (done < ROWS) & (whole_a != CUT):
        row = start + done + inner
        decay = tl.load(a + row, mask=row < num_rows, other=1.0)
        term = tl.load(b + row, mask=row < num_rows, other=0.0)
        decay = tl.where(decay == 0, CUT, decay)
        decay, term = tl.associative_scan((decay, term), 0, follow, reverse=True)
        decay = tl.reduce(tl.where(inner == 0, decay, 0.0), 0, add)
        term = tl.reduce(tl.where(inner == 0, term, 0.0), 0, add)
        whole_a, whole_b = follow(decay, term, whole_a, whole_b)
        done += BLOCK
    tl.store(totals + position, whole_a)
    tl.store(totals + chunks + position, whole_b)


@triton.jit(do_not_specialize=["chunks"])
def carries(totals, entering, chunks, BLOCK: tl.constexpr):
    """Value that enters each chunk, ``[chunks + 1]``: one program, block by block."""
    inner = tl.arange(0, BLOCK)
    value = tl.full([], 0.0, entering.dtype.element_ty)
    tl.store(entering, value)
    done = 0
    while done < chunks:
        at = done + inner
        decay = tl.load(totals + at, mask=at < chunks, other=1.0)
        term = tl.load(totals + chunks + at, mask=at < chunks, other=0.0)
        decay, term = tl.associative_scan((decay, term), 0, follow)
        found = reached(decay, term, value)
        tl.store(entering + at + 1, found, mask=at < chunks)
        value = tl.reduce(tl.where(inner == BLOCK - 1, found, 0.0), 0, add)
        done += BLOCK


@triton.jit(do_not_specialize=["num_rows", "chunks"])
def scan_chunks(
    a,
    b,
    entering,
    y,
    num_rows,
    chunks,
    ROWS: tl.constexpr,
    MANY: tl.constexpr,
):
    """The recurrence at every row; rows are read four at a time, the last four first."""
    position = tl.program_id(0)
    start = (chunks - 1 - position).to(tl.int64) * ROWS
    fours = ROWS // 4 - 1 - tl.arange(0, ROWS // 4)
    row = start + (fours * 4)[:, None] + tl.arange(0, 4)[None, :]
    whole = start + ROWS <= num_rows  # then four rows are one access; a mask would part them
    if whole:
        decay, term = tl.load(a + row), tl.load(b + row)
    else:
        decay = tl.load(a + row, mask=row < num_rows, other=1.0)
        term = tl.load(b + row, mask=row < num_rows, other=0.0)
    decay = tl.where(decay == 0, CUT, decay)
    decay = tl.reshape(reverse_fours(decay, ROWS), [ROWS])
    term = tl.reshape(reverse_fours(term, ROWS), [ROWS])
    decay, term = tl.associative_scan((decay, term), 0, follow)
    value = tl.load(entering + position) if MANY else tl.full([], 0.0, b.dtype.element_ty)
    found = tl.reshape(reached(decay, term, value), [ROWS // 4, 4])
    found = tl.reshape(reverse_fours(found, ROWS), [ROWS // 4, 4])
    if whole:
        tl.store(y + row, found)
    else:
        tl.store(y + row, found, mask=row < num_rows)
