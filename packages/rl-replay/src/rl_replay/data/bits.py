"""Rows of two arrays compared bit for bit: NaN equals NaN, and -0.0 differs from 0.0."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Array, Ints

_CHUNK_BYTES = 1 << 20
"""Rows are gathered for a comparison in pieces that stay in the cache."""

_FEW_WORDS = 64
_KINDS = tuple(np.dtype(f"u{size}") for size in (8, 4, 2, 1))


def same_bits(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether each pair of rows `[n, *shape]` has equal bytes, bool `[n]`."""
    return same_words(words(left), words(right))


def differing_bits(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether each pair of rows `[n, *shape]` has different bytes, bool `[n]`."""
    return differing_words(words(left), words(right))


def words(rows: Array) -> Array:
    """Rows `[n, *shape]` as `[n, words]` of the widest unsigned integers that divide a row."""
    if rows.ndim != 2:
        rows = rows.reshape(len(rows), prod(rows.shape[1:]))
    return np.ascontiguousarray(rows).view(_widest(rows.itemsize * rows.shape[1]))


def same_words(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether rows of `words` are equal, bool `[n]`."""
    apart = differing_words(left, right)
    return np.logical_not(apart, out=apart)


def differing_words(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether rows of `words` differ, bool `[n]`."""
    differ, width = left != right, left.shape[1]
    if width == 1:
        only: NDArray[np.bool_] = differ[:, 0]
        return only
    if width > _FEW_WORDS or not width:
        each: NDArray[np.bool_] = differ.any(axis=1)
        return each
    # a reduction over so short an axis takes ten times as long as flags read side by side
    found: NDArray[np.bool_] | None = None
    for piece, kind in _pieces(width):
        some = differ[:, piece].view(kind)[:, 0] != 0
        found = some if found is None else np.logical_or(found, some, out=found)
    assert found is not None  # a row has words
    return found


@lru_cache(maxsize=1024)
def _widest(nbytes: int) -> np.dtype[Any]:
    """The widest unsigned integer that divides a row of so many bytes."""
    return next(kind for kind in _KINDS if nbytes % kind.itemsize == 0)


@lru_cache(maxsize=_FEW_WORDS)
def _pieces(width: int) -> list[tuple[slice, np.dtype[Any]]]:
    """Slices of a row of so many flags, each read as one unsigned integer: the fewest."""
    pieces, start = [], 0
    while start < width:
        kind = next(kind for kind in _KINDS if start + kind.itemsize <= width)
        pieces.append((slice(start, start + kind.itemsize), kind))
        start += kind.itemsize
    return pieces


def same_rows(left: Array, rows: Ints, right: Array, others: Ints) -> NDArray[np.bool_]:
    """`same_bits` of selected rows of two arrays, gathered in cache-sized pieces."""
    # at least a row, and rows of no bytes do not divide by 0
    step = max(1, _CHUNK_BYTES // max(1, left.itemsize * prod(left.shape[1:])))
    equal = np.empty(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        equal[piece] = same_bits(left[rows[piece]], right[others[piece]])
    return equal
