"""Environments, policies and collectors of the promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_envs import GymEnv
from rl_envs.testing import CountingEnv
from rl_recurrent import GRUModule


def _cart() -> GymEnv:
    """A CartPole, as the documents make it."""
    return GymEnv("CartPole-v1", device=None)


def _short() -> CountingEnv:
    """An environment that counts to three."""
    return CountingEnv(max_steps=3)


def _recurrent() -> TensorDictSequential:
    """A policy whose state is written under `"next"`, and which pushes to the right."""
    gru = GRUModule(
        input_size=4,
        hidden_size=8,
        in_keys=["observation", "rs", "is_init"],
        out_keys=["features", ("next", "rs")],
    )
    right = lambda seen: torch.eye(2, dtype=torch.bool)[1].expand(*seen.shape[:-1], 2)  # noqa: E731
    return TensorDictSequential(gru, TensorDictModule(right, ["features"], ["action"]))


def _of_batches(collector: Any) -> list[TensorDictBase]:
    """Every batch, and the end of the collector."""
    with collector:
        return list(collector)


@pytest.fixture(scope="session")
def cart():
    """A CartPole, as the documents make it."""
    return _cart


@pytest.fixture(scope="session")
def of_batches():
    """Every batch, and the end of the collector."""
    return _of_batches


@pytest.fixture(scope="session")
def recurrent():
    """A policy whose state is written under `"next"`, and which pushes to the right."""
    return _recurrent


@pytest.fixture(scope="session")
def short():
    """An environment that counts to three."""
    return _short
