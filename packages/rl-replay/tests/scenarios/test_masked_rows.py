"""Rows in which a vector only reset, kept in their place with a mask that is False."""

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_replay import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    RandomSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def next_step_vector(lengths, steps):
    """Calls `[num_envs]` of environments that reset in the step after the last; [env, number]."""
    number = torch.zeros(len(lengths), dtype=torch.int64)  # of the steps of all episodes
    step, calls = torch.zeros_like(number), []
    for _ in range(steps):
        resets = step == torch.tensor(lengths)
        now, step = (
            torch.stack([torch.arange(len(lengths)), number], -1),
            torch.where(resets, 0, step + 1),
        )
        number = number + 1
        calls.append(
            TensorDict(
                {
                    "observation": now.float(),
                    "collector": {"mask": ~resets},
                    "next": {
                        "observation": torch.stack([now[:, 0], number], -1).float(),
                        "reward": torch.ones(len(lengths), 1),
                        "done": (step == torch.tensor(lengths)).unsqueeze(-1),
                    },
                },
                [len(lengths)],
            )
        )
    return calls


def filled(sampler, ndim):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=ndim), sampler=sampler, batch_size=60
    )
    for rows in next_step_vector([3, 4, 5], 20):
        (buffer.add if ndim == 2 else buffer.extend)(rows)
    return buffer


@pytest.mark.filterwarnings("ignore:.*neighbours inside one extend:UserWarning")
@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SliceSampler(slice_len=3),
        lambda: SliceSampler(slice_len=3, by="step", span=True),
        lambda: SliceSamplerWithoutReplacement(slice_len=3),
        lambda: PrioritizedSliceSampler(max_capacity=60, alpha=0.7, beta=0.5, slice_len=3),
    ],
    ids=["slices", "by step", "once each", "by priority"],
)
def test_slices_hold_no_row_that_is_masked_out(sampler, ndim):
    buffer = filled(sampler(), ndim)
    # 20 calls are five episodes of 3 steps and a reset, four of 4, three of 5 and 2 steps
    lengths = sorted([3] * 5 + [4] * 4 + [5] * 3 + [2])
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == lengths
    for _ in range(5):
        sample = buffer.sample()
        assert sample[keys.MASK].all()
        inside = sample[keys.SLICE_IDS][1:] == sample[keys.SLICE_IDS][:-1]
        ahead = (sample["observation"][1:] - sample["observation"][:-1])[inside]
        assert torch.equal(ahead, torch.tensor([0.0, 1]).expand_as(ahead))


@pytest.mark.filterwarnings("ignore:.*neighbours inside one extend:UserWarning")
def test_samplers_of_rows_draw_masked_rows_and_say_so():
    sample = filled(RandomSampler(), 1).sample()
    assert 0 < int((~sample[keys.MASK]).sum()) < 30
