"""Collectors over both carriers, workers that count, and the policies that they act by."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import MultiAsyncCollector, MultiSyncCollector, RayCollector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv


class _Weighted(nn.Module):
    """Writes its weight where it can be seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        choice = torch.zeros(*observation.shape[:-1], 2, dtype=torch.bool)
        choice[..., 0] = True
        return choice, self.weight.expand(observation.shape).clone()


def _policy():
    return TensorDictModule(_Weighted(), ["observation"], ["action", "weight"])


def _counting(length):
    return functools.partial(CountingEnv, length)


def _cart_poles():
    return SerialEnv(2, lambda: GymEnv("CartPole-v1"))


@pytest.fixture(scope="session")
def arranged_buffer(list_buffer):
    """A buffer whose storage has two dimensions."""

    class Arranged(list_buffer):
        class storage:
            ndim = 2

    return Arranged


@pytest.fixture(scope="session")
def weighted_network():
    """Writes its weight where it can be seen."""
    return _Weighted


@pytest.fixture(scope="session")
def cart_poles():
    return _cart_poles


@pytest.fixture(scope="session")
def counting():
    return _counting


@pytest.fixture(scope="session")
def policy():
    return _policy


class _Kinds(NamedTuple):
    """What makes collectors over one carrier."""

    sync: Callable[..., Any]  # together
    one_by_one: Callable[..., Any]


_PROCESSES = _Kinds(
    functools.partial(MultiSyncCollector, mp_start_method="fork", timeout_s=60.0),
    functools.partial(MultiAsyncCollector, mp_start_method="fork", timeout_s=60.0),
)
_ACTORS = _Kinds(
    functools.partial(RayCollector, sync=True, timeout_s=120.0),
    functools.partial(RayCollector, sync=False, timeout_s=120.0),
)


@pytest.fixture(params=["processes", pytest.param("actors", marks=pytest.mark.ray)])
def carrier(request):
    """Collectors whose workers are processes, and the same ones whose workers are actors."""
    if request.param == "processes":
        return _PROCESSES
    request.getfixturevalue("ray_session")
    return _ACTORS
