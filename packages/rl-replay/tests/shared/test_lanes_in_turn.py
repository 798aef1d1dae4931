"""How many rows a shared buffer keeps, with any number of writers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_transforms import CatFrames

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

CAPACITY = 240


def shared(**options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, **options),
        sampler=SliceSampler(slice_len=3),
        batch_size=12,
        shared=True,
    )


@pytest.mark.parametrize("lossless", [False, True])
def test_one_writer_keeps_as_many_rows_as_the_buffer_says_that_it_holds(lossless: bool) -> None:
    buffer = shared(lossless=lossless)
    for number in range(60):
        buffer.extend(trajectories([4, 6], first_id=2 * number))
        assert len(buffer) == min(10 * (number + 1), CAPACITY)
    assert buffer.stats()["capacity"] == CAPACITY
    ids = buffer[:]["collector", "traj_ids"].unique()
    assert ids.tolist() == list(range(72, 120))  # the newest, and no others
    assert (buffer[:]["next", "observation"][:, 1] == buffer[:]["collector", "traj_step"] + 1).all()
    buffer.storage.trajectories().check(buffer.storage.back)
    assert len(buffer.sample()) == 12


@pytest.mark.parametrize("count", [7, 13, 20, 29])
def test_no_row_is_overwritten_while_some_lane_has_room_for_the_next_ones(count: int) -> None:
    buffer = shared()
    lanes = 8
    fit = CAPACITY // lanes // count * count * lanes  # rows that fit before a lane goes round
    for number in range(fit // count):
        buffer.extend(trajectories([count], first_id=number))
        assert len(buffer) == count * (number + 1)
    for number in range(fit // count, 3 * CAPACITY // count):
        buffer.extend(trajectories([count], first_id=number))
        assert len(buffer) >= fit
    ids = buffer[:]["collector", "traj_ids"]
    newest = 3 * CAPACITY // count - 1
    assert (ids == newest).sum() == count
    assert len(buffer) == CAPACITY
    buffer.storage.trajectories().check(buffer.storage.back)


def test_writers_that_come_and_go_use_the_whole_buffer() -> None:
    buffer = shared()

    def write(first: int) -> None:
        for number in range(9):
            buffer.extend(trajectories([10], first_id=first + number))

    for group in range(3):
        threads = [threading.Thread(target=write, args=(1000 * group + 100 * k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(buffer) == CAPACITY
    buffer.storage.trajectories().check(buffer.storage.back)


def test_a_killed_writer_leaves_its_lane_to_the_others() -> None:
    buffer = shared(lanes=3)
    for _ in range(5):
        child = os.fork()
        if not child:
            buffer.extend(trajectories([20]))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    for number in range(24):
        buffer.extend(trajectories([20], first_id=10 + number))
    assert len(buffer) == CAPACITY
    assert buffer[:]["collector", "traj_ids"].min() == 22


def test_as_many_writers_as_lanes_keep_their_own() -> None:
    buffers = [shared(lanes=2)]
    buffers.append(pickle.loads(pickle.dumps(buffers[0])))
    for number in range(40):
        for k, buffer in enumerate(buffers):
            buffer.extend(trajectories([10], first_id=1000 * k + number))
    ids = buffers[0][:]["collector", "traj_ids"]
    assert ((ids >= 1000).sum(), len(ids)) == (120, CAPACITY)
    with pytest.raises(RuntimeError, match="all 2 lanes are held"):
        pickle.loads(pickle.dumps(buffers[0])).extend(trajectories([1]))


def test_the_oldest_lane_is_still_the_oldest_after_a_load(tmp_path: Any) -> None:
    buffer, other = shared(lanes=3), shared(lanes=3)
    for number in range(31):
        buffer.extend(trajectories([10], first_id=number))
    buffer.storage.ring.release_lane()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    for one in (buffer, other):
        for number in range(12):
            one.extend(trajectories([10], first_id=100 + number))
    assert (buffer[:] == other[:]).all()


def test_rows_that_are_refused_for_a_leaf_without_data_drop_no_old_ones() -> None:
    for buffer in (
        TensorDictReplayBuffer(storage=LazyTensorStorage(12)),
        TensorDictReplayBuffer(storage=LazyTensorStorage(12, lossless=True)),
        TensorDictReplayBuffer(storage=LazyTensorStorage(12, lanes=2), shared=True),
    ):
        for number in range(4):
            buffer.extend(trajectories([4], first_id=number))
        before = buffer[:]
        rows = trajectories([5], first_id=9)
        rows["action"] = rows["action"].to("meta")
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            buffer.extend(rows)
        assert (buffer[:] == before).all()
        buffer.extend(trajectories([2], first_id=20))
        assert len(buffer) == 12
        assert torch.equal(buffer[:]["collector", "traj_ids"].unique()[-1], torch.tensor(20))


def test_a_storage_that_extends_along_another_dimension_keeps_trajectories_whole(
    tmp_path: Path,
) -> None:
    def steps(first: int) -> TensorDict:
        seen = torch.arange(first, first + 4.0) + 100 * torch.arange(3.0).view(-1, 1)
        done = torch.zeros(3, 3, 1, dtype=torch.bool)
        after = {"observation": seen[:, 1:, None].clone(), "done": done}
        return TensorDict({"observation": seen[:, :-1, None].clone(), "next": after}, [3, 3])

    storage = LazyMemmapStorage(36, ndim=2, scratch_dir=tmp_path)
    buffer = ReplayBuffer(storage=storage, dim_extend=0)
    buffer.extend(steps(0))
    buffer.empty()
    buffer = ReplayBuffer(storage=storage, dim_extend=1)
    other = pickle.loads(bytes(ForkingPickler.dumps(buffer)))
    for writer, first in ((buffer, 0), (other, 3), (buffer, 6)):
        writer.extend(steps(first))
    assert storage.trajectories().lengths().tolist() == [9, 9, 9]


def test_frames_are_stacked_while_the_only_lane_is_held() -> None:
    storage = LazyTensorStorage(80, lossless=True, lanes=1)
    names = ["observation", ("next", "observation")]
    stack = CatFrames(N=3, dim=-1, in_keys=names)
    buffer = TensorDictReplayBuffer(storage=storage, shared=True, batch_size=4, transform=stack)
    rows = trajectories([9, 7, 8])
    buffer.extend(rows)
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with storage.exclusive():
            inside.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        sample = buffer.sample()
    finally:
        over.set()
        thread.join()
    stacked = stack(rows.clone())
    for name in names:
        assert torch.equal(sample[name], stacked[name][sample["index"]])


def test_waiting_for_rows_of_a_shared_buffer_does_not_wait_for_its_writer() -> None:
    inside, over = threading.Event(), threading.Event()

    class Slow(RoundRobinWriter):
        def check(self, count: int) -> None:
            inside.set()
            over.wait(10)

    buffer = ReplayBuffer(storage=LazyTensorStorage(64, lanes=1), shared=True, writer=Slow())
    thread = threading.Thread(target=lambda: buffer.extend(torch.arange(3)))
    thread.start()
    inside.wait()
    try:
        with pytest.raises(TimeoutError, match="for 60 rows and got 0"):
            buffer.wait_until(60, timeout=0.05)
        assert thread.is_alive()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("lanes", [1, 3])
def test_rows_are_loaded_next_to_an_idle_writer_only_where_it_holds_no_lane(
    lanes: int, tmp_path: Any
) -> None:
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(30))
    saved.extend(trajectories([7]))
    saved.dumps(tmp_path)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(30, lanes=lanes), shared=True)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def write_and_wait() -> None:
        buffer.extend(trajectories([4]))
        there.send("written")
        there.recv()

    child = context.Process(target=write_and_wait)
    child.start()
    assert here.recv() == "written"
    if lanes > 1:
        with pytest.raises(RuntimeError, match="keeps its lane until it ends, also while it is"):
            buffer.loads(tmp_path, rows_only=True)
        assert len(buffer) == 4
    else:
        buffer.loads(tmp_path, rows_only=True)
    here.send("end")
    child.join(60)
    assert child.exitcode == 0
    buffer.loads(tmp_path, rows_only=True)
    assert buffer[:]["observation"].equal(saved[:]["observation"])
