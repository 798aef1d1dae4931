"""Compact rows read beside a writer in another process, which is killed at every step."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_replay.compact import CompactRows
from rl_replay.compact_layout import CompactLayout
from rl_replay.side_table import SideTable
from rl_slabs import Lanes, RowSchema, Slab

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked beside threads

CAPACITY, LANES = 60, 2
OBSERVATION = (torch.int64, (2,))
FRAME = (torch.int64, (2, 40))
SMALL = {
    "observation": OBSERVATION,
    ("next", "observation"): OBSERVATION,
    "number": (torch.int64, ()),
}
SCHEMAS = {
    "frames": RowSchema({**SMALL, "frame": FRAME, ("next", "frame"): FRAME}),
    "links apart": RowSchema(SMALL),
}


def cells(names, schema):
    """Rows of which every element says which step of which trajectory it is."""
    name = torch.tensor(names)  # [n, 2]: trajectory and step
    later = name + torch.tensor([0, 1])
    return TensorDict(
        {
            "observation": name,
            "frame": name[:, :, None].expand(-1, 2, 40),
            "next": {"observation": later, "frame": later[:, :, None].expand(-1, 2, 40)},
            "number": name[:, 0],
        },
        batch_size=[len(names)],
    ).select(*schema)


class Shared:
    """Rows, side table and lanes that a fork inherits."""

    def __init__(self, kind):
        self.layout = CompactLayout(SCHEMAS[kind])
        assert self.layout.apart is (kind == "links apart")
        self.slab = Slab.shared(self.layout.stored, CAPACITY, lanes=LANES)
        slots = CAPACITY // LANES
        memory = SideTable.memory_for(self.layout.side, slots, lanes=LANES, kind="shared")
        self.side = SideTable(self.layout.side, slots, lanes=LANES, memory=memory)
        self.lanes = Lanes(self.slab)
        self.rows = CompactRows(self.layout, self.slab.rows, self.side)

    def writer(self):
        """Rows of this process's own over the same memory."""
        return CompactRows(self.layout, self.slab.rows, self.side)


def write(shared, rows, lane, trajectory, extends, generator):
    """Two environments side by side, whose trajectories are short and go on through extends."""
    last = {}  # of each environment its trajectory, its step and its row's number
    for _ in range(extends):
        count = 2 * int(generator.integers(1, 4))
        names, back = [], []
        span = lane.reserve(count)
        for row, number in enumerate(span.numbers):
            before = last.get(row % 2)
            if before is None or generator.random() < 0.3:
                trajectory, step, apart = trajectory + 1, 0, 0
            else:
                step, apart = before[1] + 1, number - before[2]
            name = trajectory if not apart else before[0]
            last[row % 2] = name, step, number
            names.append((name, step))
            back.append(apart)
        rows.write(span.rows, span.numbers, cells(names, rows.layout.given), np.array(back))
        lane.publish(count)
        rows.settle(span.numbers)


def check(shared, samples):
    """Every row that is accepted and steady is whole, and its next observation its own."""
    good_rows = 0
    for _ in range(samples):
        window = shared.lanes.window()
        if not len(window):
            continue
        numbers = window.draw(64)
        positions = shared.lanes.rows(numbers)
        found, steady = shared.rows.read_beside_writers(positions, numbers)
        good = steady & shared.lanes.accept(numbers)
        sample = found[good]
        following = sample["observation"] + torch.tensor([0, 1])
        assert (sample["next", "observation"] == following).all()
        if "frame" in sample:
            assert (sample["frame"] == sample["observation"][:, :, None]).all()
            assert (sample["next", "frame"] == following[:, :, None]).all()
        good_rows += len(sample)
    return good_rows


def forked(function):
    child = os.fork()
    if child:
        return child
    try:
        function()
    finally:
        os._exit(0)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_rows_are_whole_while_another_process_writes_them(kind):
    shared = Shared(kind)

    def work():
        rows, lane = shared.writer(), shared.lanes.claim()
        write(shared, rows, lane, 10, 1 << 30, np.random.default_rng(0))

    writers = [forked(work) for _ in range(LANES)]
    try:
        deadline = time.monotonic() + 60
        while len(shared.lanes.window()) < CAPACITY:
            assert time.monotonic() < deadline, "the writers have ended"
        assert check(shared, 300) > 3000
    finally:
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)


def killed_at(shared, call, seed):
    """Write in a child that kills itself before its step number `call`, if it comes so far."""

    def work():
        rows, lane = shared.writer(), shared.lanes.claim()
        left = [call]

        def counted(function):
            def wrapped(*args, **kwargs):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return function(*args, **kwargs)

            return wrapped

        writer = rows._writer
        for owner, name in (
            (rows.side, "take"),
            (rows.side, "release"),
            (rows.side, "secure"),
            (writer, "_fill"),
            (rows.rows, "put"),
            (writer, "_name"),
            (writer, "settle"),
            (writer, "_link"),
        ):
            setattr(owner, name, counted(getattr(owner, name)))
        write(shared, rows, lane, 100 * seed, 4, np.random.default_rng(seed))

    child = forked(work)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_writer_killed_at_any_step_leaves_every_row_whole(kind):
    shared = Shared(kind)
    for seed in range(1, 9):  # the ring is full of older rows by then
        assert not killed_at(shared, 1 << 30, seed)
    kills = 0
    for call in range(200):
        if not killed_at(shared, call, 20 + call):
            break
        kills += 1
        check(shared, 3)
        check_slots(shared)
    assert kills > 30
    assert not killed_at(shared, 1 << 30, 500)
    assert check(shared, 5) > 200
    check_slots(shared)


def check_slots(shared):
    """No slot is named twice by rows that can be read."""
    window = shared.lanes.window()
    positions = shared.lanes.rows(window.numbers(torch.arange(len(window))))
    named = shared.rows.successor[positions.numpy()]
    slots = named[named < 0]
    assert len(np.unique(slots)) == len(slots)
