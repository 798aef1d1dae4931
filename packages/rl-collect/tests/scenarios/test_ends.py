"""How a collection ends: with its program, in time, and not before its first rows are there."""

import logging
import subprocess
import sys
import threading

import pytest
import torch

from rl_collect import Collector, MultiAsyncCollector, MultiSyncCollector
from rl_envs.testing import CountingEnv, RaisingEnv


class Buffer(list):
    """Stores every batch."""

    def extend(self, batch):
        self.append(batch)

    @property
    def frames(self):
        return sum(batch.numel() for batch in self)


PROGRAM = """
import sys
import torch
from tensordict.nn import TensorDictModule
from rl_collect import Collector, MultiCollector
from rl_envs import GymEnv
from rl_envs.testing import CountingEnv, RaisingEnv

class Buffer(list):
    def extend(self, batch):
        self.append(batch)

class Shared(Buffer):
    is_shared = True

def policy():
    draw = lambda seen: torch.nn.functional.one_hot(torch.randint(2, seen.shape[:-1]), 2) > 0
    return TensorDictModule(draw, ["observation"], ["action"])

def cart_pole():
    return GymEnv("CartPole-v1")

options = {"frames_per_batch": 64, "replay_buffer": Buffer()}
multi = {**options, "mp_start_method": "fork"}

def show(collector):
    print(*collector.pids, flush=True)
"""

STARTS = {
    "one": "collector = Collector(cart_pole(), policy(), **options)",
    "no reference is left": "Collector(cart_pole(), policy(), **options).start(); collector = None",
    "together": "collector = MultiCollector([cart_pole] * 2, policy(), sync=True, **multi)",
    "one by one": "collector = MultiCollector([cart_pole] * 2, policy(), sync=False, **multi)",
}
ENDS = {
    "its end": ("", 0),
    "an exception": ("raise ValueError('of the learner')", 1),
    "sys.exit": ("sys.exit(3)", 3),
}


def played(*lines):
    """Run a program, and say how it ended."""
    program = PROGRAM + "\n".join(lines)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def start_of(kind):
    lines = [STARTS[kind]]
    if "MultiCollector" in STARTS[kind]:
        lines.append("show(collector)")
    return [*lines, "if collector is not None: collector.start(min_frames=64)"]


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("one", "its end"),
        ("one", "an exception"),
        ("no reference is left", "sys.exit"),
        ("together", "its end"),
        ("one by one", "an exception"),
    ],
)
def test_a_program_that_ends_while_it_collects_ends_as_any_other(kind, end, gone):
    line, code = ENDS[end]
    found = played(*start_of(kind), line)
    assert found.returncode == code, found.stderr
    assert "terminate" not in found.stderr
    assert "ValueError: of the learner" in found.stderr or code != 1
    for pid in found.stdout.split():
        assert gone(int(pid))


def test_background_error_is_printed_at_exit_if_never_raised():
    found = played(
        "collector = Collector(RaisingEnv(3), **options)",
        "collector.start()",
        "while collector.is_running: pass",
    )
    assert found.returncode == 0
    assert "ZeroDivisionError: step 3 of this environment always fails" in found.stderr


def test_a_child_leaves_the_collector_of_its_parent_alone():
    found = played(
        "import os",
        "collector = Collector(cart_pole(), policy(), **options)",
        "collector.start(min_frames=1)",
        "child = os.fork()",
        "if child == 0:",
        "    sys.exit(0)",
        "assert os.waitpid(child, 0)[1] == 0",
        "frames = collector.frames",
        "collector.shutdown()",
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Collector(CountingEnv(), **options),
        lambda **options: MultiSyncCollector([CountingEnv] * 2, mp_start_method="fork", **options),
        lambda **options: MultiAsyncCollector(
            [CountingEnv] * 2, mp_start_method="fork", trajs_per_batch=1, **options
        ),
    ],
    ids=["one", "together", "one by one, whole trajectories"],
)
def test_start_waits_for_the_first_frames(make):
    buffer = Buffer()
    with make(frames_per_batch=10, replay_buffer=buffer) as collector:
        collector.start(min_frames=25)
        assert buffer.frames >= 25
        assert collector.is_running


def test_start_waits_for_all_frames_where_there_are_fewer():
    buffer = Buffer()
    with Collector(
        CountingEnv(), frames_per_batch=10, total_frames=20, replay_buffer=buffer
    ) as collector:
        collector.start(min_frames=1000)
        assert buffer.frames == 20


