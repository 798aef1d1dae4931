"""Collectors over all carriers, workers that count, and the policies that they act by."""

import functools
import inspect
import os
import socket
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import (
    DistributedDataCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
    RayCollector,
)
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


def _in_ranks(sync, makers, policy=None, **options):
    """A collector here, and a process for each worker that constructs the same one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    size = str(len(makers) + 1)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in common.items():
            patch.setenv(name, value)
        make = functools.partial(
            DistributedDataCollector, makers, policy, sync=sync, timeout_s=60.0, **options
        )
        for rank in range(1, len(makers) + 1):
            pid = os.fork()
            if not pid:
                _play(rank, make)
            threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()
        patch.setenv("RANK", "0")
        return make()


def _play(rank, make):
    """What a launcher has run in a rank: it ends with the learner."""
    os.environ["RANK"] = str(rank)
    try:
        make()
    finally:
        os._exit(0)


_RANKS = _Kinds(functools.partial(_in_ranks, True), functools.partial(_in_ranks, False))


@pytest.fixture(scope="session")
def ray_of_actors(own_ray_home):
    """One session of Ray for all tests over carriers."""
    with own_ray_home() as home:
        import ray

        options = {"include_dashboard": False, "log_to_driver": False, "_temp_dir": home}
        ray.init(num_cpus=4, object_store_memory=100 * 2**20, **options)
        yield


_CARRIERS = {"processes": _PROCESSES, "ranks": _RANKS, "actors": _ACTORS}
_IN_ACTORS = pytest.param("actors", marks=pytest.mark.ray)


def _carrier(request):
    if request.param == "actors":
        request.getfixturevalue("ray_of_actors")
    return _CARRIERS[request.param]


@pytest.fixture(params=["processes", "ranks", _IN_ACTORS])
def carrier(request):
    """Collectors whose workers are processes, ranks of a script, or actors."""
    return _carrier(request)


@pytest.fixture(params=["processes", _IN_ACTORS])
def starting_carrier(request):
    """Those that start, replace and end their workers; a launcher does so for ranks."""
    return _carrier(request)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run tests of ranks in a process each: gloo leaves threads, and who has some may not fork."""
    callspec = getattr(pyfuncitem, "callspec", None)
    if callspec is None or callspec.params.get("carrier") != "ranks":
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)  # OpenMP's threads of earlier tests are not there after a fork
        try:
            pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
            os._exit(0)
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-60_000:])  # what a pipe holds
        finally:
            os._exit(1)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read) as told:
        if status:
            text = os.read(told.fileno(), 60_000).decode() or f"it ended with status {status}"
            pytest.fail(text, pytrace=False)
    return True
