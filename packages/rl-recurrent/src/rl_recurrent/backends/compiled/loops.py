"""Whether the loops that numba compiles can be run here; they are compiled on first use."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from rl_layout.internals import load_compiled, run_compiled

LOOPS = "rl_recurrent.backends.compiled.numba_loops"


@cache
def has_loops() -> bool:
    """Tell whether the loops are there and compiled; the first call may take some seconds."""
    if load_compiled(LOOPS) is None:
        return False
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
    return run_compiled(LOOPS, "forward", *forth) and run_compiled(LOOPS, "backward", *back)


@cache
def loaded() -> ModuleType:
    """The loops, which `has_loops` has found."""
    loops = load_compiled(LOOPS)
    assert loops is not None
    return loops
