"""Supervised processes: what they promise when all goes well, and when they or their parent end."""

import functools
import os
import sys

import cloudpickle
import pytest
import torch
from tensordict import TensorDict, set_lazy_legacy

from rl_workers import WorkerPool
from rl_workers.errors import (
    CallOutOfOrder,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

# this file is no module that another process could import
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_signals_carry_whole_numbers_both_ways(pool_of):
    with pool_of(2) as pool:
        pool.signal(0, "add", 5, -2)
        pool.signal(1, "add", 2**62)
        assert pool.receive_all() == [(6,), (4 + 2**62,)]
        pool.signal_all("nothing")
        assert pool.receive_all() == [(), ()]


def test_calls_carry_anything_of_any_length(pool_of):
    with pool_of(1) as pool:
        long = bytes(range(256)) * 5000
        assert pool.call(0, "echo", {"state": long}) == {"state": long}
        assert pool.call_all("add", [(5,)]) == [8]


def test_wait_names_the_workers_that_are_ready(gate, pool_of):
    with pool_of(3, gate=gate) as pool:
        pool.signal(0, "wait")
        pool.signal(2, "add")
        assert pool.wait() == [2]
        assert pool.receive(2) == (5,)
        gate.set()
        assert pool.wait() == [0]
        assert pool.receive(0) == (7,)


@pytest.mark.parametrize(("method", "count"), [("spawn", 1), (None, 2)])
def test_each_start_method_takes_a_lambda(method, count, pool_of):
    with pool_of(count, start_method=method) as pool:
        assert pool.call_all("add", [(5,), (11,)]) == [8, 15][:count]
        assert len({os.getpid(), *pool.pids}) == count + 1


def test_a_second_call_names_the_pending_one(gate, pool_of):
    with pool_of(2, gate=gate) as pool:
        pool.signal(1, "wait")
        with pytest.raises(
            CallOutOfOrder, match=r"worker 1 \(process \d+\).*'add': 'wait' is pend"
        ):
            pool.signal(1, "add")
        assert pool.pending == [None, "wait"]
        gate.set()
        assert pool.receive(1) == (7,)


def test_a_reply_that_nobody_asked_for_is_refused(pool_of):
    with pool_of(1) as pool:
        with pytest.raises(CallOutOfOrder, match="no call pending"):
            pool.receive(0)
        with pytest.raises(CallOutOfOrder, match="nothing to wait for"):
            pool.wait()


def test_an_unknown_signal_and_an_unknown_worker_are_named(pool_of):
    with pool_of(2) as pool:
        with pytest.raises(KeyError, match="'jump' is no signal"):
            pool.signal(0, "jump")
        with pytest.raises(IndexError, match="2 workers, from 0: got 2"):
            pool.signal(2, "add")


def test_pool_refuses_an_empty_list_of_workers_and_timeouts_of_zero():
    with pytest.raises(ValueError, match="at least one worker"):
        WorkerPool([])
    with pytest.raises(ValueError, match="timeout_s=0"):
        WorkerPool([list], timeout_s=0)
    with pytest.raises(TypeError, match="got int"):
        WorkerPool([3])


def test_a_worker_starts_after_operations_that_leave_modes_of_tensordict_unset():
    with set_lazy_legacy(True):
        pass
    assert os.environ["LAZY_LEGACY_OP"] == "None"  # as tensordict leaves it
    make = functools.partial(TensorDict, {"a": torch.zeros(3)}, [3])
    with WorkerPool([make], start_method="spawn") as pool:
        assert pool.call(0, "unsqueeze", 0).shape == (1, 3)
