"""Buffers of a few trajectories, and whether two are the same."""

import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    TensorDictReplayBuffer,
)


def _batch(lengths, start=0, frame=False):
    rows = trajectories(lengths, first_id=start)
    count = len(rows)
    observation = torch.randn(count + 1, 3)
    rows["observation"], rows["next", "observation"] = observation[:-1], observation[1:]
    if frame:
        frames = torch.randint(255, (count + 1, 5, 67), dtype=torch.uint8)
        rows["frame"], rows["next", "frame"] = frames[:-1], frames[1:]
    return rows


def _buffer(storage, sampler, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=6, generator=generator
    )


def _write(found, start, frame=True):
    rows = _batch([4, 3, 5], start, frame)
    rows = rows.reshape(4, 3) if found.storage.ndim == 2 else rows
    found.extend(rows)
    return rows


def _assert_same(one, two):
    keys = set(one.keys(True, True))
    assert set(two.keys(True, True)) == keys
    for key in keys:
        left, right = one[key].contiguous(), two[key].contiguous()
        assert left.dtype is right.dtype
        assert left.numpy().tobytes() == right.numpy().tobytes(), key


@pytest.fixture(scope="session")
def assert_same():
    return _assert_same


@pytest.fixture(scope="session")
def batch():
    return _batch


@pytest.fixture(scope="session")
def buffer():
    return _buffer


@pytest.fixture(scope="session")
def write():
    return _write
