"""The buffer of the walking skeleton, and the slices that it samples."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch

from rl_layout import keys
from skeleton.buffer import ListBuffer
from skeleton.segments import segment_ends
from skeleton.slices import sample_slices, stored_runs

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated"), (2, "truncated")]

CONTRACT = {
    "observation": (torch.float32, (2,)),
    "action": (torch.int64, ()),
    "recurrent_state": (torch.float32, (7,)),
    keys.IS_INIT: (torch.bool, (1,)),
    ("next", "observation"): (torch.float32, (2,)),
    ("next", "recurrent_state"): (torch.float32, (7,)),
    keys.NEXT_REWARD: (torch.float32, (1,)),
    keys.NEXT_DONE: (torch.bool, (1,)),
    keys.NEXT_TERMINATED: (torch.bool, (1,)),
    keys.NEXT_TRUNCATED: (torch.bool, (1,)),
    keys.TRAJ_IDS: (torch.int64, ()),
    keys.TRAJ_STEP: (torch.int64, ()),
    keys.POLICY_VERSION: (torch.int64, ()),
}

ADDED_BY_SAMPLES = {
    keys.INDEX: (torch.int64, ()),
    keys.ROW: (torch.int64, ()),
    keys.SLICE_IDS: (torch.int64, ()),
}

MARKED_BY_SAMPLES = [keys.IS_INIT, keys.NEXT_DONE, keys.NEXT_TRUNCATED]


def test_sample_has_every_marker_with_its_dtype_and_shape(
    collector, generator, dtypes_and_shapes, filled
):
    sample = sample_slices(filled(collector, 5), 3, 4, generator)

    assert sample.names == ["time"]
    assert dtypes_and_shapes(sample.exclude("sample_log_prob")) == CONTRACT | ADDED_BY_SAMPLES


def test_buffer_overwrites_the_oldest_row(one_trajectory):
    buffer = ListBuffer(5)
    rows = one_trajectory(7)

    assert buffer.extend(rows[:4]) == [0, 1, 2, 3]
    assert len(buffer) == 4
    assert buffer.extend(rows[4:]) == [4, 0, 1]
    assert len(buffer) == 5
    read = buffer.read([0, 1, 2, 3, 4])
    assert read[keys.TRAJ_STEP].tolist() == [5, 6, 2, 3, 4]
    assert read[keys.ROW].tolist() == [5, 6, 2, 3, 4]
    assert read[keys.INDEX].tolist() == [0, 1, 2, 3, 4]


def test_buffer_and_its_input_do_not_share_memory(one_trajectory):
    buffer, rows = ListBuffer(5), one_trajectory(3)
    before = rows.clone()
    buffer.extend(rows)
    buffer.read([1])[keys.NEXT_REWARD].zero_()
    assert (rows == before).all()
    assert set(rows.keys(True, True)) == set(before.keys(True, True))

    rows[keys.NEXT_REWARD].zero_()
    assert buffer.read([0, 1, 2])[keys.NEXT_REWARD].flatten().tolist() == [1, 2, 4]


def test_buffer_refuses_more_rows_than_it_holds(one_trajectory):
    with pytest.raises(ValueError, match="6 rows do not fit a capacity of 5"):
        ListBuffer(5).extend(one_trajectory(6))


def test_runs_are_whole_trajectories_over_batch_cuts_of_two_environments(collector, filled):
    buffer = filled(collector, 4, 6)

    runs = [buffer.read(run)["observation"].int().tolist() for run in stored_runs(buffer)]
    # each run is [episode, first step, last step + 1]; the last one of each continues
    played = [(0, 3), (1, 5), (2, 1), (3, 1), (100, 2), (101, 1), (102, 5), (103, 2)]
    assert sorted(runs) == [[[e, step] for step in range(length)] for e, length in played]


def test_run_begins_where_the_ring_has_overwritten_its_first_rows(one_trajectory):
    buffer = ListBuffer(5)
    buffer.extend(one_trajectory(7)[:4])
    buffer.extend(one_trajectory(7)[4:])

    assert stored_runs(buffer) == [[2, 3, 4, 0, 1]]


def test_runs_of_stored_samples_end_where_their_slices_were_cut(one_trajectory):
    rows = one_trajectory(6)
    rows[keys.NEXT_DONE][2] = True
    rows[keys.IS_INIT][4] = True
    buffer = ListBuffer(9)
    buffer.extend(rows)

    assert stored_runs(buffer) == [[0, 1, 2], [3], [4, 5]]


def test_padding_is_in_no_run(one_trajectory):
    rows = one_trajectory(6)
    rows[keys.MASK] = torch.tensor([True, True, False, False, True, True])
    rows[keys.TRAJ_IDS][2:4] = keys.PADDING_ID
    buffer = ListBuffer(9)
    buffer.extend(rows)

    assert stored_runs(buffer) == [[0, 1], [4, 5]]


def test_slices_never_cross_a_boundary(collector, generator, filled):
    buffer = filled(collector, 4, 9, 2, capacity=26)

    sample = sample_slices(buffer, 50, 3, generator)
    for number in range(50):
        part = sample[sample[keys.SLICE_IDS] == number]
        assert 1 <= len(part) <= 3
        steps = part[keys.TRAJ_STEP] - part[keys.TRAJ_STEP][0]
        assert steps.tolist() == list(range(len(part)))
        assert part["observation"][:, 0].unique().numel() == 1
        assert part[keys.TRAJ_IDS].unique().numel() == 1


def test_slices_reproduce_stored_rows_and_leave_them_as_they_are(collector, generator, filled):
    buffer = filled(collector, 4, 9)
    before = buffer.read(list(range(26)))

    sample = sample_slices(buffer, 20, 4, generator)
    after = buffer.read(list(range(26)))
    assert (after == before).all()
    stored = before[sample[keys.INDEX]].exclude(*MARKED_BY_SAMPLES)
    assert (sample.exclude(*MARKED_BY_SAMPLES, keys.SLICE_IDS) == stored).all()


def test_slices_are_marked_where_they_are_cut(collector, generator, filled):
    buffer = filled(collector, 4, 9)
    sample = sample_slices(buffer, 20, 4, generator)
    stored = buffer.read(sample[keys.INDEX].tolist())

    changes = sample[keys.SLICE_IDS].diff() != 0
    edge = torch.tensor([True])
    starts = torch.cat([edge, changes]).unsqueeze(-1)
    ends = torch.cat([changes, edge]).unsqueeze(-1)
    terminated = stored[keys.NEXT_TERMINATED]
    assert terminated.any()
    assert torch.equal(sample[keys.IS_INIT], starts | stored[keys.IS_INIT])
    assert torch.equal(sample[keys.NEXT_TERMINATED], terminated)
    assert torch.equal(sample[keys.NEXT_TRUNCATED], ends & ~terminated)
    assert torch.equal(sample[keys.NEXT_DONE], ends)
    assert torch.equal(torch.tensor(segment_ends(sample)), ends[:, 0])
