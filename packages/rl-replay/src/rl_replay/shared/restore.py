"""Restores rows into a shared storage, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_replay.checkpoint.contents import Contents
from rl_replay.shared.session import Sharing
from rl_replay.storages.row_store import RowStore
from rl_slabs.internals import LANE_MASK, fence


@contextmanager
def loaded(sharing: Sharing, store: RowStore, contents: Contents) -> Iterator[None]:
    """Drops all rows, and publishes the restored ones only after the block has written them all."""
    _drop(sharing, store)
    try:
        sharing.back[:] = 0
        yield
        _publish(sharing, contents)
    except BaseException:
        _drop(sharing, store)
        raise


def _drop(sharing: Sharing, store: RowStore) -> None:
    """Drops all rows and releases the lane."""
    try:
        sharing.ring.empty()
    finally:
        sharing.end()
    store.clear()
    sharing.index.clear()


def _publish(sharing: Sharing, contents: Contents) -> None:
    ring, index = sharing.ring, sharing.index
    first = [number & LANE_MASK for number in contents.window.first]
    ends = [low + count for low, count in zip(first, contents.window.counts, strict=True)]
    floor = [number & LANE_MASK for number in contents.floor or first]
    # before any number is valid again: a reader that copied rows meanwhile may mean another row
    sharing.epoch += 1
    fence()
    floor = [min(pair) for pair in zip(floor, ends, strict=True)]
    ring.restore_lanes(ends, floor, contents.order)
    index.clear()
    if contents.index is not None:
        index.restore(contents.index)
    index.catch_up(sharing.back, ring.window())
    sharing.epoch += 1
