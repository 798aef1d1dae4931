"""Deferred transforms: which can wait for the batch, and what they continue from."""

import pytest
import torch
from tensordict import TensorDict

from rl_envs.rollouts.deferred_transforms import apply_deferred, can_continue, split_for
from rl_transforms import InitTracker, RewardSum, StepCounter, Transform


class RunningMean(Transform):
    """Needs the last finished row itself, not only the root after it."""

    def rows(self, batch, last=None):
        return batch


@pytest.mark.parametrize(("key", "num_stepping"), [("observation", 0), ("is_init", 1)])
def test_split_for_defers_an_init_tracker_that_the_policy_does_not_read(key, num_stepping):
    tracker, total = InitTracker(), RewardSum()
    stepping, waiting = split_for([tracker, total], [(key,)])
    assert stepping == [tracker][:num_stepping]
    assert waiting == [tracker, total][num_stepping:]


def test_can_go_on_is_false_where_a_transform_needs_the_row_before():
    assert can_continue([StepCounter(), Transform()])
    assert not can_continue([StepCounter(), RunningMean()])


def test_finish_continues_the_counts_of_a_root():
    flag = torch.tensor([[False], [True]])
    batch = TensorDict({"next": {"done": flag, "reward": torch.ones(2, 1)}}, [2])
    root = TensorDict({"step_count": torch.tensor([7]), "done": torch.tensor([False])}, [])
    assert apply_deferred([StepCounter()], batch, root)["step_count"].flatten().tolist() == [7, 8]
