"""Whether rows have equal bits: NaN equals NaN, and -0.0 differs from 0.0."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

_CHUNK_BYTES = 1 << 20
"""Rows are gathered for a comparison in pieces that stay in the cache."""

_FEW_WORDS = 16


def same_bits(left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether each pair of rows `[n, *shape]` has equal bytes, bool `[n]`."""
    one, two = _words(left, right)
    if one.shape[1] > _FEW_WORDS:
        equal: NDArray[np.bool_] = (one == two).all(axis=1)
        return equal
    # a reduction over so short an axis costs more than the columns one by one
    equal = np.ones(len(one), dtype=np.bool_)
    for column in range(one.shape[1]):
        equal &= one[:, column] == two[:, column]
    return equal


def same_rows(left: Array, rows: Array, right: Array, others: Array) -> NDArray[np.bool_]:
    """`same_bits` of selected rows of two arrays, gathered in cache-sized pieces."""
    step = max(1, _CHUNK_BYTES // max(1, left.itemsize * prod(left.shape[1:])))
    equal = np.empty(len(rows), dtype=np.bool_)
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        equal[piece] = same_bits(left[rows[piece]], right[others[piece]])
    return equal


def same_bits_on_device(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`same_bits` for tensors on any device, without a copy to the host."""
    one, two = (
        side.detach().reshape(len(side), prod(side.shape[1:])).contiguous().view(torch.uint8)
        for side in (left, right)
    )
    return (one == two).all(1)


def _words(left: Array, right: Array) -> tuple[Array, Array]:
    """Both as `[rows, words]` of the widest integers that divide a row."""
    nbytes = left.itemsize * prod(left.shape[1:])
    size = next(size for size in (8, 4, 2, 1) if nbytes % size == 0)
    one, two = (
        np.ascontiguousarray(side.reshape(len(side), prod(side.shape[1:]))).view(f"u{size}")
        for side in (left, right)
    )
    return one, two
