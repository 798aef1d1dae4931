"""Generalised advantages of rows, scanned as `scan_kernels` does, without arrays in between.

The factor and the term of a step are computed in registers, as they are used. The last row of every
row of time is a cut.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a kernel takes its tensors one by one, as untyped pointers

import triton
import triton.language as tl

from rl_value.scan.triton.scan_kernels import CUT, add, follow, reached


@triton.jit
def step_of(reward, value, next_value, terminated, done, row, inside, gamma, decay, steps):
    """Factor and term of rows, and their values; rows outside follow a cut, so no matter what."""
    ended = tl.load(terminated + row, mask=inside, other=0) != 0
    cut = ended | (tl.load(done + row, mask=inside, other=0) != 0) | (row % steps == steps - 1)
    # nothing is read of the next state of a step that terminated, NaN neither
    ahead = tl.where(ended, 0.0, tl.load(next_value + row, mask=inside, other=0.0))
    now = tl.load(value + row, mask=inside, other=0.0)
    term = tl.load(reward + row, mask=inside, other=0.0) + gamma * ahead - now
    return tl.where(cut | (decay == 0), CUT, decay), term, now


@triton.jit(do_not_specialize=["num_rows", "steps", "chunks"])
def gae_totals(
    reward,
    value,
    next_value,
    terminated,
    done,
    totals,  # [2, chunks]: factor and term of each chunk as one step
    num_rows,
    steps,
    chunks,
    gamma,
    decay,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What each chunk does as one step, read from its first row up to the first cut."""
    position = tl.program_id(0)
    start = (chunks - 1 - position).to(tl.int64) * ROWS
    inner = tl.arange(0, BLOCK)
    whole_a = tl.full([], 1.0, tl.float32)
    whole_b = tl.full([], 0.0, tl.float32)
    read = 0
    while (read < ROWS) & (whole_a != CUT):
        row = start + read + inner
        a, b, _ = step_of(
            reward, value, next_value, terminated, done, row, row < num_rows, gamma, decay, steps
        )
        a, b = tl.associative_scan((a, b), 0, follow, reverse=True)
        a = tl.reduce(tl.where(inner == 0, a, 0.0), 0, add)
        b = tl.reduce(tl.where(inner == 0, b, 0.0), 0, add)
        whole_a, whole_b = follow(a, b, whole_a, whole_b)
        read += BLOCK
    tl.store(totals + position, whole_a)
    tl.store(totals + chunks + position, whole_b)


@triton.jit(do_not_specialize=["num_rows", "steps", "chunks"])
def gae_chunks(
    reward,
    value,
    next_value,
    terminated,
    done,
    entering,  # [chunks + 1]: the advantage that enters each chunk, if there are several
    advantage,
    target,
    num_rows,
    steps,
    chunks,
    gamma,
    decay,
    ROWS: tl.constexpr,
    MANY: tl.constexpr,
):
    """Advantage and target of every row."""
    position = tl.program_id(0)
    row = (chunks - 1 - position).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    a, b, now = step_of(
        reward, value, next_value, terminated, done, row, inside, gamma, decay, steps
    )
    a, b = tl.associative_scan((a, b), 0, follow, reverse=True)
    before = tl.load(entering + position) if MANY else tl.full([], 0.0, tl.float32)
    found = reached(a, b, before)
    tl.store(advantage + row, found, mask=inside)
    tl.store(target + row, found + now, mask=inside)
