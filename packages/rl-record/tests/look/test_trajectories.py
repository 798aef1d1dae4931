import numpy as np
import pytest
import torch
from hypothesis import given
from tensordict import TensorDict

from rl_layout import EndKind, keys
from rl_layout.testing import environments, plain_batches, trajectories
from rl_record.look.trajectories import Trajectories

TERMINATED, TRUNCATED, CUT = EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT


def test_lengths_ends_and_returns_by_hand():
    batch = trajectories([2, 3, 1], [TERMINATED, TRUNCATED, CUT])
    batch["next", "reward"] = torch.tensor([1.0, 2, 10, 20, 30, 5]).unsqueeze(-1)
    found = Trajectories.of(batch)
    assert found.lengths.tolist() == [2, 3, 1]
    assert found.kinds.tolist() == [TERMINATED, TRUNCATED, CUT]
    assert found.returns.tolist() == [3, 60, 5]
    assert found.ids.tolist() == batch["collector", "traj_ids"][[0, 2, 5]].tolist()
    assert found.is_whole.tolist() == [True, True, False]


def test_pieces_of_one_trajectory_are_joined_wherever_they_are_stored():
    batch = trajectories([4, 3], [TERMINATED, TRUNCATED])
    batch["next", "reward"] = torch.tensor([1.0, 2, 4, 8, 16, 32, 64]).unsqueeze(-1)
    order = torch.tensor([2, 3, 4, 5, 0, 1, 6])  # as a ring, or several producers, leave them
    found = Trajectories.of(batch[order])
    assert found.lengths.tolist() == [3, 4]  # in the order of their first rows, 2 and 4
    assert found.kinds.tolist() == [TRUNCATED, TERMINATED]
    assert found.returns.tolist() == [112, 15]
    assert found.starts.tolist() == [2, 6, 4, 0]
    assert found.offsets.tolist() == [0, 2, 0, 2]
    owners, steps = found.locate(np.arange(7))
    assert owners.tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert steps.tolist() == [2, 3, 0, 1, 0, 1, 2]


def test_a_hole_and_a_start_keep_pieces_apart():
    batch = trajectories([6], [TERMINATED])
    assert Trajectories.of(batch[[0, 1, 3, 4, 5]]).lengths.tolist() == [2, 3]
    batch["is_init"][2] = True
    assert Trajectories.of(batch[[2, 3, 4, 5, 0, 1]]).lengths.tolist() == [4, 2]


def test_rows_that_begin_in_mid_trajectory_do_not_begin():
    batch = trajectories([3, 2], first_step=4)
    assert Trajectories.of(batch.exclude("is_init")).begins.tolist() == [False, True]
    found = Trajectories.of(batch)
    assert found.begins.tolist() == [False, True]
    assert found.is_whole.tolist() == [False, True]


def test_rows_of_environments_and_padding():
    batch = environments(2, 5, [3, 4], [TERMINATED])
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    batch[keys.MASK] = mask
    found = Trajectories.of(batch)
    assert int(found.lengths.sum()) == 8
    assert found.locate(np.array([7, 8, 9]))[0].tolist()[1:] == [-1, -1]


def test_several_rewards_a_row_have_no_return():
    batch = trajectories([2, 3])
    batch["next", "reward"] = torch.zeros(5, 2)
    assert Trajectories.of(batch).returns is None
    assert Trajectories.of(batch.exclude(("next", "reward"))).returns is None


@pytest.mark.filterwarnings("ignore:.*contradict")
@given(plain_batches())
def test_every_real_row_is_in_one_trajectory_and_joins_obey_the_rule(batch):
    found = Trajectories.of(batch)
    flat = batch.reshape(-1)
    real = flat.get(keys.MASK, torch.ones(len(flat), dtype=torch.bool)).numpy()
    owners, steps = found.locate(np.arange(len(flat)))
    ids = flat.get(keys.TRAJ_IDS, None)
    if ids is not None and keys.MASK not in batch.keys(True):
        real = real & (ids != -1).numpy()
    assert (owners[~real] == -1).all()
    assert found.lengths.sum() == (owners >= 0).sum()
    assert np.bincount(owners[owners >= 0], minlength=len(found)).tolist() == found.lengths.tolist()
    for owner in range(len(found)):
        rows = (owners == owner).nonzero()[0]
        assert sorted(steps[rows].tolist()) == list(range(len(rows)))
        if ids is not None:
            assert len(set(ids[rows].tolist())) == 1


def test_rows_without_markers_are_refused():
    with pytest.raises(KeyError, match="marker"):
        Trajectories.of(TensorDict({"observation": torch.zeros(3)}, [3]))
