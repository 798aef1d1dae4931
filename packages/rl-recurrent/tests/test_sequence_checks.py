from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_recurrent.inputs import refuse_sequence, require_sequence

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
