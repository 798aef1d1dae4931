from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import EndKind, check_layout, draw_layout, keys
from rl_layout.testing import environments, trajectories

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED]


@pytest.mark.parametrize("gone", [[], [keys.TRAJ_STEP], [keys.TRAJ_IDS]])
def test_an_unmarked_start_is_found(gone, errors):
    batch = trajectories([2, 3]).exclude(*gone)
    batch["is_init"][2] = False
    assert ("is_init", (2,)) in errors(batch)


def test_an_unmarked_start_is_found_by_its_id_alone(errors):
    batch = trajectories([2, 3], EndKind.CUT).exclude(keys.TRAJ_STEP)
    batch["is_init"][2] = False
    assert errors(batch) == [("is_init", (2,))]


def test_an_unmarked_start_is_found_by_done_alone(errors):
    batch = trajectories([2, 3]).select("is_init", "next")
    batch["is_init"][2] = False
    assert errors(batch) == [("is_init", (2,))]


@pytest.mark.parametrize("key", [keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED])
def test_done_that_is_not_terminated_or_truncated_is_found(key, errors):
    batch = trajectories([2, 4])
    batch[key][3] = ~batch[key][3]
    assert (keys.NEXT_DONE, (3,)) in errors(batch)


@pytest.mark.parametrize("key", [keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED])
def test_a_kind_without_done_is_found_where_the_other_kind_is_absent(key, errors):
    other = ({keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED} - {key}).pop()
    batch = trajectories([2, 4], EndKind.CUT).exclude(other)
    batch[key][3] = True
    assert (key, (3,)) in errors(batch)


def test_an_id_that_continues_after_done_is_found(errors):
    batch = trajectories([6], EndKind.CUT)
    batch[keys.NEXT_TRUNCATED][2] = batch[keys.NEXT_DONE][2] = True
    assert (keys.TRAJ_IDS, (3,)) in errors(batch)
    batch["is_init"][3] = True
    assert (keys.TRAJ_IDS, (3,)) in [(note.key, note.row) for note in check_layout(batch).notes]
    batch[keys.NEXT_TERMINATED][2] = True
    assert errors(batch) == [(keys.TRAJ_IDS, (3,))]


def test_an_id_that_begins_again_is_found(errors):
    batch = trajectories([3, 2], EndKind.CUT, first_step=5)
    batch[keys.TRAJ_IDS][:] = 7
    assert errors(batch) == [(keys.TRAJ_STEP, (3,))]


def test_a_hole_in_the_steps_is_found(errors):
    rows = trajectories([6], EndKind.CUT)[torch.tensor([0, 1, 3, 4])]
    assert errors(rows) == [(keys.TRAJ_STEP, (2,))]


def test_slices_glued_without_a_start_marker_are_found(errors):
    rows = trajectories([9], EndKind.CUT)[torch.tensor([4, 5, 6, 1, 2])]
    assert errors(rows) == [(keys.TRAJ_STEP, (3,))]
    rows.set(keys.SLICE_IDS, torch.tensor([0, 0, 1, 2, 2]))
    assert ("is_init", (2,)) in errors(rows)


def test_a_reused_id_is_found(errors):
    batch = trajectories([2, 4, 3])
    batch["observation"] += torch.arange(9).unsqueeze(-1)
    batch[keys.TRAJ_IDS][6:] = batch[keys.TRAJ_IDS][0].clone()
    assert (keys.TRAJ_IDS, (6,)) in errors(batch)


@pytest.mark.parametrize("first_step", [0, 1])
@pytest.mark.parametrize("gone", ["nothing", "is_init"])
def test_environments_flattened_the_wrong_way_are_found(first_step, gone):
    batch = environments(3, 5, [7], KINDS)[:, first_step:].exclude(gone)
    interleaved = batch.transpose(0, 1).reshape(-1)
    assert any("interleaved" in finding.message for finding in check_layout(interleaved).errors)


def test_single_rows_of_many_trajectories_are_cut_and_not_interleaved():
    found = check_layout(trajectories([5] * 6)[2::5])
    assert found.ok
    assert any("another trajectory continues here" in note.message for note in found.notes)


