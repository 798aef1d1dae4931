"""Compact rows read alongside a writer in another process, which is killed at every step."""

import os
import signal
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_slabs import Lanes, LazyFile, RowSchema, Slab

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

CAPACITY, LANES = 60, 2
OBSERVATION = (torch.int64, (2,))
FRAME = (torch.int64, (2, 40))
SMALL = {
    "observation": OBSERVATION,
    ("next", "observation"): OBSERVATION,
    "number": (torch.int64, ()),
}
PADDED = {**SMALL, "half": (torch.int32, ())}
SCHEMAS = {
    "frames": RowSchema({**SMALL, "frame": FRAME, ("next", "frame"): FRAME}),
    "links apart": RowSchema(SMALL),
    "joined, links apart": RowSchema(SMALL),
    "joined": RowSchema(PADDED),
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
            "half": name[:, 1].int(),
        },
        batch_size=[len(names)],
    ).select(*schema)


class Shared:
    """Rows, overflow table and lanes that a fork inherits."""

    def __init__(self, kind):
        self.layout = LosslessLayout(SCHEMAS[kind])
        assert self.layout.apart is kind.endswith("links apart")
        spare = CAPACITY if kind.startswith("joined") else 0
        self.slab = Slab.shared(self.layout.stored, CAPACITY, lanes=LANES, spare=spare)
        self.side = OverflowTable.for_slab(self.slab, self.layout.side, LazyFile.shared("a test"))
        self.lanes = Lanes(self.slab)
        self.rows = LosslessRows(self.layout, self.slab.rows, self.side)

    def writer(self):
        """Rows of this process's own over the same memory."""
        return LosslessRows(self.layout, self.slab.rows, self.side)


def write(shared, rows, lane, trajectory, extends, generator):
    """Two environments side by side, whose trajectories are short and continue through extends."""
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
        rows.linker.link_predecessors(span.numbers)


def check(shared, samples):
    """Every row that is live and valid is complete, and its next observation its own."""
    good_rows = 0
    for sample in range(samples):
        numbers = drawn(shared)
        # both ways to prove that rows were unchanged
        lanes = shared.lanes
        unmoved = partial(lanes.unmoved, lanes.moment()) if sample % 2 else None
        found, _ = read_whole(shared, numbers, unmoved)
        good_rows += found
    return good_rows


def drawn(shared):
    window = shared.lanes.window()
    return window.draw(64) if len(window) else torch.empty(0, dtype=torch.int64)


def read_whole(shared, numbers, unmoved):
    """How many of some rows are accepted, all of them whole, and whether they proved unmoved."""
    positions = shared.lanes.rows(numbers)
    found, valid = shared.rows.read_concurrent(positions, numbers, unchanged=unmoved)
    sample = found[valid & shared.lanes.accept(numbers)]
    following = sample["observation"] + torch.tensor([0, 1])
    assert (sample["next", "observation"] == following).all()
    if "frame" in sample:
        assert (sample["frame"] == sample["observation"][:, :, None]).all()
        assert (sample["next", "frame"] == following[:, :, None]).all()
    return len(sample), valid.ndim == 0


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


def before_each_step(rows, lane, act):
    """Let something happen before each step of a writer."""

    def after_it(function):
        def wrapped(*args, **kwargs):
            act()
            return function(*args, **kwargs)

        return wrapped

    linker = rows.linker
    for owner, name in (
        (lane, "reserve"),
        (lane, "publish"),
        (rows.side, "take"),
        (rows.side, "release"),
        (rows.side, "secure"),
        (rows.side, "put"),
        (rows.rows, "put"),
        (rows.addresses, "set"),
        (linker, "link_predecessors"),
        (linker, "link"),
    ):
        setattr(owner, name, after_it(getattr(owner, name)))


def killed_at(shared, call, seed):
    """Write in a child that kills itself before its step number `call`, if it comes so far."""

    def work():
        rows, lane = shared.writer(), shared.lanes.claim()
        left = [call]

        def count():
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        before_each_step(rows, lane, count)
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
        check(shared, 4)
        check_slots(shared)
    assert kills > 30
    assert not killed_at(shared, 1 << 30, 500)
    assert check(shared, 5) > 200
    check_slots(shared)


def check_slots(shared):
    """No slot is named twice by rows that can be read."""
    window = shared.lanes.window()
    positions = shared.lanes.rows(window.numbers(torch.arange(len(window))))
    addresses = shared.rows.successor[positions.numpy()]
    slots = addresses[addresses < 0]
    assert len(np.unique(slots)) == len(slots)


class Stepping:
    """A writer in another process that waits for a message before each step."""

    def __init__(self, shared, seed, extends):
        ours, self._went = os.pipe()
        self._here, theirs = os.pipe()

        def work():
            os.close(self._went)
            rows, lane = shared.writer(), shared.lanes.claim()
            before_each_step(rows, lane, lambda: (os.write(theirs, b"."), os.read(ours, 1)))
            write(shared, rows, lane, 2000, extends, np.random.default_rng(seed))

        self._child = forked(work)
        os.close(ours)
        os.close(theirs)
        self.stopped = bool(os.read(self._here, 1))

    def step(self):
        """Let it do one step, up to the next one."""
        if self.stopped:
            os.write(self._went, b".")
            self.stopped = bool(os.read(self._here, 1))

    def end(self):
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._here)
        os.close(self._went)


def filled_and_reserved(shared):
    """A writer fills a lane and is killed in a span over all of it."""

    def work():
        rows, lane = shared.writer(), shared.lanes.claim()
        write(shared, rows, lane, 1000, 20, np.random.default_rng(1))
        lane.reserve(lane.capacity)  # so that spans after it leave the word `reserved` as it is

    os.waitpid(forked(work), 0)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_rows_are_whole_wherever_a_writer_stops_and_however_far_it_comes_meanwhile(kind):
    generator, found = np.random.default_rng(0), Counter()
    for seed in range(12):
        shared = Shared(kind)
        filled_and_reserved(shared)
        writer = Stepping(shared, seed, 12)
        try:
            found += read_concurrently(shared, writer, generator)
        finally:
            writer.end()
    assert found["good"] > 500
    assert min(found["moved"], found["unmoved"]) > 10


def read_concurrently(shared, writer, generator):
    """Read while a writer does some steps between what a row names and what is read there."""
    name = "addresses_of" if shared.side.space is not None else "on_cpu"
    look, steps, found = getattr(shared.rows.reader, name), 0, Counter()

    def meanwhile(*args):
        addresses = look(*args).copy() if name == "addresses_of" else None
        for _ in range(steps):
            writer.step()
        return look(*args) if addresses is None else addresses

    setattr(shared.rows.reader, name, meanwhile)
    while writer.stopped:
        numbers = drawn(shared)
        steps = int(generator.integers(14))
        still = partial(shared.lanes.unmoved, shared.lanes.moment())
        good, proved = read_whole(shared, numbers, still)
        found["good"] += good
        found["unmoved" if proved else "moved"] += bool(steps)
    return found
