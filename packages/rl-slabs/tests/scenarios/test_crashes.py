"""Writers that are killed or stopped at the worst moment; each of these has its moment chosen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rl_slabs import Lanes, Slab
from rl_slabs.lanes.lane import PUBLISHED, RESERVED

CAPACITY, SPAN, WHOLE = 32, 16, 7


def tear(pipe, slab, numbered):
    """Fills the ring, overwrites half a span and the half of one row more, and waits for death."""
    lane = Lanes(slab).claim()
    span = lane.reserve(CAPACITY)
    slab.write(span.rows, numbered(span.numbers))
    lane.publish(CAPACITY)
    numbers = lane.reserve(SPAN).numbers
    slab.write(slice(0, WHOLE), numbered(numbers[:WHOLE]))
    slab.write(WHOLE, numbered(numbers)[WHOLE], keys=["number"])
    pipe.send(lane.number)
    pipe.recv()


def accepted_and_wrong(slab, numbers):
    """How many rows of these numbers are accepted, and how many of those hold anything else."""
    lanes = Lanes(slab)
    found = slab.read(lanes.rows(numbers))
    good = lanes.accept(numbers)
    whole = found["number"].eq(numbers) & found["frame"].eq(numbers[:, None, None]).all(-1).all(-1)
    return int(good.sum()), int((good & ~whole).sum())


@pytest.fixture
def torn(forked, schema, numbered):
    """A slab whose writer was killed half way through a span over its oldest rows."""
    slab = Slab.shared(schema, CAPACITY)
    child = forked(tear, slab, numbered)
    child.receive()
    child.kill()
    return slab


def test_torn_rows_of_a_killed_writer_are_refused(torn):
    assert accepted_and_wrong(torn, torch.arange(CAPACITY)) == (CAPACITY - SPAN, 0)


def test_lowering_what_is_reserved_would_accept_torn_rows(torn):
    torn.words[0, RESERVED] = torn.words[0, PUBLISHED]
    assert accepted_and_wrong(torn, torch.arange(CAPACITY)) == (CAPACITY, WHOLE + 1)


def test_the_next_writer_keeps_what_was_reserved(torn, numbered):
    lane = Lanes(torn).claim()
    assert lane.number == 0
    span = lane.reserve(3)
    assert span.numbers == range(CAPACITY, CAPACITY + 3)
    assert accepted_and_wrong(torn, torch.arange(CAPACITY)) == (CAPACITY - SPAN, 0)
    torn.write(span.rows, numbered(span.numbers))
    lane.publish(3)
    assert accepted_and_wrong(torn, torch.arange(CAPACITY + 3)) == (CAPACITY - SPAN + 3, 0)


def test_a_window_leaves_the_lost_rows_out(torn):
    window = Lanes(torn).window()
    assert (window.first, len(window)) == ((SPAN,), CAPACITY - SPAN)
    assert Lanes(torn).states()[0].lost == SPAN


def test_the_rows_of_a_killed_writer_survive_in_a_file(forked, schema, numbered, tmp_path):
    child = forked(tear, Slab.mapped(schema, CAPACITY, tmp_path / "a"), numbered)
    child.receive()
    child.kill()
    with Slab.open(tmp_path / "a") as slab:
        assert accepted_and_wrong(slab, torch.arange(CAPACITY)) == (CAPACITY - SPAN, 0)
        assert Lanes(slab).states()[0].standing == "gone"


def test_a_killed_writer_that_nobody_waited_for_is_replaced(forked, schema, numbered):
    slab = Slab.shared(schema, CAPACITY)
    child = forked(tear, slab, numbered)
    child.receive()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Lanes(slab).claim().number == 0


def test_a_stopped_writer_delays_nobody(forked, schema, numbered):
    slab = Slab.shared(schema, 2 * CAPACITY, lanes=2)
    child = forked(tear, slab, numbered)
    child.receive()
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)

    start = time.monotonic()
    lane = Lanes(slab).claim()
    for _ in range(3):  # more than once around
        span = lane.reserve(CAPACITY)
        slab.write(span.rows, numbered(span.numbers))
        lane.publish(CAPACITY)
    window = Lanes(slab).window()
    numbers = window.numbers(torch.arange(len(window)))
    assert accepted_and_wrong(slab, numbers) == (2 * CAPACITY - SPAN, 0)
    assert time.monotonic() - start < 2
    assert lane.number == 1


def test_a_stopped_writer_goes_on_where_it_was(forked, schema, numbered):
    def write_in_two_halves(pipe, slab):
        lane = Lanes(slab).claim()
        span = lane.reserve(4)
        slab.write(slice(0, 2), numbered(span.numbers[:2]))
        pipe.send("half")
        pipe.recv()
        slab.write(slice(2, 4), numbered(span.numbers[2:]))
        lane.publish(4)
        pipe.send("whole")

    slab = Slab.shared(schema, CAPACITY)
    child = forked(write_in_two_halves, slab)
    child.receive()
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    with pytest.raises(RuntimeError, match="all 1 lanes are held"):
        Lanes(slab).claim()
    os.kill(child.pid, signal.SIGCONT)
    child.pipe.send("continue")
    assert child.receive() == "whole"
    assert accepted_and_wrong(slab, torch.arange(4)) == (4, 0)


def write_for_ever(pipe, slab, numbered):
    torch.set_num_threads(1)
    lane = Lanes(slab).claim()
    pipe.send(lane.number)
    size = 1
    while True:
        span = lane.reserve(size)
        slab.write(span.rows, numbered(span.numbers))
        lane.publish(size)
        size = size % 7 + 1


def test_readers_see_no_torn_row_while_a_writer_is_killed_and_replaced(forked, schema, numbered):
    slab = Slab.shared(schema, 48, lanes=2)
    lanes = Lanes(slab)
    children = [forked(write_for_ever, slab, numbered) for _ in range(2)]
    for child in children:
        child.receive()
    wrong = accepted = 0
    end = time.monotonic() + 2
    for draw in range(3000):
        window = lanes.window()
        if len(window):
            good, bad = accepted_and_wrong(slab, window.draw(64))
            accepted, wrong = accepted + good, wrong + bad
        if draw == 100:
            children[1].kill()
            children[1] = forked(write_for_ever, slab, numbered)
            assert children[1].receive() in (0, 1)
        if time.monotonic() > end:
            break
    assert wrong == 0
    assert accepted > 1000


SHARER = """
import os, sys, torch
from rl_slabs import Lanes, RowSchema, Slab
slab = Slab.shared(RowSchema({"frame": (torch.uint8, (1000,))}), 64, lanes=2)
os.fork()
Lanes(slab).claim().reserve(3)
os.write(1, f"{os.getpid()} {os.fstat(slab.fileno()).st_ino}\\n".encode())  # in one piece
sys.stdin.read()
"""


@pytest.mark.alone
def test_shared_memory_is_freed_when_every_process_was_killed():
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SHARER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        said = [process.stdout.readline().split() for _ in range(2)]
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid, _ in said]
        os.killpg(process.pid, signal.SIGKILL)
    inode = said[0][1]
    for text in maps:
        # another file system may have a file of the same number, hence both
        mapped = [line for line in text.splitlines() if "/memfd:rl-slab" in line]
        assert [line.split()[4] for line in mapped] == [inode]  # no name: it goes with its users
        assert "/dev/shm" not in text
    assert not any("slab" in name for name in set(os.listdir("/dev/shm")) - before)
