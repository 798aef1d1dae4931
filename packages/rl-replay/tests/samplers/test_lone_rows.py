"""A warning where slices are single rows because nothing joins the rows."""

import warnings

import numpy as np
import pytest

from rl_replay import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

SAMPLERS = {
    "with replacement": lambda: SliceSampler(slice_len=4),
    "without": lambda: SliceSamplerWithoutReplacement(slice_len=4),
    "by priority": lambda: PrioritizedSliceSampler(
        99, alpha=0.6, beta=0.4, slice_len=4, strict_length=False
    ),
}


def filled(make_sampler, number_of_rows=40, *, dtype=np.float64, ends=False):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(99), sampler=make_sampler(), batch_size=16
    )
    add(buffer, range(number_of_rows), dtype, ends=ends)
    return buffer


def add(buffer, numbers, dtype=np.float64, *, ends=False):
    for at in numbers:
        after = {"observation": np.full(2, at + 1, dtype), "reward": 1.0, "done": ends}
        buffer.add({"observation": np.full(2, at, np.float32), "next": after})


@pytest.mark.parametrize("make_sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_rows_that_nothing_joins_are_warned_of_once(make_sampler):
    buffer = filled(make_sampler)
    with pytest.warns(UserWarning, match=r"each of the 40 trajectories .* has one row.*explain"):
        sample = buffer.sample()
    assert len(sample) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.sample()


@pytest.mark.parametrize(
    "make_buffer",
    [
        lambda: filled(SAMPLERS["with replacement"], dtype=np.float32),  # they are joined
        lambda: filled(SAMPLERS["with replacement"], ends=True),  # episodes of one step
        lambda: filled(SAMPLERS["with replacement"], 20),  # too few to tell
        lambda: filled(lambda: SliceSampler(slice_len=1, num_slices=16)),  # asked for
    ],
    ids=["joined", "one-step episodes", "few", "single rows asked for"],
)
def test_other_rows_are_not_warned_of(make_buffer):
    buffer = make_buffer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.sample()


def test_rows_are_looked_at_again_while_they_are_few():
    buffer = filled(SAMPLERS["with replacement"], 20)
    buffer.sample()
    add(buffer, range(20, 40))
    with pytest.warns(UserWarning, match="has one row"):
        buffer.sample()
