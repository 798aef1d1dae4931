"""What a storage says of its trajectories always equals what the markers of its rows say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

from rl_layout import EndKind
from rl_layout.testing import environments, trajectories
from rl_replay import LazyTensorStorage, ReplayBuffer, TrajectoryIndex
from rl_replay.samplers import SliceSampler
from rl_replay.testing import StorageTrajectoryMachine
from rl_replay.trajectories.bulk_append import fill_index, pending
from rl_slabs import Window
from rl_slabs.lanes.lane import LANE_SHIFT


class Storages(StorageTrajectoryMachine):
    """Storages in memory, flat and in columns."""


TestStorages = Storages.TestCase
TestStorages.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


def test_environments_of_one_batch_lie_in_columns_or_end_to_end():
    batch = environments(2, 5, [3, 4], [EndKind.TERMINATED])
    flat, columns = LazyTensorStorage(10), LazyTensorStorage(10, ndim=2)
    for storage, wanted in (
        (flat, [(0, 1, 2), (3, 4), (5, 6, 7, 8), (9,)]),
        (columns, [(0, 2, 4), (1, 3, 5, 7), (6, 8), (9,)]),
    ):
        storage.extend(batch)
        index = storage.trajectories()
        assert index.pieces == 4
        slots = index.slots()
        lengths = index.lengths_of(slots)
        rows = np.split(index.rows(slots, np.zeros_like(slots), lengths), lengths.cumsum())[:-1]
        assert sorted(map(tuple, rows)) == wanted


def slices_of(storage, **sampler):
    return ReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=2, **sampler), batch_size=4)


@pytest.mark.parametrize("lossless", [False, True])
def test_rows_are_indexed_as_they_come_where_slices_are_drawn(lossless):
    buffer = slices_of(LazyTensorStorage(20_000, lossless=lossless))
    rows = trajectories([50] * 60)
    most = 0
    for turn in range(9):  # the ring is gone around
        rows["collector", "traj_ids"] += 1000 * (turn + 1)
        buffer.extend(rows)
        most = max(most, buffer.storage.session.pending_rows)
    assert most < 4096 + len(rows)  # however many were written, the first slices take in few
    buffer.sample()
    assert buffer.storage.session.pending_rows == 0
    plain = ReplayBuffer(storage=LazyTensorStorage(20_000))
    plain.extend(rows)
    plain.extend(rows)
    assert plain.storage.session.pending_rows == 6_000  # no slices were sampled
    plain.set_sampler(SliceSampler(slice_len=2))
    assert plain.storage.session.pending_rows == 0
    plain.storage.trajectories().check(plain.storage.back)


def test_loaded_rows_are_indexed_before_the_first_slices(tmp_path):
    plain = ReplayBuffer(storage=LazyTensorStorage(300))
    plain.extend(trajectories([50] * 4))
    state = plain.storage.state_dict()
    assert state["index"] is None
    for size in (300, 400):
        buffer = slices_of(LazyTensorStorage(size))
        buffer.storage.load_state_dict(state)
        assert buffer.storage.session.pending_rows == 0
        buffer.storage.trajectories().check(buffer.storage.back)


def test_a_long_build_takes_rows_in_piece_by_piece():
    index, back = TrajectoryIndex(40, lanes=2), np.tile([0, 1, 1, 1, 1], 16)
    window = Window((10, 5 + (1 << LANE_SHIFT)), (30, 25))
    assert pending(index, window) == 55
    fill_index(index, back, window, piece=7)
    assert pending(index, window) == 0
    whole = TrajectoryIndex(40, lanes=2)
    whole.catch_up(back, window)
    assert sorted(index.lengths()) == sorted(whole.lengths())
    index.check(back)