def test_a_next_observation_of_another_trajectory_is_found(errors):
    batch = trajectories([4, 4])
    batch["next", "observation"][1] = batch["observation"][6]
    assert errors(batch) == [(("next", "observation"), (1,))]


def test_a_reset_observation_in_place_of_the_final_one_is_found():
    batch = trajectories([4, 3, 2])
    batch["next", "observation"][3] = batch["observation"][4]
    batch["next", "observation"][6] = batch["observation"][7]
    (finding,) = check_layout(batch).errors
    assert (finding.key, finding.row, finding.count) == (("next", "observation"), (3,), 2)
    assert "keep the final observation" in finding.message


def test_a_reset_observation_is_found_beside_states_that_begin_alike():
    batch = trajectories([4, 3, 2])
    state = batch["collector", "traj_step"].float().view(9, 1, 1).expand(9, 1, 5)
    batch["state"], batch["next", "state"] = state, state + 1
    assert check_layout(batch).ok
    batch["next", "observation"][3] = batch["observation"][4]
    batch["next", "observation"][6] = batch["observation"][7]
    (finding,) = check_layout(batch).errors
    assert (finding.key, finding.row, finding.count) == (("next", "observation"), (3,), 2)


def test_a_state_that_is_not_the_default_at_a_reset_is_found(errors):
    batch = trajectories([4, 3]).set("state", torch.zeros(7, 2, 5))
    batch["state"][5] = 1.0
    assert not errors(batch, default_states={"state": 0.0})
    batch["state"][4, 1, 2] = 1.0
    assert errors(batch, default_states={"state": torch.zeros(2, 5)}) == [("state", (4,))]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_init", torch.zeros(5)),
        ("is_init", torch.zeros(5, dtype=torch.bool)),
        (keys.TRAJ_IDS, torch.zeros(5, 1, dtype=torch.int64)),
        (keys.TRAJ_STEP, torch.zeros(5)),
        (keys.NEXT_REWARD, torch.zeros(5)),
        (keys.DONE, torch.zeros(5, 1)),
        (keys.NEXT_MISSING, torch.zeros(5, 1, dtype=torch.bool)),
        (keys.HISTORY_MISSING, torch.zeros(5)),
        (keys.HISTORY_MISSING, torch.zeros(5, 1, dtype=torch.bool)),
        (keys.POLICY_VERSION, torch.zeros(5)),
        (keys.SLICE_IDS, torch.zeros(5, 1, dtype=torch.int64)),
    ],
)
def test_wrong_dtypes_and_trailing_dimensions_are_found(key, value, errors):
    assert errors(trajectories([2, 3]).set(key, value)) == [(key, ())]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (keys.TRAJ_STEP, -1, "is negative"),
        (keys.STEPS_TO_NEXT_OBS, 0, "less than 1"),
        (keys.TRAJ_IDS, -1, "-1 on a real step"),
    ],
)
def test_numbers_outside_their_range_are_found(key, value, message):
    batch = trajectories([2, 3])
    batch.set(keys.STEPS_TO_NEXT_OBS, torch.ones(5, 1, dtype=torch.int64))
    batch[key][0] = value
    assert any(message in finding.message for finding in check_layout(batch).errors)


def test_padding_that_is_not_numbered_is_found(errors):
    batch = trajectories([2, 3]).set(keys.MASK, torch.tensor([True, True, True, True, False]))
    assert errors(batch) == [(keys.TRAJ_IDS, (4,))]
    batch[keys.TRAJ_STEP][4] = 7
    assert errors(batch) == [(keys.TRAJ_IDS, (4,))]


def test_a_batch_without_markers_is_an_error(errors):
    assert errors(trajectories([2, 3]).select("observation")) == [("is_init", ())]


def test_rows_are_named_by_environment_and_step(errors):
    batch = environments(2, 5, [9], KINDS)
    batch["is_init"][1, 0] = False
    assert errors(batch) == [("is_init", (1, 0))]


