"""Exponentials of several numbers at a time, compiled by numba."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

_inlined: Any = {"nogil": True, "cache": True, "error_model": "numpy", "forceinline": True}
_loose: Any = {**_inlined, "fastmath": {"reassoc", "nsz", "nnan"}}  # sums in any order


@njit(**_loose)
def powers(scores, top):
    """exp(x - top) in place of numbers x that are at most `top`; returns their sum."""
    total = 0.0
    if len(scores) < 8:
        for a in range(len(scores)):
            scores[a] = np.exp(scores[a] - top)
            total += scores[a]
        return total
    for a in range(len(scores)):
        scores[a] = power(scores[a] - top)
        total += scores[a]
    return total


@njit(**_inlined)
def power(x):
    """exp(x) of a number that is not positive, to one unit in the last place or 1e-304."""
    # without branches and calls, so that it is computed for several numbers at a time
    x = x if x > -700.0 else -700.0
    whole = np.floor(x * 1.4426950408889634 + 0.5)  # of x / log(2)
    rest = (x - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10
    series = 1.0 / 6227020800.0
    for factorial in (
        479001600.0,
        39916800.0,
        3628800.0,
        362880.0,
        40320.0,
        5040.0,
        720.0,
        120.0,
        24.0,
        6.0,
        2.0,
        1.0,
        1.0,
    ):
        series = series * rest + 1.0 / factorial
    return series * np.int64((np.int64(whole) + 1023) << 52).view(np.float64)
