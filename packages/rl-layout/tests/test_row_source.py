from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import BatchRows, EndKind, RowSource, keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import environments, flat_batches, trajectories


@pytest.fixture(params=[ListRowSource, BatchRows])
def source(request):
    return request.param(trajectories([3, 4], [EndKind.TERMINATED, EndKind.CUT]))


def test_sources_of_one_batch_are_row_sources(source):
    assert isinstance(source, RowSource)


def test_later_and_earlier_rows_stay_in_their_trajectory(source):
    rows = torch.tensor([[0, 1], [3, 6]])
    later, proved = source.after(rows, 2)
    assert proved.tolist() == [[True, False], [True, False]]
    assert later[proved].tolist() == [2, 5]
    earlier, proved = source.before(rows, 1)
    assert proved.tolist() == [[False, True], [False, True]]
    assert earlier[proved].tolist() == [0, 5]


def test_rows_that_are_gone_are_masked_out(source):
    found, known = source.read(torch.tensor([6, 7, -1]), [keys.TRAJ_STEP])
    assert known.tolist() == [True, False, False]
    assert found[keys.TRAJ_STEP][0] == 3


@given(flat_batches(), st.integers(1, 5))
def test_rows_of_a_batch_are_those_of_the_row_by_row_twin(batch, k):
    quick, slow = BatchRows(batch), ListRowSource(batch)
    for act in ("after", "before"):
        for numbers in (quick.numbers, quick.numbers.flip(0)):  # all rows in order, and any rows
            rows, expected = getattr(slow, act)(numbers, k)
            found, proved = getattr(quick, act)(numbers, k)
            assert proved.equal(expected)
            assert found[proved].equal(rows[expected])


def test_rows_of_a_batch_end_with_their_environment():
    rows = BatchRows(environments(2, 3, [5], [EndKind.CUT]))
    assert rows.after(rows.numbers, 1)[1].tolist() == [True, True, False] * 2
    assert rows.before(torch.tensor([2, 3]), 2)[1].tolist() == [True, False]


def test_padding_has_no_row_before_or_after_it():
    mask = torch.tensor([True, True, False, True])
    rows = BatchRows(trajectories([4], EndKind.CUT).set(keys.MASK, mask))
    assert rows.after(rows.numbers, 1)[1].tolist() == [True, False, False, False]
    assert rows.before(rows.numbers, 1)[1].tolist() == [False, True, False, False]
    before, after = rows.extent(rows.numbers)
    assert (before.tolist(), after.tolist()) == ([0, 1, 0, 0], [1, 0, 0, 0])


def test_rows_outside_of_a_batch_prove_nothing():
    rows, outside = BatchRows(trajectories([3])), torch.tensor([-5, -1, 3, 7])
    assert not rows.after(outside, 1)[1].any()
    assert not rows.before(outside, 1)[1].any()
    assert [count.tolist() for count in rows.extent(outside)] == [[0] * 4] * 2


def test_distances_can_differ_from_row_to_row():
    rows = BatchRows(trajectories([3, 4]))
    there, proved = rows.after(torch.tensor([0, 1, 3]), torch.tensor([2, 2, 3]))
    assert (there.tolist(), proved.tolist()) == ([2, 3, 6], [True, False, True])
    there, proved = rows.before(torch.tensor([2, 4]), torch.tensor([2, 2]))
    assert (there.tolist(), proved.tolist()) == ([0, 2], [True, False])


def test_padding_is_not_its_own_successor():
    rows = BatchRows(trajectories([3]))
    numbers = torch.tensor([0, 2])
    for find in (rows.after, rows.before):
        assert find(numbers, torch.tensor([0, 0]))[1].tolist() == [False, False]