def test_the_batch_is_left_as_it_was():
    batch = trajectories([2, 3])
    before = batch.clone()
    check_layout(batch)
    assert (batch == before).all()
    assert set(batch.keys(True)) == set(before.keys(True))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 2)])
def test_time_that_lies_along_another_dimension_than_the_last_is_an_error(shape, bare):
    batch = bare(environments(*shape, [9], KINDS))
    assert check_layout(batch).ok
    (finding,) = check_layout(batch.transpose(0, 1)).errors
    assert finding.key == ("next", "observation")
    assert finding.count == (shape[0] - 1) * shape[1]
    assert "names=['time', None], or time_dim=0" in finding.message
    assert f"and 0 of {shape[0] * (shape[1] - 1)} along dimension 0" in finding.message


def test_time_that_is_named_or_numbered_is_where_it_is_said(bare):
    batch = environments(6, 4, [9], KINDS).transpose(0, 1)
    numbered = batch.clone(False)
    numbered.names = None
    assert not any(
        "that is the time dimension" in finding.message for finding in check_layout(numbered).errors
    )
    named = bare(batch)
    named.names = [None, "time"]
    assert not any(
        "that is the time dimension" in finding.message for finding in check_layout(named).errors
    )


@pytest.mark.parametrize("name", keys.DONE_KEYS)
def test_a_step_from_a_state_that_is_done_is_found(name, errors):
    batch = trajectories([3, 2])
    batch[name] = batch[name].clone()
    batch[name][3] = True
    assert errors(batch) == [(name, (3,))]
    mask = torch.arange(5) != 3
    batch[keys.TRAJ_IDS][3] = -1
    assert check_layout(batch.set(keys.MASK, mask)).ok


def test_an_id_that_goes_on_after_its_termination_elsewhere_is_found(errors):
    batch = trajectories([3, 2, 4], [EndKind.TERMINATED, EndKind.CUT, EndKind.CUT])
    batch[keys.TRAJ_IDS][5:] = 7
    batch[keys.TRAJ_STEP][5:] += 3
    batch["is_init"][5] = False
    assert (keys.TRAJ_IDS, (5,)) in errors(batch)
    slices = trajectories([6])[torch.tensor([3, 4, 5, 0, 1])]
    slices["is_init"][0] = True
    slices.set(keys.SLICE_IDS, torch.tensor([0, 0, 0, 1, 1]))
    assert check_layout(slices).ok


def far_rows(lengths, kinds, far):
    batch = trajectories(lengths, kinds).exclude(("next", "observation"))
    return batch.set(keys.STEPS_TO_NEXT_OBS, torch.tensor(far).unsqueeze(-1))


def test_rows_of_n_steps_that_reach_past_their_end_are_found(errors):
    kinds = [EndKind.TRUNCATED, EndKind.CUT]
    assert errors(far_rows([4, 3], kinds, [3, 4, 2, 1, 3, 3, 3])) == [
        (keys.STEPS_TO_NEXT_OBS, (1,))
    ]
    assert check_layout(far_rows([4, 3], kinds, [3, 3, 2, 1, 3, 3, 3])).ok


@pytest.mark.parametrize("corrupt", [2**40, 2**63 - 1])
@pytest.mark.parametrize("row", [0, 2])
def test_a_corrupt_step_count_is_found_as_such(corrupt, row, errors):
    far = [3, 3, 2, 1, 3, 3, 3]
    far[row] = corrupt
    batch = far_rows([4, 3], [EndKind.TERMINATED, EndKind.CUT], far)
    batch[keys.NEXT_TERMINATED][row] = batch[keys.NEXT_DONE][row] = True
    assert (keys.STEPS_TO_NEXT_OBS, (row,)) in errors(batch)
    assert keys.TRAJ_IDS not in [key for key, _ in errors(batch)]


