"""Restores rows into a shared storage, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_replay.checkpoint.contents import Contents
from rl_replay.shared.memory import SharedMemory
from rl_replay.storages.row_store import RowStore
from rl_slabs.internals import LANE_MASK, fence


@contextmanager
def loaded(memory: SharedMemory, store: RowStore, contents: Contents) -> Iterator[None]:
    """Drops all rows, and publishes the restored ones only after the block has written them all."""
    try:
        _drop(memory, store)
        memory.back[:] = 0
        yield
        _publish(memory, contents)
    except BaseException:  # an index that is half cleared would stay so until its lane is written
        _drop(memory, store)
        raise


def _drop(memory: SharedMemory, store: RowStore) -> None:
    """Drops all rows and releases the lane."""
    try:
        memory.ring.empty()
    finally:
        memory.end()
    store.clear()
    memory.index.clear()


def _publish(memory: SharedMemory, contents: Contents) -> None:
    ring, index = memory.ring, memory.index
    first = [number & LANE_MASK for number in contents.window.first]
    ends = [low + count for low, count in zip(first, contents.window.counts, strict=True)]
    floor = [number & LANE_MASK for number in contents.floor or first]
    # before any number is valid again: a reader that copied rows meanwhile may mean another row
    memory.epoch += 1
    fence()
    floor = [min(pair) for pair in zip(floor, ends, strict=True)]
    ring.restore_lanes(ends, floor, contents.order)
    index.clear()
    if contents.index is not None:
        index.restore(contents.index)
    index.catch_up(memory.back, ring.window())
    memory.epoch += 1
