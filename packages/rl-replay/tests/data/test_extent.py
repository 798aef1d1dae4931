"""How the rows of one extend lie."""

from __future__ import annotations

import pytest
import torch

from rl_replay.data.extent import Extent
from rl_replay.data.structure import Arrangement


@pytest.mark.parametrize(
    ("shape", "dim_extend"),
    [((7,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 5), 0), ((2, 3, 5), 1), ((2, 3, 5), 2)],
)
def test_neighbours_are_the_rows_adjacent_along_the_last_dimension(shape, dim_extend) -> None:
    batch = torch.arange(torch.Size(shape).numel()).view(shape)
    cells = Arrangement(len(shape), dim_extend).flat(batch, torch.Size(shape)).tolist()
    earlier, later = Extent.of(shape, dim_extend).neighbours()
    found = {(cells[i], cells[j]) for i, j in zip(earlier, later, strict=True)}
    before, after = batch[..., :-1].reshape(-1).tolist(), batch[..., 1:].reshape(-1).tolist()
    assert found == set(zip(before, after, strict=True))


def test_one_step_of_many_columns_has_no_neighbours() -> None:
    assert Extent.of((4, 1), 1).neighbours()[0].size == 0
    assert Extent.of((4, 1), 0).neighbours()[0].size == 0
