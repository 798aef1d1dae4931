"""Rows of a vector laid along the batch, without ids: no transform mixes environments."""

import pytest
import torch

from rl_layout import keys
from rl_layout.testing import EndKind, environments
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_transforms import (
    CatFrames,
    HindsightRelabel,
    MultiStepTransform,
    NextStateReconstructor,
    TimeMaxPool,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*neighbours inside one extend:UserWarning")
NUM_ENVS, STEPS = 4, 6


def reached(rows):
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1).float()


def sample_of(transform, *, lossless=False, sampler=None, ids=False):
    """A sample of six steps of four environments, one call a step; observations are [id, step]."""
    played = environments(NUM_ENVS, STEPS, [9], [EndKind.CUT])
    played["depth"] = -played["observation"]
    played["achieved_goal"] = played["observation"]
    played["next", "achieved_goal"] = played["next", "observation"]
    played["desired_goal"] = torch.full_like(played["observation"], -1)
    played = played if ids else played.exclude("collector")
    if isinstance(transform, NextStateReconstructor):
        played = played.exclude(("next", "observation"), ("next", "achieved_goal"))
    played.names = None
    options = {"sampler": sampler} if sampler else {}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40, lossless=lossless),
        batch_size=24,
        transform=transform,
        generator=torch.Generator().manual_seed(7),
        **options,
    )
    for step in range(STEPS):
        buffer.extend(played[:, step])
    return buffer.sample()


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("sampler", [None, SliceSampler(slice_len=3)], ids=["rows", "slices"])
def test_a_stack_of_frames_is_of_one_environment(sampler, lossless):
    sample = sample_of(CatFrames(2, -1, ["observation"]), sampler=sampler, lossless=lossless)
    before, newest = sample["stacked_observation"].split(2, -1)
    assert torch.equal(newest, sample["observation"])
    # the first frame of a trajectory, step 0, is repeated
    assert torch.equal(before, (newest - torch.tensor([0, 1])).clamp(min=0))
    assert (before == newest).all(-1).any()


def test_a_pool_of_frames_is_of_one_environment():
    sample = sample_of(TimeMaxPool(["depth"], T=2))  # the frame before is the larger one
    expected = (sample["observation"] - torch.tensor([0, 1])).clamp(min=0)
    assert torch.equal(sample["depth"], -expected)


def test_goals_in_hindsight_are_reached_by_the_environment_itself():
    sample = sample_of(HindsightRelabel(reached, her_ratio=1, strategy="final"))
    assert torch.equal(sample["desired_goal"][:, 0], sample["observation"][:, 0])
    assert sample["desired_goal"][:, 1].unique().numel() == 1  # the last step of each


def test_rows_of_n_steps_end_in_the_environment_in_which_they_begin():
    sample = sample_of(MultiStepTransform(3, 0.5))
    assert sample["next", "steps_to_next_obs"].unique().tolist() == [3]
    assert torch.equal(sample["next", "observation"], sample["observation"] + torch.tensor([0, 3]))


def test_next_states_are_rebuilt_from_the_environment_itself():
    sample = sample_of(NextStateReconstructor(), ids=True)
    known = ~sample[keys.NEXT_MISSING]
    rows = sample[known]
    assert torch.equal(rows["next", "observation"], rows["observation"] + torch.tensor([0, 1]))
    last = sample["observation"][:, 1] == sample["observation"][:, 1].max()
    assert torch.equal(known, ~last)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_slices_of_n_step_rows_are_of_one_environment(lossless, masked):
    played = environments(3, 30, [9, 7, 11], [EndKind.TERMINATED, EndKind.TRUNCATED])
    if masked:
        played[keys.MASK] = torch.ones(3, 30, dtype=torch.bool)
    played = played.exclude(keys.TRAJ_IDS, keys.TRAJ_STEP, keys.IS_INIT)
    played.names = None
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, lossless=lossless),
        sampler=SliceSampler(slice_len=4),
        batch_size=40,
        transform=MultiStepTransform(3, 0.5),
    )
    for step in range(30):
        buffer.extend(played[:, step])  # warnings but of neighbours are errors here
    # three rows of each environment: the one that is under way has given its first only
    lengths = buffer.storage.trajectories().lengths().tolist()
    assert sorted(lengths) == sorted([9, 7, 11, 1] * 3)
    sample = buffer.sample()
    inside = sample[keys.SLICE_IDS][1:] == sample[keys.SLICE_IDS][:-1]
    steps = (sample["observation"][1:] - sample["observation"][:-1])[inside]
    assert torch.equal(steps, torch.tensor([0.0, 1]).expand_as(steps))


@pytest.mark.parametrize("sampler", [None, SliceSampler(slice_len=3)], ids=["rows", "slices"])
def test_stacks_of_rows_that_mark_no_start_are_refused_with_what_to_store(sampler):
    options = {"sampler": sampler} if sampler else {}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40),
        batch_size=9,
        transform=CatFrames(2, -1, ["observation"]),
        **options,
    )
    rows = environments(1, 9, [9], [EndKind.CUT])[0].exclude("collector", "is_init")
    buffer.extend(rows)
    with pytest.raises(KeyError, match="'is_init' True in the first row of each episode"):
        buffer.sample()
