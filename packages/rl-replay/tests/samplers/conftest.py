"""Buffers whose rows have priorities, with every kind of storage."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictPrioritizedReplayBuffer,
)

STORAGES = {
    "memory": lambda: LazyTensorStorage(24),
    "file": lambda: LazyMemmapStorage(24),
    "columns": lambda: LazyTensorStorage(24, ndim=2),
    "columns in a file": lambda: LazyMemmapStorage(24, ndim=2),
    "lossless": lambda: LazyTensorStorage(24, lossless=True),
    "objects": lambda: ListStorage(24),
}


@pytest.fixture(params=STORAGES)
def kind(request):
    """A kind of storage, by name."""
    return request.param


@pytest.fixture(scope="session", name="rows")
def _rows():
    """A function of count and first number: rows with a number and observations."""
    return rows


@pytest.fixture(scope="session", name="prioritized")
def _prioritized():
    """A function of a storage: a buffer that draws from it by priority."""
    return prioritized


@pytest.fixture(scope="session", name="filled")
def _filled():
    """A function of a kind of storage: six rows of priorities 1 to 6, and their index."""
    return filled


@pytest.fixture(scope="session", name="knowledge")
def _knowledge():
    """A function of a buffer: everything that draws depend on."""
    return knowledge


def rows(count, first=0):
    number = torch.arange(first, first + count + 1)
    seen = number.float()[:, None] / 3
    leaves = {"number": number[:-1], "observation": seen[:-1], "next": {"observation": seen[1:]}}
    return TensorDict(leaves, [count])


def prioritized(storage, *, batch_size=4, shared=False, **options):
    parts = {"alpha": 0.6, "beta": 0.4} | options
    return TensorDictPrioritizedReplayBuffer(
        storage=storage,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        shared=shared,
        **parts,
    )


def filled(kind, **options):
    buffer = prioritized(STORAGES[kind](), **options)
    data = rows(6)
    index = buffer.extend(data.view(2, 3) if "columns" in kind else data)
    buffer.update_priority(index, torch.arange(1.0, 7.0))
    return buffer, index


def knowledge(buffer):
    """Everything that draws depend on."""
    sampler = buffer.sampler
    state = sampler.state_dict()
    return (state["priorities"].tolist(), sampler.alpha, sampler.beta, buffer.stats())
