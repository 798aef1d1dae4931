import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from time import monotonic_ns

import pytest

from rl_slabs.lanes.owners import OWN_THREADS, PROCESSES, Owner, start_time

SECOND = 1_000_000_000


def standing(owner, stale_after_s=None, beat_ns=0, threads=PROCESSES):
    return owner.standing(beat_ns=beat_ns, stale_after_s=stale_after_s, threads=threads)


def sleeper():
    return subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)


def test_a_running_thread_holds():
    assert standing(Owner.of_this_thread()) == "held"
    assert standing(Owner.of_this_thread(), threads=OWN_THREADS) == "held"


def test_lane_without_owner_is_free():
    assert standing(Owner(0, 0, 0)) == "free"


def test_a_thread_that_ended_is_gone_though_its_process_lives():
    found = []
    thread = threading.Thread(target=lambda: found.append(Owner.of_this_thread()))
    thread.start()
    thread.join()
    # the kernel takes its entry away a moment after join has returned
    until = monotonic_ns() + 10 * SECOND
    while standing(found[0]) == "held" and monotonic_ns() < until:
        os.sched_yield()
    assert standing(found[0]) == "gone"


def test_another_thread_of_that_number_is_not_mistaken():
    me = Owner.of_this_thread()
    assert standing(replace(me, started=me.started - 1)) == "gone"


def test_a_killed_process_is_gone_before_anyone_waited_for_it():
    with sleeper() as process:
        started = start_time(process.pid, PROCESSES)
        owner = replace(Owner.of_this_thread(), thread=process.pid, started=started)
        assert standing(owner) == "held"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert standing(owner) == "gone"


def test_a_stopped_process_holds():
    with sleeper() as process:
        started = start_time(process.pid, PROCESSES)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert start_time(process.pid, PROCESSES) == started
        process.kill()


def test_a_thread_of_another_process_does_not_hold_private_memory():
    with sleeper() as process:
        assert start_time(process.pid, PROCESSES) is not None
        assert start_time(process.pid, OWN_THREADS) is None
        process.kill()


def test_owners_from_before_a_reboot_are_gone():
    me = Owner.of_this_thread()
    assert standing(replace(me, place=me.place ^ (1 << 40))) == "gone"


@pytest.mark.parametrize(
    ("stale_after_s", "silent_s", "expected"),
    [(None, 1000, "elsewhere"), (5, 3, "elsewhere"), (5, 7, "gone")],
)
def test_owners_in_another_container_are_gone_after_a_silence(stale_after_s, silent_s, expected):
    me = Owner.of_this_thread()
    other = replace(me, place=me.place ^ 1)
    beat_ns = monotonic_ns() - silent_s * SECOND
    assert standing(other, stale_after_s, beat_ns) == expected
