from __future__ import annotations

import torch

from rl_layout import keys, reference
from rl_layout.testing import EndKind, trajectories


def test_segments_by_hand():
    batch = trajectories([2, 1, 3], list(EndKind), first_step=4)
    assert reference.segments(batch) == [(0, 2, 0), (2, 1, 1), (3, 3, 2)]


def test_continues_by_hand():
    rows = trajectories([3, 2], EndKind.CUT)
    marked = reference.marked_rows(rows)
    pairs = {
        (i, j) for i in range(5) for j in range(5) if reference.continues(marked[i], marked[j])
    }
    assert pairs == {(0, 1), (1, 2), (3, 4)}
    rows.set(keys.MASK, torch.tensor([True, True, True, True, False]))
    assert not reference.continues(*reference.marked_rows(rows)[3:])
