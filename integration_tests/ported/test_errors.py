"""What other libraries raise as a RuntimeError, and scripts catch, is one here too."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_envs import SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_layout.testing import trajectories
from rl_recurrent import GRU
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_specs import Bounded, Composite, MultiOneHot, OneHot, Unbounded
from rl_transforms import NextObservationDelta, RandomCropTensorDict, TensorDictPrimer
from rl_value import GAE, DQNLoss

ROWS = trajectories([3, 4])
CRITIC = TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])


def filled(**parts):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), **parts)
    buffer.extend(ROWS)
    return buffer


def step_another_batch():
    env = CountingEnv(batch_size=(2,))
    env.reset()
    env.step(TensorDict({"action": torch.zeros(3, 2, dtype=torch.bool)}, [3]))


def infinite_loss():
    net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
    batch = trajectories([3, 4])
    batch["action"] = batch["action"].squeeze(-1) % 3
    batch["next", "reward"][0] = torch.inf
    DQNLoss(net, action_space="categorical")(batch)


MISTAKES = {
    "nothing to store": lambda: filled().extend(ROWS[:0]),
    "no object to store": lambda: ReplayBuffer(storage=ListStorage(4)).extend([]),
    "too many objects": lambda: ListStorage(4).extend(list(range(9))),
    "no batch size": lambda: filled().sample(),
    "no rows": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2).sample(),
    "no long trajectory": lambda: filled(
        sampler=SliceSampler(slice_len=6, strict_length=True), batch_size=6
    ).sample(),
    "no long trajectory in an epoch": lambda: filled(
        sampler=SliceSamplerWithoutReplacement(slice_len=6, strict_length=True), batch_size=6
    ).sample(),
    "batch of no whole slices": lambda: filled(
        sampler=SliceSampler(slice_len=3), batch_size=4
    ).sample(),
    "two sources of boundaries": lambda: SliceSampler(
        slice_len=2, ends=torch.ones(3, dtype=torch.bool), traj_key="episode"
    ),
    "too few priorities": lambda: filled(
        sampler=PrioritizedSampler(10, alpha=0.7, beta=0.5)
    ).update_priority(torch.arange(3), torch.ones(2)),
    "short rows": lambda: RandomCropTensorDict(50)(ROWS),
    "primer of another shape": lambda: TransformedEnv(
        CountingEnv(batch_size=(3,)), TensorDictPrimer(h=Unbounded((2,)))
    ).reset(),
    "transform in a worker": lambda: SerialEnv(
        2, lambda: TransformedEnv(CountingEnv(), NextObservationDelta())
    ),
    "step of another batch": step_another_batch,
    "value of another shape": lambda: Bounded(0, 1, (3,)).encode([1, 2]),
    "projection of another shape": lambda: Bounded(0, 1, (2,)).project(torch.zeros(3)),
    "bound of another shape": lambda: Bounded(torch.zeros(2), torch.ones(2), (4,)),
    "mask of another shape": lambda: OneHot(3, mask=torch.ones(2, 2, dtype=torch.bool)),
    "position out of range": lambda: MultiOneHot([2, 3]).encode([5, 1]),
    "spec on another device": lambda: Composite(a=Unbounded((1,), device="cpu"), device="meta"),
    "state of another shape": lambda: GRU(2, 3)(torch.zeros(1, 2, 2), torch.zeros(2, 3)),
    "no batch": lambda: GAE(gamma=0.9, lmbda=0.9, value_network=CRITIC)(ROWS[0]),
    "infinite loss": infinite_loss,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_value_that_does_not_fit_is_an_error_of_both_kinds(mistake):
    with pytest.raises(RuntimeError) as caught:
        MISTAKES[mistake]()
    assert isinstance(caught.value, ValueError)


def test_an_unknown_key_is_an_error_of_both_kinds():
    with pytest.raises(KeyError) as caught:
        GAE(gamma=0.9, lmbda=0.9).set_keys(speed="a")
    assert isinstance(caught.value, ValueError)
