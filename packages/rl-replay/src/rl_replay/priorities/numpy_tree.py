"""The loops of a priority tree in numpy: the same numbers as the compiled ones."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict.types import Flags, Floats, Ints, Singles, Words

BLOCK, SHIFT = 16, 4  # children of a node, leaves of two cache lines; the bits of a child's place
GROUP = 4  # children that are added up together, so that four additions can be made at a time
BELOW_ONE = np.nextafter(1.0, 0.0)  # a fraction that rounding has made 1 would pass the last child
WEIGHT_HALF = 0 if sys.byteorder == "little" else 1
"""Which half of a word is the weight."""


def children(words: Words, sums: Floats, begins: Ints, level: int, nodes: Ints | slice) -> Floats:
    """The children of some nodes of a level, `[BLOCK, n]`."""
    if level == 0:
        # whole blocks of words, each read in one piece
        blocks = words.view(np.float32).reshape(-1, 2 * BLOCK)
        found = _of(blocks, nodes)[:, WEIGHT_HALF::2]
    else:
        found = _of(sums[begins[level - 1] : begins[level]].reshape(-1, BLOCK), nodes)
    made: Floats = found.T.astype(np.float64, order="C")
    return made


def _of(rows: NDArray[np.floating], nodes: Ints | slice) -> NDArray[np.floating]:
    return rows[nodes] if isinstance(nodes, slice) else rows.take(nodes, axis=0)


def total_of(rows: Floats) -> Floats:
    """The sums of columns `[BLOCK, n]`: of the first children of groups, and so on, added up."""
    count = rows.shape[1]
    # four numbers are added up in their order, also if there is one column
    parts = np.add.reduce(rows.reshape(BLOCK // GROUP, GROUP * count), axis=0)
    total: Floats = np.add.reduce(parts.reshape(GROUP, count), axis=0)
    return total


def cumulated(rows: Floats) -> Floats:
    """The sums of columns `[BLOCK, n]` before each entry, and of all: `[BLOCK + 1, n]`."""
    found = np.empty((BLOCK + 1, rows.shape[1]))
    found[0] = 0.0
    given = rows.reshape(BLOCK // GROUP, GROUP, rows.shape[1])
    groups = found[1:].reshape(given.shape)
    groups[:, 0] = given[:, 0]
    for child in range(1, GROUP):
        np.add(groups[:, child - 1], given[:, child], out=groups[:, child])
    for group in range(1, len(groups)):
        groups[group] += groups[group - 1, -1]
    return found


def draw(words: Words, sums: Floats, begins: Ints, fractions: Floats) -> tuple[Ints, Floats]:
    """Positions of leaves and their probabilities; see `PriorityTree.draw`."""
    top, count = len(begins) - 2, len(fractions)
    roots = np.empty(len(sums) - begins[top] + 1)  # the sums before each root, and of all
    roots[0] = 0.0
    sums[begins[top] :].cumsum(out=roots[1:])
    total = roots[-1]
    if not total > 0:
        return np.full(count, -1), np.zeros(count)
    # after the last sum that does not exceed the fraction; never after the last one with weight
    wanted = fractions * total
    nodes = roots[1:].searchsorted(wanted, "right")
    np.minimum(nodes, roots[1:].searchsorted(total), out=nodes)
    share = sums[begins[top] + nodes]
    each = np.arange(count)
    with np.errstate(invalid="ignore", divide="ignore"):
        left = (wanted - roots.take(nodes)) / share
        probabilities = share / total
        for level in range(top, -1, -1):
            rows = children(words, sums, begins, level, nodes)
            reached = cumulated(rows)
            whole = reached[BLOCK]
            wanted = np.minimum(left, BELOW_ONE) * whole
            beyond = (reached[1:BLOCK] <= wanted).view(np.uint8)  # [BLOCK - 1, n]
            places = np.add.reduce(beyond, axis=0, dtype=np.uint8).astype(np.int64)
            cells = places * count + each  # in `rows`, and in `reached` of what is before
            share = rows.take(cells)
            left = (wanted - reached.take(cells)) / share
            probabilities *= share / whole
            nodes = nodes * BLOCK + places
    if probabilities.min(initial=1.0) > 0:  # not for a node without weight, of 0 / 0
        return nodes, probabilities
    good = probabilities > 0
    return np.where(good, nodes, -1), np.where(good, probabilities, 0.0)


def draw_rows(  # noqa: PLR0913 - the arrays of one tree, and four of the draw
    words: Words,
    sums: Floats,
    begins: Ints,
    fractions: Floats,
    strata: bool,
    standing: Ints,
    lane_size: int,
) -> tuple[Ints, Floats, Ints, Flags, int]:
    """`draw`, and of which row each leaf is; see `PriorityTree.draw_rows`."""
    if strata:
        fractions = (fractions + np.arange(len(fractions))) / len(fractions)
    positions, probabilities = draw(words, sums, begins, fractions)
    lanes = np.clip(positions // lane_size, 0, standing.shape[1] - 1)
    firsts, counts = standing[0, lanes], standing[1, lanes]
    # a difference of halves is that of row ids, since a lane has less than 2^32 rows
    after = ((words[positions] >> np.uint64(32)).astype(np.int64) - firsts - 1) & 0xFFFFFFFF
    good = (after < counts) & (positions >= 0)
    return positions, probabilities, firsts + after, good, len(good) - int(good.sum())


def update(
    words: Words,
    sums: Floats,
    begins: Ints,
    positions: Ints,
    ids: NDArray[np.uint32],
    new: Singles,
) -> None:
    """Sets words and the sums above them; see `PriorityTree.update`."""
    # of a position that comes twice numpy keeps what is assigned last
    words[positions] = (ids.astype(np.uint64) << np.uint64(32)) | new.view(np.uint32)
    sum_above(words, sums, begins, positions)


def assign(  # noqa: PLR0913 - the arrays of one memory, and five of an update
    words: Words,
    sums: Floats,
    begins: Ints,
    priorities: Singles,
    startable: Flags | None,
    row_ids: Ints,
    standing: Ints,
    lane_size: int,
    weights: Singles,
    new: Singles,
) -> tuple[Ints, Flags, int, float]:
    """Sets priorities and words of rows whose word is theirs; see `PriorityMemory.assign`."""
    lanes = np.clip(row_ids >> LANE_SHIFT, 0, standing.shape[1] - 1)
    after = row_ids - standing[0, lanes]
    positions = lanes * lane_size + (row_ids & LANE_MASK) % lane_size
    if not ((after >= 0) & (after < standing[1, lanes])).all():
        return positions, np.zeros(len(row_ids), np.bool_), -1, 0.0
    ids = (row_ids + 1).astype(np.uint32)
    same: Flags = words[positions] >> np.uint64(32) == ids
    some = slice(None) if same.all() else same
    places = positions[some]
    if startable is not None:
        weights = weights * startable[positions]
    priorities[places] = new[some]
    update(words, sums, begins, places, ids[some], weights[some])
    return positions, same, len(places), float(new[some].max(initial=0.0))


def allow(  # noqa: PLR0913 - the arrays of one memory, and five of a change
    words: Words,
    sums: Floats,
    begins: Ints,
    startable: Flags,
    positions: Ints,
    row_ids: Ints,
    weights: Singles,
    allowed: bool,
) -> None:
    """Lets rows whose word is theirs begin slices, or no more; see `PriorityMemory.allow`."""
    ids = (row_ids + 1).astype(np.uint32)
    same = words[positions] >> np.uint64(32) == ids
    places = positions[same]
    startable[places] = allowed
    new = weights[same] if allowed else np.zeros(len(places), np.float32)
    update(words, sums, begins, places, ids[same], new)


def take_in(  # noqa: PLR0913 - the arrays of one memory, and four of an update
    words: Words,
    sums: Floats,
    begins: Ints,
    priorities: Singles,
    startable: Flags,
    first: int,
    row_id: int,
    weights: Singles,
    new: Singles,
) -> None:
    """Sets rows whose word is an older row's; see `PriorityMemory.take_in`."""
    rows = slice(first, first + len(new))
    ids = np.arange(row_id + 1, row_id + 1 + len(new)).astype(np.uint32)
    known = (words[rows] >> np.uint64(32)).astype(np.uint32)
    older = (known == 0) | ((ids - known).view(np.int32) > 0)
    np.copyto(priorities[rows], new, where=older)
    np.copyto(startable[rows], False, where=older)
    found = (ids.astype(np.uint64) << np.uint64(32)) | weights.view(np.uint32)
    np.copyto(words[rows], found, where=older)
    sum_up(words, sums, begins, rows.start, rows.stop)


def sum_above(words: Words, sums: Floats, begins: Ints, positions: Ints) -> None:
    """Computes the sums above some leaves."""
    nodes = positions
    for level in range(len(begins) - 1):
        nodes = nodes >> SHIFT
        sums[begins[level] + nodes] = total_of(children(words, sums, begins, level, nodes))


def sum_up(words: Words, sums: Floats, begins: Ints, first: int, end: int) -> None:
    """Computes the sums above leaves from `first` on up to `end`."""
    last = end - 1
    for level in range(len(begins) - 1):
        first, last = first >> SHIFT, last >> SHIFT
        rows = children(words, sums, begins, level, slice(first, last + 1))
        sums[begins[level] + first : begins[level] + last + 1] = total_of(rows)
