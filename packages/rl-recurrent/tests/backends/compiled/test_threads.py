from __future__ import annotations

import sys
import threading

import pytest

from rl_recurrent.backends.compiled.threads import num_threads, run_together


@pytest.fixture(autouse=True)
def reachable(two_threads):
    if num_threads() == 1:
        pytest.skip("torch's OpenMP cannot be reached on this system")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP libraries")
def test_two_calls_run_at_the_same_time():
    met = threading.Barrier(2, timeout=60)
    run_together(met.wait, [(), ()])  # neither returns before both are there


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_call_runs_once(count):
    seen = []
    run_together(seen.append, [(number,) for number in range(count)])
    assert sorted(seen) == list(range(count))


def test_what_a_call_raises_reaches_the_caller():
    def fail(number):
        if number:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        run_together(fail, [(0,), (1,)])


def test_every_call_runs_once_where_openmp_gives_fewer_threads_than_calls():
    seen = []
    inner = [(0,), (1,), (2,)]
    # OpenMP gives a region inside of another one thread
    run_together(lambda: run_together(seen.append, inner), [(), ()])
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]
