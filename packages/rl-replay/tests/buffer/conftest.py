"""Buffers of a few rows."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyTensorStorage,
    ReplayBuffer,
)


def _steps(count: int, first: int = 0) -> TensorDict:
    row = torch.arange(first, first + count)
    return TensorDict({"a": row, "b": {"c": row.unsqueeze(-1) + 0.5}}, [count])


def _filled(count: int = 5, **parts) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), **parts)
    buffer.extend(_steps(count))
    return buffer


@pytest.fixture(scope="session")
def filled():
    """Make a buffer of so many rows."""
    return _filled


@pytest.fixture(scope="session")
def steps():
    """Make so many rows, from a first number on."""
    return _steps
