from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from numba.core.compiler_lock import global_compiler_lock

from rl_layout import Segments, compiled, keys
from rl_layout.segments import numba_cuts
from rl_layout.segments.markers import FIELDS, cut_by_numpy
from rl_layout.segments.numba_cuts import mark_cuts
from rl_layout.testing import EndKind, environments

ENDS = ("done", "terminated", "truncated")
PRESENT = [
    tuple(FIELDS),
    ("is_init",),
    ("traj_ids", "traj_step"),
    ENDS,
    ("done", "steps_to_next_obs"),
    ("traj_step", "mask"),
]


def drawn(names, size, seed):
    """Markers of which each is different at some places."""
    rng = np.random.default_rng(seed)
    have = {name: rng.random(size) < 0.05 for name in FIELDS}
    have["mask"] = ~have["mask"]
    have["steps_to_next_obs"] = 1 + (rng.random(size) < 0.3)
    have["traj_ids"] = have["traj_ids"].cumsum()
    have["traj_step"] = np.arange(size) + have["traj_step"].cumsum()
    return {name: have[name] for name in names}


@pytest.mark.parametrize("names", PRESENT)
@pytest.mark.parametrize("size", [1, 2, 70_001])
def test_cuts_are_those_that_numpy_finds(names, size):
    have, (cut, expected) = drawn(names, size, len(names)), np.empty((2, size), bool)
    mark_cuts(*map(have.get, FIELDS), cut)
    cut_by_numpy(have, expected)
    np.testing.assert_array_equal(cut, expected)
    assert size < 3 or 0 < cut.sum() < size


def segments_are_right():
    batch = environments(3, 1_000, [40, 13, 90], [EndKind.TERMINATED, EndKind.TRUNCATED])
    done = batch[keys.NEXT_DONE][..., 0].clone()
    done[:, -1] = True
    lasts = done.flatten().nonzero()[:, 0]
    return Segments.of(batch).lengths.equal(torch.diff(lasts, prepend=torch.tensor([-1])))


@pytest.fixture
def afresh():
    """Nothing is known yet of what can be imported."""
    compiled.forget_imports()
    yield
    compiled.forget_imports()


def run(cut):
    none = (None,) * len(FIELDS)
    return compiled.run_compiled("rl_layout.segments.numba_cuts", "mark_cuts", *none, cut)


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize("missing", [True, False])
def test_segments_are_the_same_without_numba(missing, monkeypatch):
    if missing:
        monkeypatch.setitem(sys.modules, "numba", None)
        monkeypatch.delitem(sys.modules, "rl_layout.segments.numba_cuts", raising=False)
    assert run(np.empty(3_000, bool)) != missing
    assert segments_are_right()


@pytest.mark.usefixtures("afresh")
def test_compilation_that_cannot_be_cached_is_tried_once(monkeypatch):
    calls = []

    def no_room(*_):
        calls.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba_cuts, "mark_cuts", no_room)
    assert segments_are_right()
    assert segments_are_right()
    assert len(calls) == 1


@pytest.mark.usefixtures("afresh")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside a thread, on purpose
def test_a_child_forked_while_a_thread_compiles_can_compile():
    assert run(np.empty(3_000, bool))
    held, forked = threading.Event(), threading.Event()
    here, waiting = threading.get_ident(), type(global_compiler_lock).acquire.__code__

    def compile_for_long():
        with global_compiler_lock:
            held.set()
            while not forked.wait(0.01):
                if sys._current_frames()[here].f_code is waiting:
                    return  # forking waits for this thread

    thread = threading.Thread(target=compile_for_long)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends it where it waits for good
        global_compiler_lock.acquire()
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("fewer", [0, 1])
def test_few_rows_are_not_worth_a_loop(monkeypatch, fewer):
    loop, calls = numba_cuts.mark_cuts, []

    def count(*arrays):
        calls.append(len(arrays[-1]))
        loop(*arrays)

    monkeypatch.setattr(numba_cuts, "mark_cuts", count)
    rows = compiled.LEAST_ROWS - fewer
    flags = torch.arange(rows)[:, None] % 7 == 6
    assert Segments.from_ends(flags).lengths[:-1].eq(7).all()
    assert calls == [rows][fewer:]
