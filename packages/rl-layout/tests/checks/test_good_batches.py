"""Batches that obey the contract, or deserve a note, and no error."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from rl_layout import EndKind, check_layout, keys
from rl_layout.testing import batches, environments, flat_batches, trajectories

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED]


def padded_ids(batch):
    """Number the padding of a batch -1, as the contract wants it."""
    if keys.MASK in batch.keys(include_nested=True) and keys.TRAJ_IDS in batch.keys(True):
        batch[keys.TRAJ_IDS][~batch[keys.MASK]] = -1
    return batch


@given(batches())
def test_good_batches_have_no_error_whatever_optional_key_they_lack(batch):
    assert not check_layout(padded_ids(batch)).errors


@given(flat_batches())
def test_a_flat_batch_has_no_finding_at_all(batch):
    report = check_layout(batch)
    assert not report.findings, str(report)
    assert report.raise_if_broken() is report


def test_flattened_rows_of_a_good_batch_are_a_note():
    batch = environments(3, 7, [4, 5], KINDS)
    assert not check_layout(batch).findings
    report = check_layout(batch.reshape(-1))
    assert report.ok
    assert all("rows of [B, T] lie end to end" in note.message for note in report.notes)


def test_rows_of_a_batch_are_no_neighbours():
    rows = trajectories([9], EndKind.CUT)[torch.tensor([0, 1, 2, 4, 5, 6])]
    assert not check_layout(rows.reshape(2, 3)).findings


def test_an_environment_that_shows_nothing_is_good():
    batch = trajectories([4, 3])
    batch["observation"] = batch["next", "observation"] = torch.zeros(7, 2)
    assert not check_layout(batch).findings


def test_a_running_normaliser_is_a_note():
    batch = trajectories([4, 3])
    batch["next", "observation"] += torch.rand(7, 2)
    report = check_layout(batch)
    assert report.ok
    assert [note.key for note in report.notes] == [("next", "observation")]
    assert report.notes[0].count == 5


def test_n_step_rows_are_good():
    batch = trajectories([4, 3])
    horizon = torch.tensor([2, 2, 2, 1, 2, 2, 1]).unsqueeze(-1)
    batch.set(keys.STEPS_TO_NEXT_OBS, horizon)
    batch["next", "observation"][:, 1] += horizon.flatten() - 1
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED):
        batch[key][[2, 5]] = True
    assert not check_layout(batch).findings


def test_slices_of_one_trajectory_are_good_when_they_are_marked():
    rows = trajectories([9], EndKind.CUT)
    sample = rows[torch.tensor([4, 5, 6, 7, 8, 1, 2])]
    sample.set(keys.SLICE_IDS, torch.tensor([0, 0, 1, 1, 1, 2, 2]))
    sample["is_init"][[0, 2, 5]] = True
    for key in (keys.NEXT_DONE, keys.NEXT_TRUNCATED):
        sample[key][[1, 4, 6]] = True
    assert not check_layout(sample).findings


def test_slices_of_a_sample_that_was_stored_again_are_good():
    sample = trajectories([9], EndKind.CUT)[torch.tensor([4, 5, 1, 2])]
    sample["is_init"][[0, 2]] = True
    for key in (keys.NEXT_DONE, keys.NEXT_TRUNCATED):
        sample[key][[1, 3]] = True
    assert check_layout(sample).ok
    fresh = trajectories([9], EndKind.CUT)[torch.tensor([4, 5, 0, 1])]
    fresh["is_init"][0] = fresh[keys.NEXT_DONE][1] = fresh[keys.NEXT_TRUNCATED][1] = True
    assert check_layout(fresh).ok


def test_masked_out_rows_may_hold_anything():
    batch = trajectories([3, 2])
    mask = torch.tensor([True, True, True, False, False])
    batch.set(keys.MASK, mask)
    batch[keys.TRAJ_IDS][3:] = -1
    batch["is_init"][3:] = False
    batch[keys.TRAJ_STEP][3:] = 0
    assert not check_layout(batch).findings


def test_slices_that_are_marked_as_starts_are_no_error_without_their_numbers():
    rows = trajectories([9], EndKind.CUT)[torch.tensor([4, 5, 6, 1, 2])]
    rows["is_init"][3] = True
    assert check_layout(rows).ok


def test_the_same_step_twice_is_a_copy():
    rows = trajectories([2, 3])
    assert check_layout(torch.cat([rows, rows[:2]])).ok


def test_a_cut_in_an_environment_that_goes_on_is_a_note():
    batch = trajectories([4, 3, 2], EndKind.TRUNCATED)
    batch["next", "observation"][3] = batch["observation"][4]
    report = check_layout(batch)
    assert [note.row for note in report.notes] == [(3,)]
    assert report.ok


def test_batches_of_one_collector_may_lie_end_to_end():
    batch = environments(2, 8, [6, 5], KINDS)
    stored = torch.cat([batch[:, :4].reshape(-1), batch[:, 4:].reshape(-1)])
    report = check_layout(stored)
    assert report.ok
    assert len(report.notes) == 1


def test_the_state_that_a_cut_carries_on_is_good(errors):
    batch = trajectories([4, 3], [EndKind.TRUNCATED, EndKind.CUT])
    batch["next", "observation"][3] = batch["observation"][4]
    batch["state"] = torch.zeros(7, 1)
    batch["state"][4] = 4.0
    assert check_layout(batch, default_states={"state": 0.0}).ok
    batch["next", "observation"][3] += 1
    assert errors(batch, default_states={"state": 0.0}) == [("state", (4,))]


def test_an_end_that_equals_one_start_is_no_error():
    batch = trajectories([3, 3, 3])
    batch["observation"] = torch.tensor([0, 1, 2] * 3).float().unsqueeze(-1)
    batch["next", "observation"] = torch.tensor([1, 2, 0] * 3).float().unsqueeze(-1)
    assert check_layout(batch).ok


def test_a_leaf_that_tells_little_beside_one_that_tells_much_is_no_error():
    batch = trajectories([4, 3, 2])
    batch["action_mask"] = torch.ones(9, 2, dtype=torch.bool)
    batch["action_mask"][[1, 5], 0] = False
    batch["next", "action_mask"] = batch["action_mask"].roll(-1, 0)
    assert not check_layout(batch).findings


def test_a_clipped_normaliser_is_a_note():
    batch = trajectories([30, 30])
    raw = torch.randn(61, 1) * 5
    batch["observation"] = (raw[:-1] * 1.4).clamp(-5, 5)
    batch["next", "observation"] = (raw[1:] * 1.5).clamp(-5, 5)
    assert check_layout(batch).ok


def test_augmented_copies_in_a_sample_are_good():
    sample = torch.cat([trajectories([3], EndKind.CUT)] * 2)
    sample.set(keys.SLICE_IDS, torch.tensor([0, 0, 0, 1, 1, 1]))
    sample["observation"] += torch.rand(6, 1)
    assert check_layout(sample).ok
    assert not check_layout(sample.exclude(keys.SLICE_IDS)).ok


def test_steps_that_jump_without_ids_are_a_note():
    rows = trajectories([6], EndKind.CUT)[torch.tensor([0, 1, 3, 4])].exclude(keys.TRAJ_IDS)
    assert [note.key for note in check_layout(rows).notes] == [keys.TRAJ_STEP]
    flat = environments(3, 9, [4, 5], KINDS)[:, 2:].reshape(-1).exclude(keys.TRAJ_IDS)
    assert check_layout(flat).ok


def test_rows_without_their_next_observation_are_not_compared():
    batch = trajectories([4, 4])
    batch["next", "observation"][1] = batch["observation"][6]
    missing = torch.zeros(8, dtype=torch.bool)
    missing[1] = True
    assert not check_layout(batch.set(keys.NEXT_MISSING, missing)).findings


def test_done_flags_of_a_group_without_its_start_marker_are_a_note():
    batch = trajectories([2, 3]).set(("next", "agents", "done"), torch.zeros(5, 3, 1).bool())
    assert [note.key for note in check_layout(batch).notes] == [("next", "agents", "done")]
    batch.set(("agents", "is_init"), torch.zeros(5, 3, 1).bool())
    assert not check_layout(batch).findings


def test_a_start_marker_in_mid_trajectory_is_a_note():
    batch = trajectories([5], EndKind.CUT)
    batch["is_init"][3] = True
    assert [note.row for note in check_layout(batch).notes] == [(3,)]


def test_a_cut_that_only_observations_show_is_a_note(bare):
    batch = bare(trajectories([4, 3], EndKind.CUT))
    (note,) = check_layout(batch).findings
    assert (note.severity, note.row, note.count) == ("note", (3,), 1)
    assert "contradicts the row after" in note.message


def test_a_state_that_equals_the_first_one_of_another_trajectory_is_no_error():
    batch = trajectories([4, 4], first_step=2)
    for name in ("memory", "recurrent_state"):
        batch[name] = torch.rand(8, 1, 3)
        batch[name][4] = 0  # the only reset of the batch
        batch["next", name] = torch.zeros(8, 1, 3)  # as modules write it but at ends
    batch["recurrent_state"][4] = batch["next", "recurrent_state"][:] = torch.rand(3)
    assert check_layout(batch).ok


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_an_end_of_a_group_without_its_start_marker_is_a_note(flag):
    key = ("next", "agents", flag)
    batch = trajectories([2, 3]).set(key, torch.zeros(5, 3, 1).bool())
    assert [note.key for note in check_layout(batch).notes] == [key]
    batch.set(("next", "agents", "done"), torch.zeros(5, 3, 1).bool())
    assert [note.key for note in check_layout(batch).notes] == [("next", "agents", "done")]
