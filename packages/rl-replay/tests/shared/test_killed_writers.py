"""Writers that are killed, or stopped, at every step of a write."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_replay.storages.row_store import PlainFewRows
from rl_slabs import Arrays, Span

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

STORAGES = {
    "memory": lambda: LazyTensorStorage(80, lanes=2),
    "lossless": lambda: LazyTensorStorage(80, lanes=2, lossless=True),
    "turns": lambda: LazyMemmapStorage(40),
    "lossless turns": lambda: LazyMemmapStorage(40, lossless=True),
}


def shared(kind: str) -> TensorDictReplayBuffer:
    sampler = SliceSampler(slice_len=4, num_slices=6)
    return TensorDictReplayBuffer(
        storage=STORAGES[kind](), sampler=sampler, batch_size=24, shared="turns" not in kind
    )


def produce(buffer: TensorDictReplayBuffer, seed: int, calls: int = 6) -> None:
    """Two environments in turns, in whole trajectories, pieces of them and single rows."""
    random = np.random.default_rng(seed)
    going, name = [(0, 0), (0, 0)], 100 * seed
    for _ in range(calls):
        rows = []
        for place in range(int(random.integers(1, 9))):
            env = place % 2
            if going[env][0] == 0 or random.random() < 0.2:
                name += 1
                going[env] = (name, 0)
            which, step = going[env]
            rows.append(trajectories([1], EndKind.CUT, first_id=which, first_step=step))
            going[env] = (which, step + 1)
        if len(rows) == 1:
            buffer.add(rows[0][0])
        else:
            buffer.extend(torch.cat(rows))
    name += 1
    buffer.extend(trajectories([5], first_id=name))


def check(buffer: TensorDictReplayBuffer, samples: int = 2) -> int:
    """Nothing is returned that was not written so; how many rows were looked at."""
    seen = 0
    storage = buffer.storage
    for _ in range(samples):
        sample = buffer.sample()
        names, ids = sample["observation"].long(), sample["collector", "slice_ids"]
        same = ids[1:] == ids[:-1]
        assert (names[1:][same] == (names[:-1] + torch.tensor([0, 1]))[same]).all()
        whole(sample)
        rows = buffer[:]
        whole(rows)
        pairs = [tuple(pair) for pair in rows["observation"].long().tolist()]
        assert len(set(pairs)) == len(pairs)
        seen += len(sample) + len(pairs)
    with storage.session.memory.own_index():
        index = storage.trajectories()
        total = int(index.lengths().sum())
    assert total == len(buffer)
    return seen


def whole(rows: Any) -> None:
    names = rows["observation"].long()
    assert (names[:, 0] == rows["collector", "traj_ids"]).all()
    assert (names[:, 1] == rows["collector", "traj_step"]).all()
    assert (rows["next", "reward"][:, 0] == names[:, 1] + 1).all()
    assert (rows["next", "observation"].long() == names + torch.tensor([0, 1])).all()


def forked(function: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)  # those of OpenMP are not in a forked child
        function()
        code = 0
    finally:
        os._exit(code)


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def steps_of(buffer: TensorDictReplayBuffer) -> Iterator[tuple[Any, str]]:
    """Everything that a write does, in this process."""
    from rl_replay.trajectories.writer import TrajectoryWriter
    from rl_slabs.lanes.lane import Lane

    storage = buffer.storage
    session, table = storage.session, storage.session.table
    store, memory = table.store, session.memory
    yield from ((Lane, "reserve"), (Lane, "publish"), (memory.update_lock, "wait"))
    yield from ((table, "match"), (session, "before_publish"), (session, "published"))
    yield from ((store.rows, "write"), (store.rows, "put"))
    yield PlainFewRows, "write"
    for name in ("append", "drop_before", "_append_run", "_fill_piece", "_write_piece_of"):
        yield TrajectoryWriter, name
    yield from ((TrajectoryWriter, "_drop_run"), (TrajectoryWriter, "_end_trajectory"))
    if hasattr(store, "side"):
        for name in ("take", "release", "put"):
            yield store.side, name
        for name in ("link", "link_predecessors", "link_one"):
            yield store.linker, name
        yield store.addresses, "set"
        yield store.side.rows, "write"


def dying_before(call: int) -> Any:
    """Make functions count together, and kill the process before their call number `call`."""
    left = [call]

    def counted(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*args, **kwargs)

        return wrapped

    return counted


def killed_at(buffer: TensorDictReplayBuffer, call: int, seed: int) -> bool:
    """Write in a child that kills itself before its step number `call`, if it comes so far."""

    def work() -> None:
        counted = dying_before(call)
        for owner, name in list(steps_of(buffer)):
            setattr(owner, name, counted(getattr(owner, name)))
        produce(buffer, seed)

    code = end_of(forked(work))
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("kind", STORAGES)
def test_a_writer_killed_at_any_step_loses_its_span_and_nothing_else(kind: str) -> None:
    buffer = shared(kind)
    for seed in range(1, 5):  # the lanes are full of older rows by then
        assert end_of(forked(lambda seed=seed: produce(buffer, seed))) == 0
    kills, stride = 0, 8
    for call in range(0, 1000, stride):
        before = len(buffer)
        if not killed_at(buffer, call, 20 + call):
            break
        kills += 1
        check(buffer)
        assert len(buffer) >= before - 8  # one span at most
    assert kills > 15
    buffer.storage.sync()
    produce(buffer, 1500, 30)  # the next writer completes the rows of the killed one
    assert check(buffer) > 40
    buffer.storage.session.memory.index.check(buffer.storage.back)


@pytest.mark.parametrize("count", [8, 20])
@pytest.mark.parametrize("kind", STORAGES)
def test_a_writer_that_dies_half_way_through_its_rows_shows_none_of_them(
    kind: str, count: int
) -> None:
    buffer = shared(kind)
    for seed in range(1, 7):
        assert end_of(forked(lambda seed=seed: produce(buffer, seed))) == 0
    length, written = len(buffer), buffer.write_count
    store = buffer.storage.store

    def die() -> None:
        rows = store.rows
        put = rows.put

        def half_put(index: Any, leaves: Any) -> None:
            positions = torch.arange(80)[index] if isinstance(index, slice) else index
            if isinstance(leaves, dict):
                half = type(leaves)({key: leaf[: count // 2] for key, leaf in leaves.items()})
            else:
                half = [leaf[: count // 2] for leaf in leaves]
            put(positions[: count // 2], half)
            os.kill(os.getpid(), signal.SIGKILL)

        def half_write(self: PlainFewRows, span: Span, back: Any) -> None:
            place = span.rows if isinstance(span.rows, slice) else span.rows.numpy()
            positions = np.arange(80)[place][: count // 2]
            self._words[positions] = self._staged_words[: count // 2]
            os.kill(os.getpid(), signal.SIGKILL)

        rows.put, PlainFewRows.write = half_put, half_write  # of many rows, and of few
        buffer.extend(trajectories([count], first_id=9000))

    assert end_of(forked(die)) == -signal.SIGKILL
    assert buffer.write_count == written
    assert length - count <= len(buffer) <= length
    check(buffer)
    assert 9000 not in buffer[:]["collector", "traj_ids"].tolist()
    buffer.extend(trajectories([3], first_id=9500))
    check(buffer)


@pytest.mark.parametrize("kind", ["memory", "lossless"])
@pytest.mark.parametrize("point", ["match", "before_publish", "published"])
def test_a_writer_stopped_in_its_span_delays_nobody(kind: str, point: str) -> None:
    buffer = shared(kind)
    produce(buffer, 1)
    length = len(buffer)
    ours, theirs = multiprocessing.Pipe()

    def stop() -> None:
        produce(buffer, 2)
        session = buffer.storage.session
        owner = session.table if point == "match" else session
        function = getattr(owner, point)

        def stopping(*args: Any) -> Any:
            theirs.send("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)
            return function(*args)

        setattr(owner, point, stopping)
        buffer.extend(trajectories([6], first_id=9000))

    child = forked(stop)
    try:
        assert ours.poll(60)
        _, status = os.waitpid(child, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert len(buffer) > length
        for seed in range(3, 8):
            produce(buffer, seed)
            check(buffer)
        shown = 9000 in buffer[:]["collector", "traj_ids"].tolist()
        assert shown == (point == "published")
        os.kill(child, signal.SIGCONT)
        assert end_of(child) == 0
        child = 0
        assert 9000 in buffer[:]["collector", "traj_ids"].tolist()
        check(buffer)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_process_killed_while_it_changes_rows_blocks_no_writer() -> None:
    buffer = shared("memory")
    produce(buffer, 1)

    def die() -> None:
        with buffer.storage.exclusive():
            os.kill(os.getpid(), signal.SIGKILL)

    assert end_of(forked(die)) == -signal.SIGKILL
    produce(buffer, 2)
    check(buffer)


@pytest.mark.parametrize("kind", ["memory", "lossless", "lossless turns"])
def test_a_process_killed_while_it_makes_the_memory_leaves_it_to_the_next(kind: str) -> None:
    calls = (os, "ftruncate"), (os, "pwrite"), (os, "posix_fallocate"), (Arrays, "in_file")
    for call in range(30):
        buffer = shared(kind)

        def die(buffer: Any = buffer, call: int = call) -> None:
            counted = dying_before(call)
            for owner, name in calls:
                setattr(owner, name, counted(getattr(owner, name)))
            produce(buffer, 1)

        killed = end_of(forked(die)) != 0
        if killed:
            assert len(buffer) == 0
        produce(buffer, 2)
        check(buffer)
        if not killed:
            break
    assert call > 5


def test_a_child_forked_in_the_middle_of_a_write_holds_nothing() -> None:
    buffer = shared("turns")
    produce(buffer, 1)
    before = buffer.write_count
    with buffer.storage.exclusive():
        child = forked(lambda: buffer.extend(trajectories([4], first_id=9000)))
        assert buffer.write_count == before
    assert end_of(child) == 0
    assert buffer.write_count == before + 4
    buffer.extend(trajectories([2], first_id=9100))
    check(buffer)
