from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import Segments, check_layout, keys
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_layout.testing import batches
from rl_recurrent.backends.static.unroll import start_flags
from rl_recurrent.inputs import recurrent_segments, refuse_sequence, require_sequence
from rl_transforms import MultiStep

ENDS = [EndKind.TERMINATED, EndKind.TRUNCATED]


def unmarked(batch):
    """The batch with an ``is_init`` that is False everywhere."""
    return batch.clone().set("is_init", torch.zeros_like(batch["is_init"]))


@pytest.mark.parametrize("gone", [[], [keys.TRAJ_IDS], [keys.TRAJ_STEP], ["collector"]], ids=str)
@pytest.mark.parametrize("end", ENDS)
def test_all_false_is_init_raises_with_the_row_after_an_end(gone, end):
    batch = trajectories([3, 2], [end, end], first_step=4).exclude(*gone)
    assert recurrent_segments(batch).starts.tolist() == [0, 3]
    with pytest.raises(ValueError, match="is_init is False at row 3, where another"):
        recurrent_segments(unmarked(batch))
    with pytest.raises(RuntimeError, match="another trajectory starts"):
        start_flags(unmarked(batch))


def test_error_on_a_grid_names_the_indices_of_the_row():
    batch = environments(2, 5, [3, 4], ENDS)
    with pytest.raises(ValueError, match=r"is_init is False at row \(0, 0\)"):
        recurrent_segments(unmarked(batch))
    batch = environments(2, 5, [3, 4], ENDS).exclude(keys.TRAJ_STEP)
    with pytest.raises(ValueError, match=r"is_init is False at row \(0, 3\)"):
        recurrent_segments(unmarked(batch))


def test_unmarked_first_step_raises_without_any_end():
    batch = trajectories([3, 2], EndKind.CUT)
    batch["is_init"][3] = False
    with pytest.raises(ValueError, match="at row 3"):
        recurrent_segments(batch)


def slices_of(batch, starts, length):
    """A sample of slices as a sampler marks it."""
    rows = torch.cat([torch.arange(start, start + length) for start in starts])
    sample = batch[rows]
    sample["is_init"][::length] = True
    last = torch.arange(length - 1, len(rows), length)
    sample["next", "truncated"][last] |= ~sample["next", "terminated"][last]
    sample["next", "done"][last] = True
    return sample


def padded():
    """A trajectory that ends, padding that repeats its last row, and the middle of another."""
    first, last = trajectories([3]), trajectories([2], first_step=4, first_id=9)
    padding = first[-1:].clone()
    padding[keys.TRAJ_IDS], padding[keys.TRAJ_STEP] = torch.tensor([-1]), torch.tensor([0])
    batch = torch.cat([first, padding, last])
    batch[keys.MASK] = torch.tensor([True, True, True, False, True, True])
    return batch


