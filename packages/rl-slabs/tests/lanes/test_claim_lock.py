import fcntl
import math
import os
import threading
from functools import partial

import pytest

from rl_slabs.lanes.claim_lock import claim_lock


@pytest.fixture
def memory():
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def fork(run):
    """A child that runs a function and ends at once; its process id."""
    child = os.fork()
    if child == 0:
        run()
        os._exit(0)
    return child


def hold(pipe, descriptor):
    """Takes the lock as `claim_lock` does and never gives it back."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    pipe.send("held")
    pipe.recv()


def hold_and_fork(pipe, descriptor):
    """The same, and a child that keeps the duplicate of the lock after this one was killed."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    child = fork(pipe.recv)
    pipe.send(child)
    os.waitpid(child, 0)


def test_the_lock_can_be_taken_again_and_again(memory):
    for descriptor in (memory, memory, None, None):
        with claim_lock(descriptor, timeout_s=1):
            pass


def test_the_lock_of_a_killed_process_is_free_at_once(forked, memory):
    child = forked(hold, memory)
    assert child.receive() == "held"
    with (
        pytest.raises(TimeoutError, match=r"not free for 0.01 s: a process stopped"),
        claim_lock(memory, timeout_s=0.01),
    ):
        pass
    child.kill()
    with claim_lock(memory, timeout_s=0.01):
        pass


def test_a_lock_kept_by_the_child_of_a_killed_process_is_an_error_in_time(forked, memory):
    parent = forked(hold_and_fork, memory)
    orphan = parent.receive()
    parent.kill()
    with (
        pytest.raises(TimeoutError, match=r"a child of one that was killed there \(inode"),
        claim_lock(memory, timeout_s=0.01),
    ):
        pass
    os.kill(orphan, 9)
    with claim_lock(memory, timeout_s=10):
        pass


def test_a_fork_waits_until_a_claim_of_another_thread_is_over(memory):
    """So no child of ours ever has a duplicate of a lock that is held."""
    forked, inside, go_on = threading.Event(), threading.Event(), threading.Event()

    def claim():
        with claim_lock(memory, timeout_s=10):
            inside.set()
            go_on.wait(10)

    def fork_and_wait():
        os.waitpid(fork(lambda: None), 0)
        forked.set()

    claiming = threading.Thread(target=claim)
    claiming.start()
    assert inside.wait(10)
    forking = threading.Thread(target=fork_and_wait)
    forking.start()
    assert not forked.wait(0.05)
    go_on.set()
    assert forked.wait(10)
    claiming.join()
    forking.join()


def test_a_forked_child_can_claim(forked, memory):
    def claim(pipe):
        with claim_lock(memory, timeout_s=5):
            pipe.send("claimed")

    assert forked(claim).receive() == "claimed"


def test_threads_exclude_each_other(memory):
    inside, most = [], []

    def claim():
        for _ in range(50):
            with claim_lock(memory, timeout_s=10):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=partial(claim)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_a_wait_may_be_without_end(memory):
    with claim_lock(memory, timeout_s=math.inf):
        pass