def test_frames_that_do_not_come_in_time_are_an_error_and_it_goes_on():
    buffer, options = Buffer(), {"frames_per_batch": 10, "trajs_per_batch": 1}
    with Collector(CountingEnv(10**9), replay_buffer=buffer, **options) as collector:
        with pytest.raises(TimeoutError, match=r"waited 0\.1 s for 5 frames .* and 0 came"):
            collector.start(min_frames=5, timeout_s=0.1)
        assert collector.is_running


def test_an_error_before_the_first_frames_is_raised_by_start():
    collector = Collector(RaisingEnv(3), frames_per_batch=10, replay_buffer=Buffer())
    with pytest.raises(ZeroDivisionError):
        collector.start(min_frames=5)
    collector.shutdown()


class Gate:
    """A policy that waits at a gate."""

    def __init__(self):
        self.is_there, self.opens = threading.Event(), threading.Event()

    def __call__(self, root):
        self.is_there.set()
        self.opens.wait(60)
        return root.set("action", torch.tensor([True, False]))


def test_shutdown_says_what_it_waits_for_and_stops_waiting(caplog, monkeypatch):
    monkeypatch.setattr("rl_collect.background_loop.SILENT_S", 0.05)
    gate = Gate()
    collector = Collector(
        CountingEnv(), gate, frames_per_batch=4, replay_buffer=Buffer(), shutdown_timeout_s=0.2
    )
    collector.start()
    assert gate.is_there.wait(60)
    with (
        caplog.at_level(logging.WARNING, "rl_collect"),
        pytest.raises(TimeoutError, match=r"within 0\.2 s"),
    ):
        collector.shutdown()
    assert "waiting up to 0 s more for the batch under way in the collector's thread" in caplog.text
    gate.opens.set()


class Stuck(CountingEnv):
    """Hangs at its third step."""

    def _step(self, tensordict):
        if int(self._count) == 2:
            threading.Event().wait()
        return super()._step(tensordict)


def test_shutdown_of_workers_has_one_time_limit_and_says_who_hangs(caplog, monkeypatch, gone):
    monkeypatch.setattr("rl_collect.background_loop.SILENT_S", 0.05)
    monkeypatch.setattr("rl_workers.pool.SILENT_S", 0.05)
    collector = MultiAsyncCollector(
        [Stuck, Stuck],
        frames_per_batch=4,
        replay_buffer=Buffer(),
        mp_start_method="fork",
        timeout_s=0.3,
        shutdown_timeout_s=1.0,
    )
    pids = collector.pids
    with pytest.raises(TimeoutError, match="collector worker 0"):
        collector.next()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TimeoutError, match="collector worker 1"),
    ):
        collector.shutdown()
    assert f"collector worker 0 (process {pids[0]})" in caplog.text
    assert all(gone(pid) for pid in pids)


def test_waits_and_shutdown_may_take_any_time(gone):
    forever, buffer = float("inf"), Buffer()
    options = {"frames_per_batch": 4, "total_frames": 8, "replay_buffer": buffer}
    collector = Collector(CountingEnv(), **options)
    collector.start(min_frames=8, timeout_s=forever)
    collector.wait(forever)
    collector.shutdown(forever)
    assert buffer.frames == 8
    workers = MultiSyncCollector([CountingEnv], frames_per_batch=4, mp_start_method="fork")
    pids = workers.pids
    workers.shutdown(forever)
    assert all(gone(pid) for pid in pids)


def test_a_limit_that_is_no_time_is_refused():
    with pytest.raises(ValueError, match="shutdown_timeout_s must be 0 or more seconds: got -1"):
        Collector(CountingEnv(), frames_per_batch=4, shutdown_timeout_s=-1)
    collector = Collector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match="timeout_s must be a number of seconds: got 'soon'"):
        collector.shutdown("soon")


def test_a_collector_is_true():
    assert Collector(CountingEnv(), frames_per_batch=4)
    assert Collector(CountingEnv(), frames_per_batch=4, total_frames=8)


class Waiting(Buffer):
    """Waits for its first rows on request, as buffers of rl-replay do."""

    first_rows_timeout = 0.0


def test_a_buffer_is_told_to_wait_for_its_first_rows_while_somebody_writes():
    buffer = Waiting()
    collector = Collector(CountingEnv(), frames_per_batch=4, total_frames=8, replay_buffer=buffer)
    collector.start(timeout_s=7)
    assert buffer.first_rows_timeout == 7
    collector.wait()
    assert buffer.first_rows_timeout == 0
    collector.shutdown()


def test_a_limit_that_the_caller_gave_a_buffer_stays():
    buffer = Waiting()
    buffer.first_rows_timeout = 2.0
    with Collector(CountingEnv(), frames_per_batch=4, replay_buffer=buffer) as collector:
        collector.start()
        assert buffer.first_rows_timeout == 2.0
    assert buffer.first_rows_timeout == 2.0
