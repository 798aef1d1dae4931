"""The loops of a priority tree in numpy: the same numbers as those that numba compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.types import Ints

Floats = NDArray[np.float64]
BLOCK, SHIFT = 16, 4  # children of a node, leaves of two cache lines; the bits of a child's place


def children(weights: NDArray[np.float32], sums: Floats, begins: Ints, level: int) -> Any:
    """The level below a level of sums, a row for each node, `[nodes, BLOCK]`."""
    if level == 0:
        return weights.reshape(-1, BLOCK)
    return sums[begins[level - 1] : begins[level]].reshape(-1, BLOCK)


def draw(
    weights: NDArray[np.float32], sums: Floats, begins: Ints, fractions: Floats
) -> tuple[Ints, Floats]:
    """Positions of leaves and their probabilities; see `PriorityTree.draw`."""
    top = len(begins) - 2
    roots = sums[begins[top] :].cumsum()
    total = roots[-1]
    if not total > 0:
        return np.full(len(fractions), -1), np.zeros(len(fractions))
    # behind the last sum that is not beyond the fraction; never behind the last one with weight
    nodes = roots.searchsorted(fractions * total, "right")
    nodes = np.minimum(nodes, roots.searchsorted(total, "left"))
    before = np.where(nodes > 0, roots[nodes - 1], 0.0)
    share = sums[begins[top] + nodes]
    left = (fractions * total - before) / share
    probabilities = share / total
    each = np.arange(len(nodes))
    for level in range(top, -1, -1):
        rows = children(weights, sums, begins, level)[nodes].astype(np.float64)
        # [n, BLOCK + 1]: sums before each child; the last one is that of all
        before = np.zeros((len(rows), BLOCK + 1))
        np.cumsum(rows, axis=1, out=before[:, 1:])
        whole = before[:, -1:]
        wanted = left[:, None] * whole
        places = ((before[:, 1:] <= wanted) & (before[:, 1:] < whole)).sum(1)
        share, whole = rows[each, places], whole[:, 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            left = (wanted[:, 0] - before[each, places]) / share
            probabilities = probabilities * (share / whole)
        nodes = nodes * BLOCK + places
    good = probabilities > 0  # false for a node without weight, of 0 / 0
    return np.where(good, nodes, -1), np.where(good, probabilities, 0.0)


def update(  # noqa: PLR0913 - the arrays of one tree, and three of an update
    words: NDArray[np.uint64],
    weights: NDArray[np.float32],
    sums: Floats,
    begins: Ints,
    positions: Ints,
    ids: NDArray[np.uint32],
    new: NDArray[np.float32],
) -> None:
    """Sets words and the sums above them; see `PriorityTree.update`."""
    # of a position that comes twice numpy keeps what is assigned last
    words[positions] = (ids.astype(np.uint64) << np.uint64(32)) | new.view(np.uint32)
    nodes = positions
    for level in range(len(begins) - 1):
        nodes = nodes >> SHIFT
        rows = children(weights, sums, begins, level)[nodes].astype(np.float64)
        sums[begins[level] + nodes] = rows.cumsum(1)[:, -1]


def sum_up(weights: NDArray[np.float32], sums: Floats, begins: Ints, begin: int, end: int) -> None:
    """Computes the sums above leaves from `begin` on up to `end`."""
    last = end - 1
    for level in range(len(begins) - 1):
        begin, last = begin >> SHIFT, last >> SHIFT
        rows = children(weights, sums, begins, level)[begin : last + 1].astype(np.float64)
        sums[begins[level] + begin : begins[level] + last + 1] = rows.cumsum(1)[:, -1]
