"""The same buffer in several processes, however they were started."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
    Writer,
)
from rl_transforms import MultiStepTransform

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

METHODS = ["fork", "spawn", "forkserver"]
KINDS = {
    "memory": lambda **options: LazyTensorStorage(96, **options),
    "file": lambda **options: LazyMemmapStorage(96, **options),
}
WRITE = "torch.set_num_threads(1); buffer.extend(rows)"


def run(method: str, code: str, **names: Any) -> None:
    """Run a line in another process; it needs no module of these tests."""
    process = multiprocessing.get_context(method).Process(
        target=exec, args=(f"import torch\n{code}", names)
    )
    process.start()
    process.join(120)
    assert process.exitcode == 0
    process.close()


@contextmanager
def children(*works: Callable[[], None]) -> Any:
    """Forked processes that are killed in the end."""
    started = []
    for work in works:
        child = os.fork()
        if not child:
            try:
                torch.set_num_threads(1)  # those of OpenMP are not in a forked child
                work()
            finally:
                os._exit(0)
        started.append(child)
    try:
        yield started
    finally:
        for child in started:
            os.kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.parametrize("method", METHODS)
def test_what_another_process_writes_is_there(method: str) -> None:
    buffers = [
        TensorDictReplayBuffer(
            storage=kind(lossless=lossless, lanes=3),
            sampler=SliceSampler(slice_len=3),
            batch_size=9,
            shared=True,
        )
        for kind in KINDS.values()
        for lossless in (False, True)
    ]
    # a buffer over a file is handed over without being asked
    files = [TensorDictReplayBuffer(storage=LazyMemmapStorage(21)) for _ in range(2)]
    ones, zeros = (TensorDict({"a": torch.full((10,), float(k))}, [10]) for k in (1, 0))
    files[0].extend(zeros)
    buffers[1].extend(trajectories([7], first_id=20))
    code = """
for buffer in buffers:
    size = len(buffer)
    buffer.extend(rows)
    assert len(buffer) == size + 9
