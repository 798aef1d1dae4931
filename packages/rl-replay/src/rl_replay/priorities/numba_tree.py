"""The loops of a priority tree, compiled by numba: the only file here that needs it.

They do what `numpy_tree` does, in the same order of additions, so that every number is the same.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

import numpy as np
from numba import njit

from rl_replay.priorities.numpy_tree import BLOCK, SHIFT


@njit(nogil=True, cache=True)
def sum_of(weights, sums, begins, level, node):
    """The sum of a node's children."""
    total = 0.0
    if level == 0:
        for child in range(node * BLOCK, node * BLOCK + BLOCK):
            total += np.float64(weights[child])
    else:
        first = begins[level - 1] + node * BLOCK
        for child in range(first, first + BLOCK):
            total += sums[child]
    return total


@njit(nogil=True, cache=True)
def descend(rows, first, left):
    """The child of a block at a fraction of its sum: place, fraction inside of it, and share."""
    whole = 0.0
    for child in range(first, first + BLOCK):
        whole += np.float64(rows[child])
    wanted = left * whole
    place, before, reached = 0, 0.0, 0.0
    for child in range(first, first + BLOCK):  # without branches: which child is random
        reached += np.float64(rows[child])
        beyond = (reached <= wanted) & (reached < whole)
        place += beyond
        before = reached if beyond else before
    share = np.float64(rows[first + place])
    if not share > 0:
        return place, 0.0, 0.0
    return place, (wanted - before) / share, share / whole


@njit(nogil=True, cache=True)
def draw(weights, sums, begins, fractions):
    """Positions of leaves and their probabilities; see `PriorityTree.draw`."""
    count, top = len(fractions), len(begins) - 2
    roots = np.empty(begins[top + 1] - begins[top])
    total = 0.0
    for node in range(len(roots)):
        total += sums[begins[top] + node]
        roots[node] = total
    nodes, probabilities = np.full(count, -1), np.zeros(count)
    if not total > 0:
        return nodes, probabilities
    left = np.empty(count)
    last = np.searchsorted(roots, total)
    for draw in range(count):
        wanted = fractions[draw] * total
        node = min(np.searchsorted(roots, wanted, side="right"), last)
        before = roots[node - 1] if node > 0 else 0.0
        share = sums[begins[top] + node]
        nodes[draw], left[draw] = node, (wanted - before) / share
        probabilities[draw] = share / total
    for level in range(top, 0, -1):  # level by level, so that reads of many draws overlap
        for draw in range(count):
            first = begins[level - 1] + nodes[draw] * BLOCK
            place, left[draw], share = descend(sums, first, left[draw])
            nodes[draw] = nodes[draw] * BLOCK + place
            probabilities[draw] *= share
    for draw in range(count):
        place, _, share = descend(weights, nodes[draw] * BLOCK, left[draw])
        probabilities[draw] *= share
        nodes[draw] = nodes[draw] * BLOCK + place if probabilities[draw] > 0 else -1
    return nodes, probabilities


@njit(nogil=True, cache=True)
def update(words, weights, sums, begins, positions, ids, new):
    """Sets words and the sums above them; see `PriorityTree.update`."""
    bits = new.view(np.uint32)
    for row in range(len(positions)):
        words[positions[row]] = (np.uint64(ids[row]) << np.uint64(32)) | np.uint64(bits[row])
    shift = 0
    for level in range(len(begins) - 1):
        shift += SHIFT
        former = -1
        for row in range(len(positions)):
            node = positions[row] >> shift
            if node != former:
                sums[begins[level] + node] = sum_of(weights, sums, begins, level, node)
            former = node


@njit(nogil=True, cache=True)
def sum_up(weights, sums, begins, begin, end):
    """Computes the sums above leaves from `begin` on up to `end`."""
    last = end - 1
    for level in range(len(begins) - 1):
        begin, last = begin >> SHIFT, last >> SHIFT
        for node in range(begin, last + 1):
            sums[begins[level] + node] = sum_of(weights, sums, begins, level, node)
