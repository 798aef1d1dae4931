from __future__ import annotations

import torch

from rl_layout import EndKind, RowSource, keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import trajectories


def source():
    return ListRowSource(trajectories([3, 4], [EndKind.TERMINATED, EndKind.CUT]))


def test_the_twin_is_a_row_source():
    assert isinstance(source(), RowSource)


def test_later_and_earlier_rows_stay_in_their_trajectory():
    rows = torch.tensor([[0, 1], [3, 6]])
    later, proved = source().after(rows, 2)
    assert proved.tolist() == [[True, False], [True, False]]
    assert later[proved].tolist() == [2, 5]
    earlier, proved = source().before(rows, 1)
    assert proved.tolist() == [[False, True], [False, True]]
    assert earlier[proved].tolist() == [0, 5]


def test_rows_that_are_gone_are_masked_out():
    found, known = source().read(torch.tensor([6, 7, -1]), [keys.TRAJ_STEP])
    assert known.tolist() == [True, False, False]
    assert found[keys.TRAJ_STEP][0] == 3
