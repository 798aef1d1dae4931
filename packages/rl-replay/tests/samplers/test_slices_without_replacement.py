from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout.testing import trajectories
from rl_replay import LazyTensorStorage
from rl_replay.samplers import SliceSamplerWithoutReplacement


def stored(lengths, capacity=100):
    storage = LazyTensorStorage(capacity)
    storage.extend(trajectories(lengths))
    return storage


def ids_of(storage, sampler, batch_size):
    """The trajectory of each slice of a sample; ids of the synthetic ones count from 7."""
    numbers, info = sampler.sample(storage, batch_size)
    sample = storage.read(storage.ring.positions(numbers))
    return sample["collector", "traj_ids"][info["slices"].starts].tolist()


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=50)
def test_epoch_takes_every_trajectory_once(lengths, count, drop_last, seed):
    storage = stored(lengths)
    sampler = SliceSamplerWithoutReplacement(num_slices=count, drop_last=drop_last)
    sampler.generator = torch.Generator().manual_seed(seed)
    if drop_last and count > len(lengths):
        with pytest.raises(
            ValueError, match=f"{len(lengths)} of {len(lengths)} traj.*takes {count}"
        ):
            sampler.sample(storage, 3 * count)
        return
    wanted = len(lengths) // count * count if drop_last else len(lengths)
    for _ in range(2):
        taken = []
        while not taken or not sampler.ran_out:
            taken += ids_of(storage, sampler, 3 * count)
        assert len(taken) == len(set(taken)) == wanted
        assert set(taken) <= set(range(7, 7 + len(lengths)))


def test_order_is_random_or_that_of_the_rows():
    storage = stored([2] * 30)
    straight = SliceSamplerWithoutReplacement(num_slices=30, shuffle=False)
    assert ids_of(storage, straight, 60) == list(range(7, 37))
    mixed = SliceSamplerWithoutReplacement(num_slices=30)
    mixed.generator = torch.Generator().manual_seed(0)
    first, second = ids_of(storage, mixed, 60), ids_of(storage, mixed, 60)
    assert sorted(first) == sorted(second) == list(range(7, 37))
    assert list(range(7, 37)) != first != second


def test_place_in_each_trajectory_is_drawn_uniformly():
    storage = stored([6])
    sampler = SliceSamplerWithoutReplacement(slice_len=4)
    sampler.generator = torch.Generator().manual_seed(0)
    firsts = [int(sampler.sample(storage, 4)[0][0]) for _ in range(900)]
    assert np.abs(np.bincount(firsts, minlength=3) - 300).max() < 5 * 300**0.5


def test_strict_length_leaves_out_short_trajectories():
    storage = stored([2, 5, 3, 6])
    sampler = SliceSamplerWithoutReplacement(slice_len=5, strict_length=True)
    taken = ids_of(storage, sampler, 5) + ids_of(storage, sampler, 5)
    assert (sorted(taken), sampler.ran_out) == ([8, 10], True)
    sampler = SliceSamplerWithoutReplacement(slice_len=7, strict_length=True)
    with pytest.raises(ValueError, match="0 of 4 trajectories have 7 rows, the longest has 6"):
        sampler.sample(storage, 7)


def test_trajectories_written_in_mid_epoch_wait_for_the_next_one():
    """One trajectory is overwritten, one grows, one is new: it waits for the next epoch."""
    storage = LazyTensorStorage(12)
    batch = trajectories([3, 2, 4, 9], first_id=0)
    storage.extend(batch[:8])  # trajectories 0, 1 and three rows of 2
    sampler = SliceSamplerWithoutReplacement(num_slices=1, shuffle=False)
    assert ids_of(storage, sampler, 9) == [0]
    storage.extend(batch[8:16])  # overwrites 0 and half of 1
    assert ids_of(storage, sampler, 9) == [1]
    numbers, _ = sampler.sample(storage, 9)
    assert numbers.tolist() == [5, 6, 7, 8]  # as it is now
    assert sampler.ran_out
    assert [ids_of(storage, sampler, 9) for _ in range(3)] == [[1], [2], [3]]


def test_epoch_without_live_trajectories_is_followed_by_the_next():
    storage = LazyTensorStorage(6)
    batch = trajectories([2] * 9, first_id=0)
    storage.extend(batch[:6])
    sampler = SliceSamplerWithoutReplacement(num_slices=2, shuffle=False)
    assert ids_of(storage, sampler, 4) == [0, 1]
    storage.extend(batch[6:12])
    assert ids_of(storage, sampler, 4) == [3, 4]
    storage.ring.empty()
    storage.extend(batch[12:14])
    assert ids_of(storage, sampler, 4) == [6]


def test_loaded_sampler_continues_the_epoch():
    storage = stored([3] * 10)
    first = SliceSamplerWithoutReplacement(num_slices=3)
    taken = ids_of(storage, first, 9)
    second = SliceSamplerWithoutReplacement(num_slices=3)
    second.load_state_dict(first.state_dict())
    while not second.ran_out:
        taken += ids_of(storage, second, 9)
    assert sorted(taken) == list(range(7, 17))
