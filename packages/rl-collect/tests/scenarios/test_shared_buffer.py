"""Workers that write to a buffer of several processes themselves."""

import functools
import os

import pytest
import torch

from rl_collect import Collector, MultiAsyncCollector, MultiSyncCollector
from rl_envs.testing import CountingEnv, EpisodeStepEnv
from rl_layout import check_layout
from rl_replay import LazyTensorStorage, ReplayBuffer
from rl_replay.storages.row_store import PlainFewRows
from rl_slabs import Lane, Rows

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}
KINDS = [MultiSyncCollector, MultiAsyncCollector]
WAYS = {
    "fixed frames": {},
    "whole trajectories": {"trajs_per_batch": 1},
    "single rows": {"extend_buffer": False},
}
EPISODES = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])


def shared(capacity=4000, lanes=3):
    return ReplayBuffer(storage=LazyTensorStorage(capacity, lanes=lanes), shared=True)


def numbers(rows):
    return rows["collector", "traj_ids"] * 100 + rows["collector", "traj_step"]


def assert_genuine(rows):
    """Every row is a step that an environment has played, and none is there twice."""
    assert not check_layout(rows).errors
    shown, after = rows["observation"], rows["next", "observation"]
    assert torch.equal(shown[:, 1], rows["collector", "traj_step"])  # (episode, step)
    assert torch.equal(after, shown + torch.tensor([0, 1]))
    assert len(numbers(rows).unique()) == len(rows)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_workers_write_and_the_collector_counts(kind, way):
    buffer = shared()
    options = {"frames_per_batch": 20, "total_frames": 120, "replay_buffer": buffer, **WAYS[way]}
    with kind([EPISODES] * 2, **options, **FORK) as collector:
        assert set(collector) == {None}
        assert collector.frames == 120
        if way == "whole trajectories":
            assert len(buffer) <= 120
            ends = buffer[:]["next", "done"].sum()
            assert ends == len(buffer[:]["collector", "traj_ids"].unique())
    rows = buffer[:]
    assert len(rows) == 120  # the unfinished ones came last
    assert_genuine(rows)
    assert len((rows["collector", "traj_ids"] >> 32).unique()) == 2


def test_a_buffer_travels_to_workers_of_any_start_method():
    buffer = shared()
    options = {"frames_per_batch": 10, "total_frames": 10, "replay_buffer": buffer}
    with MultiSyncCollector([EPISODES], **options, timeout_s=60.0) as collector:
        list(collector)
    assert_genuine(buffer[:])


POINTS = {  # of many rows at a time, and of one; private: nothing public is called between leaves
    "before it writes": ((Lane.reserve, 0), (Lane.reserve, 0)),
    "before the first leaf": ((Rows.put, 0), (PlainFewRows.write, 0)),
    "between two leaves": ((Rows._write_on_cpu, 70), (PlainFewRows.write, 1)),
    "before rows are published": ((Lane.publish, 0), (Lane.publish, 0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_while_it_writes_leaves_only_whole_steps(trap, way, point):
    buffer = shared(lanes=2)  # the new worker takes the lane of the one that died
    options = {"frames_per_batch": 20, "replay_buffer": buffer, "restart_workers": True}
    options["pre_collect_hook"] = trap(*POINTS[point][way == "single rows"])
    with MultiAsyncCollector([EPISODES] * 2, **options, **WAYS[way], **FORK) as collector:
        for _ in range(12):
            collector.next()
            assert_genuine(buffer[:])
        assert collector.restarts == 1
    assert_genuine(buffer[:])
    ids = buffer[:]["collector", "traj_ids"]
    assert len((ids >> 32).unique()) == 3


def test_a_shared_buffer_is_filled_in_the_background():
    buffer = shared()
    options = {"frames_per_batch": 14, "total_frames": 420, "trajs_per_batch": 1}
    collector = MultiAsyncCollector([EPISODES] * 2, replay_buffer=buffer, **options, **FORK)
    collector.start()
    buffer.wait_until(40, timeout=60)
    while collector.is_running:
        rows = buffer.sample(16)
        assert torch.equal(rows["observation"][:, 1], rows["collector", "traj_step"])
    collector.wait()
    collector.shutdown()
    assert len(buffer) == 420
    assert_genuine(buffer[:])


def test_more_workers_than_lanes_are_refused():
    with pytest.raises(ValueError, match=r"2 lanes.*3 workers"):
        MultiAsyncCollector([EPISODES] * 3, frames_per_batch=6, replay_buffer=shared(lanes=2))


def test_workers_may_take_turns_in_one_lane():
    buffer = shared(lanes=1)
    options = {"frames_per_batch": 20, "total_frames": 120, "replay_buffer": buffer}
    with MultiAsyncCollector([EPISODES] * 2, **options, **FORK) as collector:
        list(collector)
    assert_genuine(buffer[:])


@pytest.mark.alone
def test_nothing_of_a_shared_buffer_stays_behind():
    before = set(os.listdir("/dev/shm"))
    options = {"frames_per_batch": 6, "total_frames": 12, "replay_buffer": shared()}
    with MultiSyncCollector([CountingEnv] * 2, **options, **FORK) as collector:
        list(collector)
    assert set(os.listdir("/dev/shm")) == before


def test_a_sample_behind_start_waits_for_the_first_rows():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
    with Collector(CountingEnv(), frames_per_batch=10, replay_buffer=buffer) as collector:
        collector.start()
        assert len(buffer.sample()) == 5
