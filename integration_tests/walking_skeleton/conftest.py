"""Agents, collectors and buffers of the walking skeleton."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from skeleton.buffer import ListBuffer
from skeleton.environments import CountingEnv
from skeleton.gru import GRUAgent
from skeleton.rows import Collector

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated"), (2, "truncated")]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def agent(generator):
    return GRUAgent(2, 7, 3, generator)


@pytest.fixture
def collector(agent):
    """Two counting environments that are told apart by their episodes, one producer."""
    environments = [CountingEnv(ENDINGS), CountingEnv(ENDINGS[::-1], first_episode=100)]
    return Collector(environments, agent, agent.primer(), producer=6)


def _filled(collector, *lengths, capacity=64):
    """Store one batch after another."""
    buffer = ListBuffer(capacity)
    for length in lengths:
        buffer.extend(collector.collect(length))
    return buffer


def _one_trajectory(num_steps):
    """Rows of one trajectory without an end, rewards 1, 2, 4, ..."""
    flags = torch.zeros(num_steps, 1, dtype=torch.bool)
    rows = TensorDict({}, [num_steps])
    rows[keys.IS_INIT] = flags.clone()
    rows[keys.NEXT_REWARD] = 2.0 ** torch.arange(num_steps).unsqueeze(-1)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        rows[key] = flags.clone()
    rows[keys.TRAJ_IDS] = torch.zeros(num_steps, dtype=torch.int64)
    rows[keys.TRAJ_STEP] = torch.arange(num_steps)
    return rows


def _dtypes_and_shapes(rows):
    return {keys.as_key(k): (v.dtype, v.shape[rows.ndim :]) for k, v in keys.leaves(rows)}


@pytest.fixture(scope="session")
def dtypes_and_shapes():
    return _dtypes_and_shapes


@pytest.fixture(scope="session")
def filled():
    """Store one batch after another."""
    return _filled


@pytest.fixture(scope="session")
def one_trajectory():
    """Rows of one trajectory without an end, rewards 1, 2, 4, ..."""
    return _one_trajectory