def test_rows_of_n_steps_that_terminate_leave_their_id_where_they_reach():
    batch = far_rows([5], EndKind.TERMINATED, [3, 3, 3, 2, 1])
    flags = torch.tensor([False, False, True, True, True]).unsqueeze(-1)
    batch[keys.NEXT_TERMINATED], batch[keys.NEXT_DONE] = flags, flags
    assert check_layout(batch).ok


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz")
def test_a_quantized_leaf_is_named_and_not_compared():
    batch = trajectories([2, 3])
    coarse = torch.quantize_per_tensor(torch.rand(5, 2), 0.1, 0, torch.qint8)
    batch.set("observation", coarse).set(("next", "observation"), coarse)
    notes = check_layout(batch).notes
    assert [note.key for note in notes] == ["observation", ("next", "observation")]
    assert "is quantized" in notes[0].message
    assert len(draw_layout(batch).bars) == 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1),
    st.integers(1, 2**60),
)
def test_a_step_that_is_named_twice_is_found_as_by_a_dictionary(rows, scale):
    first, wanted = {}, []
    for name, step, value in rows:
        wanted.append(first.setdefault((name, step), value) != value)
    batch = trajectories([1] * len(rows))
    batch[keys.TRAJ_IDS] = torch.tensor([name * scale for name, _, _ in rows])
    batch[keys.TRAJ_STEP] = torch.tensor([step * scale for _, step, _ in rows])
    for key in ("observation", ("next", "observation"), "action", keys.NEXT_REWARD):
        batch[key] = torch.zeros_like(batch[key])
    batch["action"] += torch.tensor([value for _, _, value in rows]).unsqueeze(-1)
    said = "names another step already: ids are never reused"
    counts = [one.count for one in check_layout(batch).errors if one.message == said]
    assert counts == [sum(wanted)] * any(wanted)


def test_an_id_may_go_on_after_a_lost_life_in_a_sample_alone():
    sample = trajectories([5])
    ends = torch.tensor([[False], [True], [False], [False], [True]])
    for key in (keys.NEXT_TERMINATED, keys.NEXT_DONE, keys.END_OF_LIFE):
        sample[key] = ends.clone()
    sample["is_init"][2] = True
    assert {error.key for error in check_layout(sample).errors} == {keys.TRAJ_IDS}
    sample["index"] = torch.arange(5)
    assert check_layout(sample).ok
    away = sample[[0, 1, 4]]  # the same trajectory again, further on
    away["is_init"][2] = True
    assert check_layout(away).ok
    sample["next", "game", "fell"] = sample["next"].pop("end-of-life")
    assert {error.key for error in check_layout(sample).errors} == {keys.TRAJ_IDS}
    assert check_layout(sample, eol_key=("game", "fell")).ok
    assert not check_layout(sample, eol_key="elsewhere").ok
    with pytest.raises(TypeError, match="eol_key: expected a string or a tuple of strings, got 3"):
        check_layout(sample, eol_key=3)


@pytest.mark.parametrize("width", [1, 2])
def test_rows_drawn_one_by_one_are_no_neighbours(width):
    rows = trajectories([9, 8])
    drawn = torch.tensor([3, 7, 5, 8, 2, 10, 16, 12, 11])
    sample = rows[drawn]
    assert check_layout(sample).errors
    place = torch.stack([torch.zeros_like(drawn), drawn], -1)
    sample["index"] = drawn if width == 1 else place
    assert check_layout(sample).ok
    sample["next", "done"][2] = ~sample["next", "done"][2]  # what one row says of itself counts
    assert {error.key for error in check_layout(sample).errors} == {keys.NEXT_DONE}
    glued = rows[torch.tensor([1, 2, 3, 5, 6, 7])]  # slices without their marks
    glued["index"] = torch.tensor([1, 2, 3, 5, 6, 7])
    assert {error.key for error in check_layout(glued).errors} == {keys.TRAJ_STEP}


def test_observations_of_rows_drawn_one_by_one_are_not_compared():
    rows = trajectories([9, 8]).exclude("collector", "is_init")  # as a loop adds them, without ids
    rows.names = None
    drawn = torch.tensor([3, 8, 5, 7, 2, 10, 16, 12, 11, 13, 14])
    sample = rows[drawn]
    assert check_layout(sample).notes
    sample["index"] = drawn
    assert not check_layout(sample).findings
