import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


@pytest.mark.parametrize("replacement", [None, 0, torch.zeros(2)])
@pytest.mark.parametrize("kind", [RandomSampler, SliceSampler])
def test_a_replacement_that_is_no_flag_is_named(kind, replacement):
    with pytest.raises(TypeError, match="replacement: expected True or False, got"):
        kind(replacement=replacement)


@pytest.mark.parametrize(
    "sampler", [SamplerWithoutReplacement(), SliceSamplerWithoutReplacement(slice_len=2)]
)
def test_an_epoch_begins_anew_in_the_buffer_that_a_sampler_is_moved_to(sampler):
    one, two = (TensorDictReplayBuffer(storage=LazyTensorStorage(12)) for _ in range(2))
    one.set_sampler(sampler)
    for buffer, first_id in ((one, 1), (two, 11)):
        buffer.extend(trajectories([2] * 6, first_id=first_id))
    one.sample(4)
    two.set_sampler(sampler)
    ids = two.sample(12)["collector", "traj_ids"]
    assert sorted(ids.tolist()) == sorted([*range(11, 17)] * 2)
