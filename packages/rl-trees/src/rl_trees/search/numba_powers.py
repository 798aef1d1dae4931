"""Exponentials of several numbers at a time, compiled by numba."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

_inlined: Any = {"nogil": True, "cache": True, "error_model": "numpy", "forceinline": True}
LARGEST = 600.0
"""exp(x) of such numbers can be added up in 64 bits; that of 709 is almost the greatest number."""


@njit(**_inlined, fastmath={"contract"})
def power(x):
    """exp(x) of a number up to `LARGEST`, to one unit in the last place; 0 below 1e-307."""
    # without branches and calls, so that it is computed for several numbers at a time
    above = x if x > -708.0 else -708.0
    whole = np.floor(above * 1.4426950408889634 + 0.5)  # of x / log(2)
    rest = (above - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10
    # x**n / n! up to 13, by pairs: a sum from one end to the other waits for each of its terms
    two = rest * rest
    four = two * two
    low = (1.0 + rest) + (1.0 / 2.0 + rest * (1.0 / 6.0)) * two
    mid = (1.0 / 24.0 + rest * (1.0 / 120.0)) + (1.0 / 720.0 + rest * (1.0 / 5040.0)) * two
    high = (1.0 / 40320.0 + rest * (1.0 / 362880.0)) + (
        1.0 / 3628800.0 + rest * (1.0 / 39916800.0)
    ) * two
    end = 1.0 / 479001600.0 + rest * (1.0 / 6227020800.0)
    series = (low + mid * four) + (high + end * four) * (four * four)
    found = series * np.int64((np.int64(whole) + 1023) << 52).view(np.float64)
    return found if x > -708.0 else 0.0
