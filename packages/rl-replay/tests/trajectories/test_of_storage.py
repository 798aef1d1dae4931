"""What a storage says of its trajectories always equals what the markers of its rows say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_layout import EndKind
from rl_layout.testing import environments, trajectories
from rl_replay import LazyTensorStorage, ReplayBuffer, TrajectoryIndex
from rl_replay.samplers import SliceSampler
from rl_replay.samplers.slice_layout import mark_slices
from rl_replay.trajectories.index import fill_index, pending
from rl_slabs import Window
from rl_slabs.lanes.lane import LANE_SHIFT


def chains_of_markers(storage, first, rows):
    """Row by row: each continues the newest one before it that the markers let it continue."""
    ids, steps = (rows["collector", name].tolist() for name in ("traj_ids", "traj_step"))
    init, done = (rows[key].flatten().tolist() for key in ("is_init", ("next", "done")))
    real = rows["collector", "mask"].tolist()
    waiting, chains = {}, {}
    for place, number in enumerate(range(first, first + len(rows))):
        if not real[place]:
            continue
        before = None
        if not init[place]:
            before = waiting.pop((ids[place], steps[place] - 1), None)
        chains[number] = [*(chains.pop(before) if before is not None else ()), number]
        if not done[place]:
            waiting[ids[place], steps[place]] = number
    return sorted(map(tuple, chains.values()))


class Storages(RuleBasedStateMachine):
    """Rows of several producers, in batches of any shape, and samples stored again."""

    @initialize(capacity=st.integers(16, 40), ndim=st.integers(1, 2))
    def begin(self, capacity, ndim):
        self.columns = 2 if ndim == 2 else 1
        self.storage = LazyTensorStorage(capacity, ndim=ndim)
        self.drawn = torch.Generator().manual_seed(capacity)
        self.last_id = 0
        self.producers = {}

    def rows(self, producer, count):
        """The next rows of a producer, whose trajectories continue batch to batch."""
        batch, place = self.producers.get(producer, (None, 0))
        if batch is None or place + count > len(batch):
            lengths = [1 + (self.last_id * 7 + i * 3) % 6 for i in range(12)]
            kinds = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT] * 4
            batch, place = trajectories(lengths, kinds, first_id=self.last_id), 0
            self.last_id += 20
        self.producers[producer] = (batch, place + count)
        rows = batch[place : place + count].clone()
        rows["collector", "mask"] = torch.ones(count, dtype=torch.bool)
        rows.names = [None]
        return rows

    def extend(self, batch):
        self.storage.extend(batch)

    @rule(producer=st.integers(0, 3), count=st.integers(1, 8))
    def extend_by_a_run(self, producer, count):
        runs = [self.rows((producer, column), count) for column in range(self.columns)]
        self.extend(runs[0] if self.columns == 1 else torch.stack(runs))

    @rule(producers=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def extend_by_rows_in_turns(self, producers):
        turns = [
            torch.cat([self.rows((producer, column), 1) for producer in producers])
            for column in range(self.columns)
        ]
        self.extend(turns[0] if self.columns == 1 else torch.stack(turns))

    @rule(steps=st.integers(1, 4))
    def extend_by_environments(self, steps):
        if self.columns == 1:
            self.extend(torch.stack([self.rows(("side", env), steps) for env in range(2)]))

    @rule(count=st.integers(2, 8))
    def extend_padded(self, count):
        rows = [self.rows(("padded", column), count) for column in range(self.columns)]
        for part in rows:
            part["collector", "mask"][-1] = False
            part["collector", "traj_ids"][-1] = -1
        self.extend(rows[0] if self.columns == 1 else torch.stack(rows))

    @rule(num_slices=st.integers(1, 3))
    def store_a_sample_again(self, num_slices):
        if self.columns == 1 and len(self.storage) and self.storage.trajectories().steps:
            sampler = SliceSampler(num_slices=num_slices, slice_len=2)
            sampler.generator = self.drawn
            numbers, info = sampler.sample(self.storage, 2 * num_slices)
            sample = self.storage.read(self.storage.ring.positions(numbers))
            mark_slices(sample, info["slices"])
            self.extend(sample.exclude(("collector", "slice_ids")))

    @rule()
    def empty(self):
        self.storage.empty()

    @rule()
    def load(self):
        if len(self.storage):
            other = LazyTensorStorage(self.storage.max_size, ndim=self.storage.ndim)
            other.load_state_dict(self.storage.state_dict())
            self.storage = other

    @invariant()
    def the_index_says_what_the_markers_say(self):
        if not len(self.storage):
            return
        index, window = self.storage.trajectories(), self.storage.ring.window()
        numbers = window.numbers(torch.arange(len(window)))
        rows = self.storage.read(self.storage.ring.positions(numbers))
        slots = index.slots()
        lengths = index.lengths_of(slots)
        found = np.split(index.rows(slots, np.zeros_like(slots), lengths), lengths.cumsum())[:-1]
        assert sorted(map(tuple, found)) == chains_of_markers(self.storage, window.first[0], rows)


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
