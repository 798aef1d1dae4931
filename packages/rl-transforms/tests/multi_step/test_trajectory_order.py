from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.reference import continues, marked_rows
from rl_layout.testing import EndKind, trajectories
from rl_transforms.multi_step.flat_leaves import FlatRows
from rl_transforms.multi_step.trajectory_order import TrajectoryOrder, calls_pending, cuts_before


@st.composite
def shuffled(draw):
    """Rows of a few trajectories in any order or in theirs, some lost."""
    kinds = st.lists(st.sampled_from(list(EndKind)), min_size=3, max_size=3)
    lengths = st.lists(st.integers(1, 5), min_size=3, max_size=3)
    rows = trajectories(draw(lengths), draw(kinds))
    # markers that cut where ids and steps do not
    for key in (keys.IS_INIT, keys.NEXT_DONE):
        rows[key][draw(st.integers(0, len(rows) - 1))] = True
    order = draw(st.one_of(st.just(range(len(rows))), st.permutations(range(len(rows)))))
    return rows[torch.tensor(order[: draw(st.integers(1, len(order)))])]


@given(shuffled())
def test_trajectory_order_equals_a_plain_loop(rows):
    found = TrajectoryOrder.of(FlatRows.of(rows).leaves)
    ids = rows[keys.TRAJ_IDS].tolist()
    order = sorted(range(len(ids)), key=lambda i: ids[i])
    assert found.sorted_rows.tolist() == order
    assert [order.index(i) for i in range(len(ids))] == found.position.tolist()
    marked = [marked_rows(rows)[row] for row in order]
    for spot, row in enumerate(order):
        end = spot
        while end + 1 < len(order) and continues(marked[end], marked[end + 1]):
            end += 1
        assert found.remaining[row] == end - spot + 1
        newest = end + 1 == len(order) or ids[order[end + 1]] != ids[row]
        done = bool(rows[keys.NEXT_DONE][order[end]])
        assert bool(found.is_open[row]) == (newest and not done)


def test_rows_without_flags_are_segmented_by_ids_and_steps():
    ids, steps = torch.tensor([3, 3, 8, 3]), torch.tensor([0, 1, 0, 3])
    found = TrajectoryOrder.of({keys.TRAJ_IDS: ids, keys.TRAJ_STEP: steps})
    assert found.remaining.tolist() == [2, 1, 1, 1]
    assert found.is_open.tolist() == [False, False, True, True]


def test_calls_are_counted_for_rows_of_the_calling_producers():
    ids = torch.tensor([1 << 32, 2 << 32, 1 << 32])
    order = TrajectoryOrder.of({keys.TRAJ_IDS: ids, keys.TRAJ_STEP: torch.tensor([0, 0, 1])})
    assert calls_pending(order, np.array([3, 5])).tolist() == [4, 5, 0]
    # ids that were given here are of one producer, also if a copy continues under another number
    assert calls_pending(order, np.array([3, 5]), own=True).tolist() == [4, 6, 0]


def test_padding_continues_no_row_and_no_other_padding():
    mask = torch.tensor([True, True, False, False, True])
    rows = FlatRows({keys.MASK: mask}, {keys.MASK: torch.Size()}, torch.Size([5]), None)
    assert cuts_before(rows).tolist() == [True, False, True, True, True]
