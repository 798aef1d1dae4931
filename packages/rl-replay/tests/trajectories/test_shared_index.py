"""A trajectory index in shared memory, read while other processes change it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings

import numpy as np
import pytest
import torch

from rl_replay.samplers.slice_layout import Slices
from rl_replay.samplers.slices import by_step, by_trajectory
from rl_replay.trajectories.index import TrajectoryIndex
from rl_replay.trajectories.tables import BROKEN, TrajectoryTables, positions_of
from rl_slabs import Arrays, Window

CAPACITY, LANES, SHIFT = 500, 2, 48


class Shared:
    """The tables of an index and the links of its rows, as a storage has them."""

    def __init__(self):
        self.arrays = Arrays.shared(TrajectoryTables.shapes(CAPACITY, LANES), sparse=True)
        self.links = Arrays.shared({"back": ("int32", (CAPACITY * LANES,))})
        self.index = self.attach()

    @property
    def back(self):
        return self.links["back"]

    def attach(self):
        tables = TrajectoryTables.over(self.arrays, CAPACITY, LANES)
        return TrajectoryIndex(CAPACITY, lanes=LANES, tables=tables)

    def write(self, index, lane, back):
        first = index.indexed(lane)
        numbers = np.arange(first, first + len(back))
        self.back[positions_of(numbers, CAPACITY, LANES)] = back
        index.append(first, back)


@pytest.fixture
def shared():
    return Shared()


@pytest.fixture
def forked():
    """Starts `function(pipe, *args)` in a forked process, which is killed after the test."""
    context, children = multiprocessing.get_context("fork"), []

    def start(function, *args):
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(theirs, *args), daemon=True)
        with warnings.catch_warnings():
            # these children run no thread of torch's
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        children.append(process)
        return process, ours

    yield start
    for process in children:
        process.kill()
        process.join()


def turns(size, stride):
    """Rows of some environments in turns, with a new trajectory now and then."""
    back = np.full(size, stride, dtype=np.int32)
    back[:: 7 * stride + 1] = 0
    return back


def write_for_ever(pipe, shared, lane):
    index, size = shared.attach(), 1
    pipe.send("on")
    while True:
        # a stride that stays for long, so that pieces are long too
        shared.write(index, lane, turns(size, 1 + (index.indexed(lane) >> 12) % 3)[:size])
        size = size % 61 + 1


@pytest.mark.parametrize("draw", [by_trajectory, by_step])
def test_what_is_proved_of_a_changing_index_is_right(shared, forked, draw):
    for lane in range(LANES):
        shared.write(shared.index, lane, turns(300, 2))
        _, pipe = forked(write_for_ever, shared, lane)
        assert pipe.poll(20)
    reader = shared.attach()
    generator = torch.Generator().manual_seed(0)
    proved = total = 0
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        places = draw(reader, 8, 16, generator=generator)
        numbers, slices = reader.rows(*places), Slices(places.lengths)
        positions = positions_of(numbers, CAPACITY, LANES)
        assert positions.min() >= 0
        assert positions.max() < CAPACITY * LANES
        assert len(numbers) == slices.lengths.sum() <= 8 * 16
        good = slices.proved(numbers, shared.back[positions])
        for part in np.split(numbers, slices.starts[1:])[: len(slices)]:
            lanes = np.unique(part >> SHIFT)
            assert lanes.max() < LANES
        for start, length in zip(slices.starts[good], slices.lengths[good], strict=True):
            part = numbers[start : start + length]
            assert len(np.unique(part >> SHIFT)) == 1
            assert (np.diff(part) >= 1).all()
        proved, total = proved + good.sum(), total + len(good)
    assert proved > total / 2


def test_an_index_that_another_process_made_is_whole(shared, forked):
    def write(pipe, shared):
        index = shared.attach()
        for size in (40, 300, 1, 260, 77):
            shared.write(index, 1, turns(size, 3))
        pipe.send(len(index))

    _, pipe = forked(write, shared)
    assert pipe.poll(20)
    assert pipe.recv() == len(shared.index) > 10
    shared.index.check(shared.back)
    shared.write(shared.index, 1, turns(100, 3))
    shared.index.check(shared.back)


def die_in_the_middle(pipe, shared):
    """Stops where the tables of its lane are half changed, and waits for its end."""
    index = shared.attach()
    index.append(index.indexed(1), turns(50, 2))
    pipe.send("half")

    class Stop(np.ndarray):
        def take(self, *args, **kwargs):
            pipe.send("now")
            pipe.recv()

    writer = index.writers[1]
    writer.few_runs = -1000
    pieces = shared.arrays["pieces"].view(Stop)
    writer.tables = TrajectoryTables(**writer.tables.__dict__ | {"pieces": pieces})
    index.append(index.indexed(1), turns(50, 2))


def test_a_lane_whose_writer_was_killed_is_made_anew_by_the_next(shared, forked):
    shared.write(shared.index, 0, turns(100, 2))
    shared.write(shared.index, 1, turns(100, 2))
    process, pipe = forked(die_in_the_middle, shared)
    for word in ("half", "now"):
        assert pipe.poll(20)
        assert pipe.recv() == word
    os.kill(process.pid, 9)
    process.join()
    # the rows that it took in were never published
    window = Window((0, 1 << SHIFT), (100, 100))
    assert shared.index.tables.words[1, BROKEN]
    before = shared.index.tables.words[0].tolist()
    shared.index.catch_up(shared.back, window)
    shared.index.check(shared.back)
    assert shared.index.tables.words[0].tolist() == before
    assert shared.index.indexed(1) == (1 << SHIFT) + 100
