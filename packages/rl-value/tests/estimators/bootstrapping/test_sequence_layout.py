"""The sequence of slots that a value network reads once, by hand."""

import torch

from rl_layout import EndKind, Segments
from rl_layout.testing import trajectories
from rl_value.estimators.bootstrapping.sequence_layout import n_step_slots, one_step_slots


def segments(*lengths: int) -> Segments:
    return Segments.from_lengths(torch.tensor(lengths))


def test_one_step_slots_add_the_last_next_observation_of_each_segment():
    slots = one_step_slots(segments(2, 1))
    assert slots.source.tolist() == [0, 1, 1, 2, 2]
    assert slots.is_next.tolist() == [False, False, True, False, True]
    assert slots.is_start.tolist() == [True, False, False, True, False]
    assert slots.row_slot.tolist() == [0, 1, 3]
    assert slots.next_slot.tolist() == [1, 2, 4]
    assert slots.needs_extra.tolist() == [False, True, True]


def test_one_step_slots_of_terminated_segments_end_at_their_own_last_row_where_asked():
    ends = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.TERMINATED]
    found = Segments.of(trajectories([2, 1, 2], ends))
    slots = one_step_slots(found, after_terminated=False)
    assert slots.source.tolist() == [0, 1, 2, 2, 3, 4]
    assert slots.row_slot.tolist() == [0, 1, 2, 4, 5]
    assert slots.next_slot.tolist() == [1, 1, 3, 5, 5]
    assert slots.needs_extra.tolist() == [False, False, True, False, False]


def test_n_step_slots_hold_each_next_observation_after_a_segment_once():
    slots = n_step_slots(segments(3), torch.tensor([2, 2, 2]))
    assert slots.source.tolist() == [0, 1, 2, 1, 2]
    assert slots.next_slot.tolist() == [2, 3, 4]
    assert not slots.has_holes


def test_n_step_slots_of_rows_that_end_together_read_the_last_one():
    slots = n_step_slots(segments(3), torch.tensor([3, 2, 1]))
    assert slots.source.tolist() == [0, 1, 2, 2]
    assert slots.next_slot.tolist() == [3, 3, 3]


def test_n_step_slots_read_a_next_observation_from_a_row_that_has_it():
    lost = torch.tensor([False, True, True])
    slots = n_step_slots(segments(3), torch.tensor([3, 2, 1]), lost)
    assert slots.source.tolist() == [0, 1, 2, 0]


def test_n_step_slots_report_holes_after_segments_shorter_than_n():
    assert n_step_slots(segments(2), torch.tensor([4, 4])).has_holes


def test_layout_cut_to_a_budget_tells_the_steps_that_fit():
    slots = one_step_slots(segments(2, 1))
    row, none = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
    assert slots.cut_to(row, 4, none).in_budget.tolist() == [True, True, False]
    assert slots.cut_to(row, 4, torch.tensor([False, False, True])).in_budget.tolist() == [True] * 3


def test_layout_filled_to_a_size_repeats_its_first_slot_as_segments():
    slots = one_step_slots(segments(2)).filled_to(5)
    assert slots.source.tolist() == [0, 1, 1, 0, 0]
    assert slots.is_start.tolist() == [True, False, False, True, True]


def test_chunks_hold_whole_segments():
    assert one_step_slots(segments(2, 1, 4)).chunks(5) == [(0, 5), (5, 10)]
    assert one_step_slots(segments(2, 1, 4)).chunks(1) == [(0, 3), (3, 5), (5, 10)]
