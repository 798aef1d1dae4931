"""Rows of two arrays compared bit for bit: NaN equals NaN, and -0.0 differs from 0.0."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Array, Ints

_CHUNK_BYTES = 1 << 20
"""Rows are gathered for a comparison in pieces that stay in the cache."""

_FEW_WORDS = 64


def same_bits(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether each pair of rows `[n, *shape]` has equal bytes, bool `[n]`."""
    return same_words(words(left), words(right))


def words(rows: Array) -> Array:
    """Rows `[n, *shape]` as `[n, words]` of the widest unsigned integers that divide a row."""
    nbytes = rows.itemsize * prod(rows.shape[1:])
    size = next(size for size in (8, 4, 2, 1) if nbytes % size == 0)
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    return np.ascontiguousarray(flat).view(f"u{size}")


def same_words(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether rows of `words` are equal, bool `[n]`."""
    differ, width = left != right, left.shape[1]
    if width > _FEW_WORDS:
        equal: NDArray[np.bool_] = ~differ.any(axis=1)
        return equal
    # a reduction over so short an axis takes ten times as long as flags read side by side
    apart, start = np.zeros(len(left), dtype=np.bool_), 0
    while start < width:
        size = next(size for size in (8, 4, 2, 1) if start + size <= width)
        apart |= differ[:, start : start + size].view(f"u{size}")[:, 0] != 0
        start += size
    return np.logical_not(apart, out=apart)


def same_rows(left: Array, rows: Ints, right: Array, others: Ints) -> NDArray[np.bool_]:
    """`same_bits` of selected rows of two arrays, gathered in cache-sized pieces."""
    step = max(1, _CHUNK_BYTES // max(1, left.itemsize * prod(left.shape[1:])))
    equal = np.empty(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        equal[piece] = same_bits(left[rows[piece]], right[others[piece]])
    return equal
