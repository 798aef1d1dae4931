from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments
from rl_recurrent.backends.pack import StepPlan, step_plan
from rl_recurrent.backends.pad import BlockPlan, block_plan
from rl_recurrent.backends.static.scan import Windows, window_steps

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(LENGTHS, st.integers(1, 20))
def test_pieces_hold_every_row_once_after_its_predecessor(lengths, min_rows):
    plan = StepPlan(Segments.from_lengths(torch.tensor(lengths)))
    pieces = plan.pieces(min_rows)
    assert [piece.begin for piece in pieces] == [
        sum(len(before.rows) for before in pieces[:number]) for number in range(len(pieces))
    ]
    assert all(torch.equal(piece.of(plan.rows), piece.rows) for piece in pieces)
    assert all(len(piece.rows) >= min_rows for piece in pieces[:-1])
    assert all(sum(piece.counts) == len(piece.rows) for piece in pieces)
    rows = torch.cat([piece.rows for piece in pieces])
    assert sorted(rows.tolist()) == list(range(sum(lengths)))
    counts = [count for piece in pieces for count in piece.counts]
    assert counts == sorted(counts, reverse=True)
    steps = rows.split(counts)
    for before, after in pairwise(steps):
        assert torch.equal(after, before[: len(after)] + 1)
    assert torch.equal(plan.order[plan.inverse], torch.arange(len(lengths)))


@given(LENGTHS, st.sampled_from([0.0, 0.1, 0.6]))
def test_scatter_inverts_gather_and_its_gradient(lengths, max_waste):
    plan = BlockPlan.of(Segments.from_lengths(torch.tensor(lengths)), max_waste)
    for block in plan.blocks:
        assert block.padding is None or block.padding.double().mean() <= max_waste
    x = torch.randn(sum(lengths), 3, requires_grad=True)
    made = [part * 2 for part in plan.gather(x)]
    empty = [block.padding for block in plan.blocks]
    made = [m if e is None else m.masked_fill(e, 0) for m, e in zip(made, empty, strict=True)]
    out = plan.scatter(made)
    assert torch.equal(out, 2 * x)
    seen = torch.randn_like(out)
    out.backward(seen)
    assert torch.equal(x.grad, 2 * seen)


@given(LENGTHS, st.integers(0, 4))
def test_windows_own_every_row_once(lengths, more):
    start = torch.zeros(sum(lengths), dtype=torch.bool)
    start[torch.tensor([0, *lengths]).cumsum(0)[:-1]] = True
    length = max(lengths) + more
    windows = Windows.of(start, length, 2 * length - 1)
    owned = windows.rows[windows.is_real[..., 0]]
    assert sorted(owned.tolist()) == list(range(sum(lengths)))
    flat = windows.rows.flatten()
    assert torch.equal(flat[windows.cells], torch.arange(sum(lengths)))
    assert windows.is_real.flatten()[windows.cells].all()
    assert windows.is_first.sum() == len(lengths)
    for column in range(windows.rows.shape[1]):  # a segment is in one column, row after row
        mine = windows.rows[windows.is_real[:, column, 0], column]
        assert torch.equal(mine, torch.arange(len(mine)) + (mine[0] if len(mine) else 0))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 40), st.data())
def test_window_steps_cover_any_segments_of_sequences(count, steps, length, data):
    rows, longest = count * steps, min(length, steps)
    start = torch.zeros(rows, dtype=torch.bool)
    start[::steps] = True
    for begin in range(0, rows, steps):  # no segment is longer than it may be
        shift = data.draw(st.integers(0, longest - 1))
        start[begin + shift : begin + steps : longest] = True
    reach = window_steps(length, rows, steps)
    grid = Windows.of(start, min(length, rows), reach)  # raises if a column is too short
    flat = Windows.of(start, min(length, rows), window_steps(length, rows, rows))
    assert reach <= len(flat.rows)
    assert torch.equal(grid.rows, flat.rows[:reach])
    assert torch.equal(grid.is_real, flat.is_real[:reach])
    assert not flat.is_real[reach:].any()


def test_window_steps_of_whole_sequences_are_their_length():
    assert window_steps(7, 21, 7) == 7
    assert window_steps(14, 42, 7) == 14
    assert window_steps(9, 21, 7) == 15


def test_windows_shorter_than_a_segment_raise():
    with pytest.raises(RuntimeError, match="longer than max_length"):
        Windows.of(torch.tensor([True, False, False]), 1, 1)


@pytest.mark.parametrize("make", [step_plan, block_plan])
def test_plans_live_as_long_as_their_segments(make):
    segments = Segments.from_lengths(torch.tensor([2, 3]))
    plan = weakref.ref(make(segments))
    assert make(segments) is plan()
    del segments
    gc.collect()
    assert plan() is None
