"""A learner that forgets to hand its weights to the workers is told so."""

import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_collect import MultiAsyncCollector, MultiSyncCollector
from rl_collect.weights.unpublished import PATIENCE
from rl_envs.testing import CountingEnv

SAID = "not handed to the workers"


class Zero(torch.nn.Module):
    """The first action, and a weight that a learner writes to."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        chosen = CountingEnv().action_spec.zero(observation.shape[:-1])
        chosen[..., 0] = True
        return chosen


def play(kind, learns, publishes, batches):
    policy = TensorDictModule(Zero(), ["observation"], ["action"])
    learner = torch.optim.SGD(policy.parameters(), lr=0.1)
    with kind([CountingEnv], policy, frames_per_batch=4, mp_start_method="fork") as collector:
        for number in range(batches):
            collector.next()
            if learns:
                policy.module.weight.grad = torch.ones(())
                learner.step()
            if publishes and number == PATIENCE // 2:
                collector.update_policy_weights_()


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_weights_that_are_never_published_are_said_once(kind):
    with pytest.warns(UserWarning, match=SAID) as told:
        play(kind, learns=True, publishes=False, batches=3 * PATIENCE)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize(
    ("learns", "publishes", "batches"),
    [(False, False, PATIENCE + 5), (True, True, 3 * PATIENCE), (True, False, PATIENCE)],
)
def test_other_learners_are_told_nothing(learns, publishes, batches):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(MultiSyncCollector, learns, publishes, batches)
