"""Whether the loops that numba compiles can be run here; they are compiled on first use."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from rl_layout.internals import load_compiled, run_compiled

LOOPS = "rl_recurrent.backends.compiled.numba_loops"


def has_loops() -> bool:
    """Tell whether the loops are there and compiled; the first call may take some seconds."""
    loops = load_compiled(LOOPS)
    if loops is None or loops in _ready:
        return loops is not None
    # arguments of any size have the types of all calls, so that none is compiled later
    rows, none, number = (
        np.zeros((1, 1), np.float32),
        np.zeros((0, 0), np.float32),
        np.zeros(1, int),
    )
    four, plan = np.zeros((4, 1), np.float32), (number, number + 1, number)
    flat, pair, kept = four[:, 0].copy(), (rows, rows), np.zeros((1, 4), np.float32)
    wide = four.reshape(1, 4)
    forth = (True, plan, rows, wide, wide, flat, flat[:0], pair, pair, kept)
    sums = (none, none, flat[:0], flat[:0])
    back = (True, plan, rows, four, four, pair, pair, kept, (none, none), none, sums, pair)
    if not run_compiled(LOOPS, "forward", *forth) or not run_compiled(LOOPS, "backward", *back):
        return False
    _ready.add(loops)
    return True


def loaded() -> ModuleType:
    """The loops, which `has_loops` has found."""
    loops = load_compiled(LOOPS)
    assert loops is not None
    return loops


_ready: set[ModuleType] = set()
