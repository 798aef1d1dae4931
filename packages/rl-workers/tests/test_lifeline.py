"""No process outlives the one that it is tied to."""

import multiprocessing
import subprocess
import sys

import pytest

from rl_workers import lifeline

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def tied(pipe, pid, grace_s):
    lifeline.end_with_parent(pid, grace_s=grace_s)
    pipe.send("tied")
    pipe.recv()  # until the test lets go


@pytest.fixture
def parent():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    process.kill()
    process.wait()


@pytest.fixture
def tie():
    """Starts a process that is tied to another one, and gives this side's end of a pipe too."""
    context, made = multiprocessing.get_context("fork"), []

    def start(pid, grace_s):
        near, far = context.Pipe()
        process = context.Process(target=tied, args=(far, pid, grace_s))
        process.start()
        made.append((process, near, far))
        assert near.poll(20)
        assert near.recv() == "tied"
        return process, near

    yield start
    for process, *ends in made:
        process.kill()
        process.join()
        for end in ends:
            end.close()


def test_a_process_is_killed_soon_after_the_other_one_ended(parent, tie):
    process, _ = tie(parent.pid, 0.01)
    assert process.is_alive()
    parent.kill()
    process.join(20)
    assert process.exitcode == -9


def test_process_has_the_time_to_leave_by_itself(parent, tie):
    process, pipe = tie(parent.pid, 60)
    parent.kill()
    parent.wait()
    pipe.send("leave")
    process.join(20)
    assert process.exitcode == 0


def test_a_process_that_is_gone_already_is_refused(parent):
    parent.kill()
    parent.wait()
    with pytest.raises(ProcessLookupError):
        lifeline.end_with_parent(parent.pid)