LEGAL = {
    "padding": padded(),
    "padding without ids and steps": padded().exclude(keys.TRAJ_IDS, keys.TRAJ_STEP),
    "environments side by side": environments(3, 7, [2, 5], ENDS),
    "rows of a grid that begin in mid-trajectory after an end": environments(3, 8, [2, 4], ENDS)[
        :, 2:6
    ].exclude(keys.TRAJ_IDS, keys.TRAJ_STEP),
    "rows of a grid laid end to end": environments(3, 7, [2, 5], ENDS).reshape(-1),
    "the same, cut where one has just ended": environments(3, 6, [2, 4], ENDS).reshape(-1),
    "a beginning in mid-trajectory": trajectories([4, 2], first_step=9),
    "cuts without a flag": trajectories([4, 2], EndKind.CUT),
    "n-step rows": MultiStep(gamma=0.9, n_steps=3)(environments(2, 9, [5], ENDS)),
    "slices": slices_of(trajectories([6, 8]), [0, 7, 2], 4),
    "slices of n-step rows": slices_of(
        MultiStep(gamma=0.9, n_steps=3)(trajectories([6, 8])[None]).squeeze(0), [0, 7, 2], 4
    ),
    "single rows of many trajectories": trajectories([6, 8])[torch.tensor([3, 9, 0, 12])],
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_batches_raise_no_false_alarm(name):
    batch = LEGAL[name]
    segments = recurrent_segments(batch)
    assert segments.starts.tolist() == Segments.of(batch).starts.tolist()
    starts, real = start_flags(batch)
    assert (starts & real).nonzero()[:, 0].tolist() == segments.starts.tolist()
    assert real.sum() == segments.num_real


@given(batches())
def test_refused_batches_are_those_that_check_layout_reports(batch):
    if batch.get("is_init", None) is None:
        with pytest.raises(KeyError, match="InitTracker"):
            recurrent_segments(batch)
        return
    broken = unmarked(batch)
    found = [f.message for f in check_layout(broken).errors if f.key == "is_init"]
    # ids alone, without an end, may also be rows of a grid laid end to end
    wanted = any("another id" not in message for message in found)
    try:
        recurrent_segments(broken)
    except ValueError:
        assert wanted
    else:
        assert not wanted


@given(batches())
def test_static_flags_equal_segments(batch):
    if batch.get("is_init", None) is None:
        return
    segments = recurrent_segments(batch)
    starts, real = start_flags(batch)
    assert torch.equal(real, segments.ids.flatten() >= 0)
    assert (starts & real).nonzero()[:, 0].tolist() == segments.starts.tolist()


@given(st.integers(1, 5))
def test_segments_are_those_of_the_batch(num_steps):
    batch = trajectories([num_steps, 2])
    assert recurrent_segments(batch) is Segments.of(batch)


def test_batch_without_rows_or_with_a_wrong_flag_raises():
    flag = torch.zeros(3, 1)
    with pytest.raises(TypeError, match=r"expected torch.bool"):
        recurrent_segments(TensorDict({"is_init": flag}, [3]))
    with pytest.raises(ValueError, match="unsqueeze"):
        recurrent_segments(TensorDict({"is_init": flag[:, 0] == 1}, [3]))


GRID = environments(3, 4, [5], [EndKind.TERMINATED])


def unnamed(batch):
    return TensorDict(batch.to_dict(), batch.batch_size)


SEQUENCES = {
    "named, without any marker": GRID.select("observation"),
    "ids that continue": unnamed(trajectories([4])).exclude("next"),
    "ids that continue, without steps": unnamed(trajectories([4]).exclude(keys.TRAJ_STEP)),
    "a slice that a buffer drew": unnamed(trajectories([4]))
    .set("index", torch.arange(4))
    .set(keys.SLICE_IDS, torch.zeros(4, dtype=torch.int64)),
    "a grid of steps that were taken": unnamed(GRID).exclude("collector"),
}
ROWS = unnamed(trajectories([6, 5]))
STEPS = {
    "rows of one id in another order": ROWS[torch.tensor([3, 1, 5, 0, 4, 2, 9, 7])],
    "rows of one id, two of which follow by chance": ROWS[torch.tensor([3, 4, 1, 5, 0])],
    "rows that a buffer drew one by one": unnamed(trajectories([4])).set("index", torch.arange(4)),
    "one environment": GRID[0, 0],
    "several environments": GRID[:, 1],
    "one step along time": GRID[:, 1:2],
    "environments in two dimensions": TensorDict({"x": torch.zeros(2, 3, 1)}, [2, 3]),
    "single rows of a buffer": unnamed(trajectories([1, 1, 1])),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_raise_by_name_ids_or_shape(name):
    with pytest.raises(ValueError, match="sequential mode expects one step"):
        refuse_sequence(SEQUENCES[name])


@pytest.mark.parametrize("name", STEPS)
def test_single_steps_are_accepted(name):
    refuse_sequence(STEPS[name])


def test_row_without_time_raises_in_recurrent_mode():
    with pytest.raises(ValueError, match=r"got batch size \[\]"):
        require_sequence(GRID[0, 0])
    require_sequence(GRID)
    assert GRID.names[-1] == keys.TIME


def test_padded_environments_are_no_sequence():
    row = trajectories([1, 1, 1, 1]).exclude("next")
    row.names = None
    row[keys.TRAJ_IDS] = torch.tensor([7, -1, -1, 8])
    refuse_sequence(row)
    row[keys.TRAJ_IDS] = torch.tensor([7, 7, -1, 8])
    refuse_sequence(row)  # one id, but no step follows the other
    row[keys.TRAJ_STEP] = torch.tensor([4, 5, 0, 0])
    with pytest.raises(ValueError, match="sequential mode expects one step"):
        refuse_sequence(row)
