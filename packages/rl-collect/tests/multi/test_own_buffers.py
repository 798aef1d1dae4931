"""Buffers with one member for each worker, which `for_worker` names."""

import functools

import pytest

from rl_collect import MultiAsyncCollector, MultiSyncCollector
from rl_envs.testing import CountingEnv

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


class Buffer(list):
    """Stores every batch, in this process."""

    def extend(self, batch):
        self.append(batch)


class Buffers:
    """A buffer for each worker."""

    def __init__(self, count):
        self.members = [Buffer() for _ in range(count)]

    def extend(self, batch):
        raise AssertionError(f"{batch} has no buffer")

    def for_worker(self, worker, workers):
        if workers != len(self.members):
            raise ValueError(f"{workers} workers, {len(self.members)} buffers")
        return self.members[worker]


def counting(length):
    return functools.partial(CountingEnv, length)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_each_worker_writes_to_its_own_buffer(kind):
    buffers = Buffers(3)
    options = {"frames_per_batch": 6, "total_frames": 36}
    makers = [counting(length) for length in (2, 3, 50)]
    with kind(makers, replay_buffer=buffers, **options, **FORK) as collector:
        list(collector)
    for length, buffer in zip((2, 3, 50), buffers.members, strict=True):
        assert buffer
        for batch in buffer:
            # an environment of this length is done at its last step and nowhere else
            ends = batch["next", "done"].flatten()
            steps = batch["collector", "traj_step"]
            assert ((steps == length - 1) == ends).all()
        ids = {int(one) >> 32 for batch in buffer for one in batch["collector", "traj_ids"]}
        assert len(ids) == 1  # those of one producer
    assert sum(len(batch) for buffer in buffers.members for batch in buffer) >= 36


def test_what_is_unfinished_at_the_end_goes_to_the_buffer_of_its_worker():
    buffers = Buffers(2)
    options = {"frames_per_batch": 8, "total_frames": 32, "trajs_per_batch": 1}
    makers = [counting(3), counting(100)]
    with MultiSyncCollector(makers, replay_buffer=buffers, **options, **FORK) as collector:
        list(collector)
    short, long = buffers.members
    assert all(batch["next", "done"][-1].item() for batch in short)
    assert [len(batch) for batch in long] == [16]


def test_more_workers_than_buffers_are_refused_before_any_starts():
    with pytest.raises(ValueError, match="3 workers, 2 buffers"):
        MultiSyncCollector([counting(3)] * 3, frames_per_batch=6, replay_buffer=Buffers(2), **FORK)