assert 20 in buffers[1][:]["collector", "traj_ids"]
for buffer in files:
    buffer.extend(ones)"""
    names = {"buffers": buffers, "files": files, "ones": ones, "rows": trajectories([4, 5])}
    run(method, code, **names)
    for buffer in buffers:
        assert buffer.is_shared
        if buffer is not buffers[1]:
            assert len(buffer) == buffer.write_count == 9  # the other one made the memory
            buffer.extend(trajectories([7], first_id=20))
        assert len(buffer) == buffer.write_count == 16
        sample = buffer.sample()
        names, ids = sample["observation"].long(), sample["collector", "slice_ids"]
        assert (sample["next", "observation"].long() == names + torch.tensor([0, 1])).all()
        assert (names.diff(dim=0)[ids.diff() == 0] == torch.tensor([0, 1])).all()
    files[1].extend(zeros)
    for buffer, first in zip(files, (0, 1), strict=True):
        assert len(buffer) == 20
        assert (buffer["_data", "a"][:10] == first).all()
        assert (buffer["a"][10:] == 1 - first).all()
        assert not buffer.is_shared


def test_processes_that_take_turns_go_on_where_the_other_was() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(30), sampler=SliceSampler(slice_len=9), batch_size=9
    )
    rows = trajectories([9, 4], EndKind.CUT)
    buffer.extend(rows[:3])
    run("fork", WRITE, buffer=buffer, rows=rows[[3, 9]])
    buffer.extend(rows[[4, 10, 11, 5]])
    run("fork", WRITE, buffer=buffer, rows=rows[6:9])
    buffer.extend(rows[12:])
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [4, 9]
    buffer.storage.trajectories().check(buffer.storage.back)


def test_rows_without_ids_are_joined_over_processes_by_their_observations() -> None:
    steps = torch.arange(8.0)
    rows = TensorDict(
        {"observation": steps[:-1, None], "next": {"observation": steps[1:, None]}}, [7]
    )
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(30))
    buffer.extend(rows[:2])
    run("fork", WRITE, buffer=buffer, rows=rows[5:6])  # continues nothing
    buffer.extend(rows[2:5])  # nor does this: another row is in between
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1, 2, 3]
    run("fork", WRITE, buffer=buffer, rows=rows[5:])
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1, 2, 5]


def test_a_handle_may_come_through_a_queue() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, lanes=2), shared=True)
    context = torch.multiprocessing.get_context("fork")
    queue, done = context.SimpleQueue(), context.SimpleQueue()
    code = "import torch\nbuffer = queue.get()\nbuffer.extend(torch.arange(3))\ndone.put(1)"
    process = context.Process(target=exec, args=(code, {"queue": queue, "done": done}))
    process.start()
    queue.put(buffer)
    done.get()
    process.join(60)
    assert buffer[:].tolist() == [0, 1, 2]


def test_a_thread_that_writes_has_a_lane_of_its_own() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, lanes=3), shared=True)
    held, go_on = threading.Barrier(4), threading.Event()

    def write(start: int) -> None:
        buffer.extend(torch.arange(start, start + 4))
        held.wait(60)
        go_on.wait(60)

    threads = [threading.Thread(target=write, args=(10 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    held.wait(60)
    assert sorted(buffer[:].tolist()) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    with pytest.raises(RuntimeError, match="all 3 lanes are held"):
        buffer.extend(torch.arange(2))
    go_on.set()
    for thread in threads:
        thread.join()
    buffer.extend(torch.arange(50, 54))
    assert len(buffer) == 12
    assert {50, 53} <= set(buffer[:].tolist())


def test_what_cannot_be_shared_is_refused_by_name() -> None:
    for storage in (ListStorage(5), TensorStorage(torch.zeros(5))):
        with pytest.raises(
            TypeError, match=f"{type(storage).__name__} lives in the memory of this"
        ):
            ReplayBuffer(storage=storage, shared=True)
    with pytest.raises(TypeError, match="a ListStorage lives in"):
        ReplayBuffer(shared=True)
    storage = LazyTensorStorage(5)
    storage.extend(torch.arange(3))
    with pytest.raises(RuntimeError, match="rows were written before"):
        ReplayBuffer(storage=storage, shared=True)
    with pytest.raises(ValueError, match="not that of meta"):
        ReplayBuffer(storage=LazyTensorStorage(5, device="meta"), shared=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(5, lanes=2), shared=True)
    with pytest.raises(TypeError, match="a ListStorage lives in"):
        buffer.set_storage(ListStorage(5))
    with pytest.raises(ValueError, match="4 rows do not fit one of the 2 lanes of a storage, each"):
        buffer.extend(torch.arange(4))
    buffer.extend(torch.arange(3))


@pytest.mark.parametrize("ndim", [2, 3])
def test_storages_of_several_dimensions_are_shared_too(ndim: int) -> None:
    shape = (3, 2, 4)[-ndim:]
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=ndim, lanes=3), shared=True)
    rows = torch.arange(torch.Size(shape).numel()).reshape(shape)
    index = buffer.extend(rows)
    assert (buffer[tuple(index.unbind(-1))] == rows.reshape(-1)).all()
    run("fork", WRITE, buffer=buffer, rows=rows + 100)
    assert buffer.storage.max_size % (3 * torch.Size(shape[:-1]).numel()) == 0
    count = len(index)
    expected = [*range(count), *range(100, 100 + count)]
    assert buffer[:].flatten().sort().values.tolist() == expected


def test_batches_made_ahead_do_not_outlive_what_others_drop() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20, lanes=2), shared=True, prefetch=2, batch_size=5
    )
    buffer.extend(torch.zeros(8))
    copy = pickle.loads(pickle.dumps(buffer))
    assert (copy.sample() == 0).all()
    buffer.empty()
    buffer.extend(torch.ones(8))
    for _ in range(4):
        assert (copy.sample() == 1).all()


def test_batches_made_ahead_hold_no_row_that_others_overwrote() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20, lanes=1), shared=True, prefetch=2, batch_size=5
    )
    buffer.extend(torch.zeros(20))
    assert (buffer.sample() == 0).all()
    run("fork", WRITE, buffer=buffer, rows=torch.ones(20))
    for _ in range(4):
        assert (buffer.sample() == 1).all()


def test_a_forked_child_has_a_lock_and_threads_of_its_own() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(36, lanes=3), shared=True, prefetch=1, batch_size=5
    )
    buffer.extend(torch.zeros(8))
    buffer.sample()
    held, over = threading.Event(), threading.Event()

    class Held(Writer):
        """Its check is asked under the lock."""

        def check(self, count: int) -> None:
            if threading.current_thread() is thread:
                held.set()
                over.wait(60)

    buffer.set_writer(Held())
    thread = threading.Thread(target=lambda: buffer.extend(torch.zeros(1)))
    thread.start()
    held.wait(60)
    child = os.fork()  # while another thread holds the lock
    if not child:
        torch.set_num_threads(1)
        buffer.extend(torch.ones(3))
        os._exit(7 if len(buffer.sample()) == 5 else 8)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(buffer) == 12


def test_waiting_ends_when_another_process_has_written() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, lanes=2), shared=True)
    with pytest.raises(TimeoutError, match=r"waited 0.01 s for 5 rows and got 0"):
        buffer.wait_until(5, timeout=0.01)
    begun = time.monotonic()
    with children(lambda: buffer.extend(torch.arange(6))):
        buffer.wait_until(5, timeout=60)
    assert time.monotonic() - begun < 50  # it looks for rows of others before the time is over
    assert len(buffer) == 6


def test_samplers_of_single_rows_read_every_lane() -> None:
    for sampler in (RandomSampler(), SamplerWithoutReplacement()):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(12, lanes=2), shared=True, sampler=sampler, batch_size=12
        )
        buffer.extend(torch.arange(6))
        run("fork", WRITE, buffer=buffer, rows=torch.arange(6, 12))
        seen = torch.cat([buffer.sample() for _ in range(9)])
        assert set(seen.tolist()) == set(range(12))


def test_rows_are_changed_in_every_process_unless_they_were_overwritten() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, lanes=2), shared=True)
    run("fork", WRITE, buffer=buffer, rows=trajectories([6]))
    sample = buffer[:]
    numbers = buffer.storage.ring.numbers_at(sample["index"])
    new = TensorDict({"action": torch.full((6, 1), 77)}, [6])
    code = "assert buffer.update_rows(numbers, new).all()"
    run("fork", code, buffer=buffer, numbers=numbers, new=new)
    assert (buffer["action"] == 77).all()
    buffer.extend(trajectories([6], first_id=30))  # there is room in the other lane
    buffer.extend(trajectories([2], first_id=40))
    assert buffer.update_rows(numbers, new).tolist() == [False, False, True, True, True, True]
    assert (buffer[:]["action"] == 77).sum() == 4
    with pytest.raises(ValueError, match="cannot be changed in a shared buffer"):
        buffer[:] = buffer[:]
    with pytest.raises(ValueError, match="found trajectories by"):
        buffer.set_sampler(SliceSampler(slice_len=2, end_keys=["is_init"]))


@pytest.mark.alone
def test_nothing_is_left_behind() -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    buffer = ReplayBuffer(storage=LazyTensorStorage(12, lanes=2), shared=True)
    buffer.extend(torch.arange(3))
    del buffer
    before, names = open_files(), set(os.listdir("/dev/shm"))
    for kind in KINDS.values():
        buffer = ReplayBuffer(storage=kind(lossless=["a"]), shared=True)
        run("fork", WRITE, buffer=buffer, rows=TensorDict({"a": torch.ones(2)}, [2]))
        buffer.sample(2)
    del buffer
    assert open_files() == before
    assert set(os.listdir("/dev/shm")) <= names


@pytest.mark.parametrize("lossless", [False, True])
def test_n_steps_go_as_far_in_a_shared_buffer_as_in_one_alone(lossless: bool) -> None:
    rows = trajectories([6, 9, 1, 14], [EndKind.TERMINATED, EndKind.CUT] * 2)
    batches = []
    for options in ({}, {"shared": True}):
        storage = LazyTensorStorage(80, lanes=2, lossless=lossless)
        buffer = TensorDictReplayBuffer(
            storage=storage,
            transform=MultiStepTransform(n_steps=3, gamma=0.9),
            batch_size=50,
            generator=torch.Generator().manual_seed(5),
            **options,
        )
        for part in rows.split(4):
            buffer.extend(part)
        batches.append(buffer.sample())
    assert (batches[0]["next", "steps_to_next_obs"] > 1).any()
    assert (batches[0] == batches[1]).all()
