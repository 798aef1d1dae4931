"""The loops of a priority tree, compiled by numba: the only file here that needs it.

They do what `numpy_tree` does, in the same order of additions, so that every number is the same.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

from typing import Any

import numpy as np
from numba import njit

from rl_replay.priorities.numpy_tree import BELOW_ONE, BLOCK, GROUP, SHIFT, WEIGHT_HALF
from rl_slabs.internals import LANE_MASK, LANE_SHIFT

# indices without a sign spare a look at each whether it counts from the end
_BLOCK, _GROUP = np.uint64(BLOCK), np.uint64(GROUP)
_HALF, _SHIFT, _ID_SHIFT = np.uint64(WEIGHT_HALF), np.uint64(SHIFT), np.uint64(32)
_ONE, _LAST = np.uint64(1), np.uint64(BLOCK - 1)
_options: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
_inside: Any = _options | {"forceinline": True}  # a call takes as long as what these do


@njit(**_inside)
def child_at(halves, sums, begin, place):
    """The weight of a leaf, where the level below has none above it (`begin` < 0), or a sum."""
    if begin < 0:
        return np.float64(halves[(place << _ONE) + _HALF])
    return sums[np.uint64(begin) + place]


@njit(**_inside)
def sum_of(halves, sums, begin, node):
    """The sum of a node's children, added up as `numpy_tree.total_of` does."""
    first, total = node * _BLOCK, 0.0
    for child in range(GROUP):
        place = first + np.uint64(child)
        part = child_at(halves, sums, begin, place)
        for group in range(1, BLOCK // GROUP):
            part += child_at(halves, sums, begin, place + np.uint64(group) * _GROUP)
        total = total + part if child else part
    return total


@njit(**_options)
def descend(halves, sums, begin, nodes, left, probabilities):
    """Moves draws from nodes to children; `left` is the fraction of a node that is wanted."""
    reached, touched = np.zeros(BLOCK + 1), 0.0
    for draw in range(len(nodes)):  # reads of many draws overlap here, and what follows has them
        first = np.uint64(nodes[draw]) * _BLOCK
        touched += child_at(halves, sums, begin, first)
        touched += child_at(halves, sums, begin, first + (_BLOCK >> _ONE))
        touched += child_at(halves, sums, begin, first + _LAST)
    for draw in range(len(nodes)):
        first, before = np.uint64(nodes[draw]) * _BLOCK, 0.0
        for group in range(BLOCK // GROUP):
            part = 0.0
            for child in range(group * GROUP, group * GROUP + GROUP):
                part += child_at(halves, sums, begin, first + np.uint64(child))
                reached[child + 1] = before + part
            before = reached[group * GROUP + GROUP]
        whole = reached[BLOCK]
        wanted, place = min(left[draw], BELOW_ONE) * whole, np.uint64(0)
        for child in range(1, BLOCK):  # without branches: which child is random
            place += np.uint64(reached[child] <= wanted)
        share = child_at(halves, sums, begin, first + place)
        left[draw] = (wanted - reached[place]) / share
        probabilities[draw] *= share / whole
        nodes[draw] = np.int64(first + place)
    return touched


@njit(**_options)
def find_roots(sums, begin, fractions, nodes, left, probabilities):
    """The highest nodes of some fractions of all sums; False if there is no weight."""
    size, total, room = len(sums) - begin, 0.0, 1
    while room < size:
        room *= 2
    before = np.full(room, np.inf)
    for root in range(size):
        before[root] = total
        total += sums[begin + root]
    last = size - 1
    while last > 0 and not before[last] < total:  # no draw is of a root after the last weight
        before[last] = np.inf
        last -= 1
    for draw in range(len(nodes)):
        nodes[draw], left[draw] = 0, fractions[draw] * total
    while room > 1:  # a search for all draws at a time, of one comparison: without branches
        room //= 2
        for draw in range(len(nodes)):
            node = nodes[draw] + room
            nodes[draw] = node if before[np.uint64(node)] <= left[draw] else nodes[draw]
    for draw in range(len(nodes)):
        node = np.uint64(nodes[draw])
        share = sums[np.uint64(begin) + node]
        left[draw] = (left[draw] - before[node]) / share
        probabilities[draw] = share / total
    return total > 0


@njit(**_options)
def draw(words, sums, begins, fractions):
    """Positions of leaves and their probabilities; see `PriorityTree.draw`."""
    count, top, halves = len(fractions), len(begins) - 2, words.view(np.float32)
    nodes, left, probabilities = np.empty(count, np.int64), np.empty(count), np.empty(count)
    found = find_roots(sums, begins[top], fractions, nodes, left, probabilities)
    if found:
        for level in range(top, 0, -1):
            descend(halves, sums, begins[level - 1], nodes, left, probabilities)
        descend(halves, sums, -1, nodes, left, probabilities)
    for draw in range(count):
        if not (found and probabilities[draw] > 0):  # not for 0 / 0 either
            nodes[draw], probabilities[draw] = -1, 0.0
    return nodes, probabilities


@njit(**_inside)
def lane_among(standing, lane):
    """A lane, the nearest one if there is none of that number."""
    return min(max(lane, 0), standing.shape[1] - 1)


@njit(**_options)
def draw_rows(words, sums, begins, fractions, strata, standing, lane_size):
    """`draw`, and of which row each leaf is; see `PriorityTree.draw_rows`."""
    count, bad, one_lane = len(fractions), 0, standing.shape[1] == 1
    if strata:
        parts = np.empty(count)
        for part in range(count):
            parts[part] = (fractions[part] + part) / count
        fractions = parts
    positions, probabilities = draw(words, sums, begins, fractions)
    row_ids, good = np.empty(count, np.int64), np.empty(count, np.bool_)
    for row in range(count):
        place = positions[row]
        lane = 0 if one_lane else lane_among(standing, place // lane_size)
        # a difference of halves is that of row ids, since a lane has less than 2^32 rows
        after = (np.int64(words[place] >> _ID_SHIFT) - standing[0, lane] - 1) & 0xFFFFFFFF
        row_ids[row] = standing[0, lane] + after
        good[row] = (after < standing[1, lane]) & (place >= 0)
        bad += not good[row]
    return positions, probabilities, row_ids, good, bad


@njit(**_options)
def update(words, sums, begins, positions, ids, new):
    """Sets words and the sums above them; see `PriorityTree.update`."""
    bits = new.view(np.uint32)
    for row in range(len(positions)):
        words[np.uint64(positions[row])] = (np.uint64(ids[row]) << _ID_SHIFT) | np.uint64(bits[row])
    sum_above(words, sums, begins, positions)


@njit(**_options)
def assign(words, sums, begins, priorities, startable, row_ids, standing, lane_size, weights, new):
    """Sets priorities and words of rows whose word is theirs; see `PriorityMemory.assign`."""
    count, one_lane, bits = len(row_ids), standing.shape[1] == 1, weights.view(np.uint32)
    positions, same = np.empty(count, np.int64), np.zeros(count, np.bool_)
    standing_rows = 0
    for row in range(count):
        lane = 0 if one_lane else lane_among(standing, row_ids[row] >> LANE_SHIFT)
        after, inner = row_ids[row] - standing[0, lane], row_ids[row] & LANE_MASK
        if inner >= lane_size:  # a division takes as long as all else here
            inner = np.int64(np.uint64(inner) % np.uint64(lane_size))
        positions[row] = lane * lane_size + inner
        standing_rows += (after >= 0) & (after < standing[1, lane])
    if standing_rows < count:
        return positions, same, -1, 0.0
    found, highest = 0, np.float32(0)
    for row in range(count):
        place, own = np.uint64(positions[row]), np.uint64(np.uint32(row_ids[row] + 1))
        same[row] = words[place] >> _ID_SHIFT == own
        if same[row]:
            weight = np.uint64(bits[row])
            if startable is not None:
                weight *= np.uint64(startable[place])
            priorities[place] = new[row]
            words[place] = (own << _ID_SHIFT) | weight
            found, highest = found + 1, max(highest, new[row])
    sum_above(words, sums, begins, positions)
    return positions, same, found, np.float64(highest)


@njit(**_options)
def allow(words, sums, begins, startable, positions, row_ids, weights, allowed):
    """Lets rows whose word is theirs begin slices, or no more; see `PriorityMemory.allow`."""
    bits = weights.view(np.uint32)
    for row in range(len(positions)):
        place, own = np.uint64(positions[row]), np.uint64(np.uint32(row_ids[row] + 1))
        if words[place] >> _ID_SHIFT == own:
            startable[place] = allowed
            words[place] = (own << _ID_SHIFT) | (np.uint64(bits[row]) * np.uint64(allowed))
    sum_above(words, sums, begins, positions)


@njit(**_options)
def take_in(words, sums, begins, priorities, startable, first, row_id, weights, new):
    """Sets rows whose word is an older row's; see `PriorityMemory.take_in`."""
    bits = weights.view(np.uint32)
    for row in range(len(new)):
        place, own = np.uint64(first + row), np.uint32(row_id + 1 + row)
        known = np.uint32(words[place] >> _ID_SHIFT)
        if known == 0 or np.int32(own - known) > 0:
            priorities[place], startable[place] = new[row], False
            words[place] = (np.uint64(own) << _ID_SHIFT) | np.uint64(bits[row])
    sum_up(words, sums, begins, first, first + len(new))


@njit(**_options)
def sum_above(words, sums, begins, positions):
    """Computes the sums above some leaves."""
    halves, shift, begin = words.view(np.float32), np.uint64(0), -1
    for level in range(len(begins) - 1):
        shift += _SHIFT
        former = np.uint64(1) << np.uint64(62)
        for row in range(len(positions)):
            node = np.uint64(positions[row]) >> shift
            if node != former:
                sums[np.uint64(begins[level]) + node] = sum_of(halves, sums, begin, node)
            former = node
        begin = begins[level]


@njit(**_options)
def sum_up(words, sums, begins, first, end):
    """Computes the sums above leaves from `first` on up to `end`."""
    halves, last, begin = words.view(np.float32), end - 1, -1
    for level in range(len(begins) - 1):
        first, last = first >> SHIFT, last >> SHIFT
        for node in range(first, last + 1):
            sums[begins[level] + node] = sum_of(halves, sums, begin, np.uint64(node))
        begin = begins[level]
