"""Many rows taken into the trajectory tables, or dropped from them, by array operations alone.

A run here is the part of a batch that is in one piece: rows at a constant distance, each
continuing the one before it. Its first row is its head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_replay.trajectories.tables import (
    BEGIN,
    BORN,
    END,
    JUMP,
    JUMP_START,
    LIVE,
    LONE,
    NO_PIECE,
    ORIGIN,
    PIECES,
    PLACE,
    PREVIOUS,
    SPAN,
    START,
    STEPS,
    STOP,
    STRIDE,
    TAIL,
    TRAJECTORY,
    LaneTables,
)
from rl_tensordict.types import Flags, Ints


class Runs(NamedTuple):
    """The runs of a batch."""

    heads: Ints  # int64 [runs], the first row of each, rising
    counts: Ints  # int64 [runs], rows of each
    strides: Ints  # int64 [runs], their distance; 0 for a run of one row
    run_of: Ints  # int64 [rows], the run of each row; -1 for one that is not real
    rank: Ints  # int64 [rows], the place of each row in its run


class Before(NamedTuple):
    """The predecessor of each row of a batch."""

    row: Ints  # int64 [rows], its index in the batch; the row itself if not in the batch
    inside: Flags  # bool [rows], it is in the batch
    piece: Ints  # int64 [rows], its piece if stored already; -1 otherwise


def append(writer: LaneTables, first: int, back: Ints) -> None:
    """Appends rows; the rows that they overwrite were dropped before."""
    words = writer.words
    before = _rows_before(writer, first, back)
    runs = _runs(writer, back, before)
    numbers = first + runs.heads
    slots, starts, trajectories = _extend_pieces(writer, numbers, before, runs)
    fresh = np.flatnonzero(slots == NO_PIECE)
    if len(fresh):
        slots[fresh] = writer.free_pieces.take(len(fresh))
        _begin_pieces(writer, numbers, before, runs, (fresh, slots, starts, trajectories))
        words[PIECES] += len(fresh)
        words[LONE] += int((runs.counts[fresh] == 1).sum())
    table = writer.tables.trajectories
    # of several runs of one trajectory the last one stays: heads rise
    table[trajectories, STOP] = starts + runs.counts
    table[trajectories, TAIL] = slots
    words[STEPS] += int(runs.counts.sum())
    _write_piece_of(writer, first, np.append(slots, NO_PIECE)[runs.run_of])


def drop(writer: LaneTables, first: int, end: int) -> None:
    """Drops the oldest rows, row ids `first` to `end`."""
    tables, words = writer.tables, writer.words
    numbers = np.arange(first, end)
    slots = writer.rows_of(tables.piece_of, first, end - first).astype(np.int64)
    real = slots >= 0
    if not real.all():
        numbers, slots = numbers[real], slots[real]
    pieces = tables.pieces.take(slots, axis=0)
    # STRIDE is 0 for a piece of one row
    strides = pieces[:, STRIDE]
    ends = np.where(strides, (numbers - pieces[:, ORIGIN]) // np.maximum(strides, 1), 0) + 1
    ends += np.where(strides, 0, pieces[:, START])
    trajectories = pieces[:, TRAJECTORY]
    tables.trajectories[trajectories, BEGIN] = ends  # steps rise: the last one stays
    words[STEPS] -= len(numbers)
    over = np.flatnonzero(ends == pieces[:, END])
    if not len(over):
        return
    words[PIECES] -= len(over)
    words[LONE] -= int((pieces[over, END] - pieces[over, START] == 1).sum())
    writer.free_pieces.give(slots[over])
    trajectories, ends = trajectories[over], ends[over]
    _end_trajectories(writer, trajectories[ends == tables.trajectories[trajectories, STOP]])


def _rows_before(writer: LaneTables, first: int, back: Ints) -> Before:
    rows = np.arange(len(back))
    row = rows - back
    linked = (back > 0) & (row >= writer.low - first)
    inside = linked & (row >= 0)
    row = np.where(inside, row, rows)
    inside &= back[row] >= 0
    piece = np.full(len(back), NO_PIECE)
    outside = np.flatnonzero(linked & (rows < back))
    stored = _positions(writer, first + outside - back[outside])
    piece[outside] = writer.tables.piece_of.take(stored)
    return Before(np.where(inside, row, rows), inside, piece)


def _heads(writer: LaneTables, back: Ints, before: Before) -> Flags:
    """Which rows begin a piece, bool `[rows]`."""
    # The first row of a piece sets no distance, so the second one always fits: after the first row
    # of a piece none begins, and after any other one begins where the distance changes. Where it
    # changes at several rows in a row, each of them does what the one before it does not.
    begins = ~before.inside
    no_one_before = begins & (before.piece < 0)
    stored = np.flatnonzero(before.piece >= 0)
    pieces = writer.tables.pieces.take(before.piece[stored], axis=0)
    fits = pieces[:, STRIDE] == back[stored]
    begins[stored] = ~(fits | (pieces[:, END] - pieces[:, START] == 1))
    turns = before.inside & (back != back[before.row]) & ~no_one_before[before.row]
    if not turns.any():
        return begins
    link = np.where(turns, before.row, np.arange(len(back)))
    odd = turns.astype(np.int64)
    while ((onward := link[link]) != link).any():
        odd += odd[link]
        link = onward
    flags: Flags = begins[link] ^ (odd % 2 == 1)
    return flags


def _runs(writer: LaneTables, back: Ints, before: Before) -> Runs:
    count, rows = len(back), np.arange(len(back))
    glued = before.inside & ~_heads(writer, back, before)
    distances = back[glued]
    if len(distances) and (distances == distances[0]).all():
        stride = int(distances[0])
        padded = np.zeros(-(-count // stride) * stride, dtype=np.int64)
        padded[:count] = np.where(glued, 0, rows)
        grid = padded.reshape(-1, stride)  # time downwards, one column for each run of rows
        root = np.maximum.accumulate(grid, axis=0).reshape(-1)[:count]
        rank = (rows - root) // stride
    else:
        root, rank = np.where(glued, before.row, rows), glued.astype(np.int64)
        while ((onward := root[root]) != root).any():
            rank += rank[root]
            root = onward
    real = back >= 0
    heads = np.flatnonzero(real & ~glued)
    run_at = np.full(count, -1)
    run_at[heads] = np.arange(len(heads))
    run_of = run_at[root]
    strides = np.zeros(len(heads), dtype=np.int64)
    strides[run_of[glued]] = distances
    return Runs(heads, np.bincount(run_of[real], minlength=len(heads)), strides, run_of, rank)


def _extend_pieces(
    writer: LaneTables, numbers: Ints, before: Before, runs: Runs
) -> tuple[Ints, Ints, Ints]:
    """Extends stored pieces by the runs that fit; piece, first step and trajectory of each run."""
    # The others have no piece yet, and what they continue tells them the rest.
    table, words = writer.tables.pieces, writer.words
    stored = before.piece[runs.heads]
    continuing = np.flatnonzero(stored >= 0)
    pieces = table.take(stored[continuing], axis=0)
    distance = numbers[continuing] - (pieces[:, ORIGIN] + pieces[:, STRIDE] * (pieces[:, END] - 1))
    lone = pieces[:, END] - pieces[:, START] == 1
    # a piece of one row takes any distance
    fits = lone | (pieces[:, STRIDE] == distance)
    slots, starts = np.full((2, len(numbers)), NO_PIECE)
    trajectories = np.full(len(numbers), -1)
    starts[continuing], trajectories[continuing] = pieces[:, END], pieces[:, TRAJECTORY]
    continuing, pieces, lone = continuing[fits], pieces[fits], lone[fits]
    slots[continuing] = stored[continuing]
    table[stored[continuing], END] += runs.counts[continuing]
    ones = stored[continuing][lone]
    table[ones, STRIDE] = distance[fits][lone]
    # ORIGIN + STRIDE * START is still the piece's first row id
    table[ones, ORIGIN] -= distance[fits][lone] * pieces[lone, START]
    words[LONE] -= len(ones)
    return slots, starts, trajectories


def _begin_pieces(
    writer: LaneTables,
    numbers: Ints,
    before: Before,
    runs: Runs,
    found: tuple[Ints, Ints, Ints, Ints],
) -> None:
    """Fills the new pieces, each after the piece that it continues."""
    fresh, slots, starts, trajectories = found
    heads = runs.heads[fresh]
    alone = fresh[~before.inside[heads] & (before.piece[heads] < 0)]
    trajectories[alone] = _begin_trajectories(writer, numbers[alone])
    starts[alone] = 0
    previous = slots.copy()  # the first piece of a trajectory is its own previous one
    continuing = fresh[before.piece[heads] >= 0]
    previous[continuing] = before.piece[runs.heads[continuing]]
    ready = np.concatenate((alone, continuing))
    waiting = fresh[before.inside[heads]]
    while True:
        _fill_pieces(writer, numbers, runs, (ready, slots, starts, trajectories, previous))
        if not len(waiting):
            return
        # a run whose predecessor's piece is filled can be filled in this round
        rows = before.row[runs.heads[waiting]]
        earlier = runs.run_of[rows]
        can = starts[earlier] >= 0
        ready, rows, earlier, waiting = waiting[can], rows[can], earlier[can], waiting[~can]
        starts[ready] = starts[earlier] + runs.rank[rows] + 1
        trajectories[ready], previous[ready] = trajectories[earlier], slots[earlier]


def _fill_pieces(
    writer: LaneTables,
    numbers: Ints,
    runs: Runs,
    found: tuple[Ints, Ints, Ints, Ints, Ints],
) -> None:
    ready = found[0]
    slots, starts, trajectories, previous = (array[ready] for array in found[1:])
    table = writer.tables.pieces
    counts, strides = runs.counts[ready], runs.strides[ready]
    new = np.empty((len(ready), SPAN + 1), dtype=np.int64)
    new[:, ORIGIN] = numbers[ready] - strides * starts
    new[:, STRIDE], new[:, START], new[:, END] = strides, starts, starts + counts
    new[:, TRAJECTORY], new[:, PREVIOUS] = trajectories, previous
    # jump lengths as in a skew-binary list; see `TrajectoryWriter._begin_piece`
    up = table.take(previous, axis=0)
    far = table.take(up[:, JUMP], axis=0)
    alive = up[:, JUMP_START] >= writer.tables.trajectories[trajectories, BEGIN]
    long = alive & (up[:, SPAN] == far[:, SPAN])
    new[:, JUMP] = np.where(long, far[:, JUMP], previous)
    new[:, JUMP_START] = np.where(long, far[:, JUMP_START], up[:, START])
    new[:, SPAN] = np.where(long, 2 * up[:, SPAN] + 1, 1)
    roots = slots == previous
    new[roots, JUMP], new[roots, JUMP_START], new[roots, SPAN] = slots[roots], 0, 0
    table[slots] = new


def _begin_trajectories(writer: LaneTables, numbers: Ints) -> Ints:
    slots = writer.free_trajectories.take(len(numbers))
    table, first = writer.tables.trajectories, writer.base + writer.words[LIVE]
    table[slots, BEGIN] = 0
    table[slots, PLACE] = np.arange(first, first + len(slots))
    table[slots, BORN] = numbers
    writer.tables.live[first : first + len(slots)] = slots
    writer.words[LIVE] += len(slots)
    return slots


def _end_trajectories(writer: LaneTables, slots: Ints) -> None:
    """Removes trajectories from `live`; the last entries fill the holes."""
    table, live = writer.tables.trajectories, writer.tables.live
    left = writer.words[LIVE] - len(slots)
    end = writer.base + left
    places = table[slots, PLACE]
    stays = np.ones(len(slots), dtype=np.bool_)
    stays[places[places >= end] - end] = False
    moved, holes = live[end : end + len(slots)][stays], places[places < end]
    live[holes] = moved
    table[moved, PLACE] = holes
    writer.words[LIVE] = left
    writer.free_trajectories.give(slots)


def _positions(writer: LaneTables, numbers: Ints) -> Ints:
    # numbers of one lane, so the bits that name it are the same in all of them
    return (numbers - writer.first_number) % writer.capacity + writer.base


def _write_piece_of(writer: LaneTables, first: int, slots: Ints) -> None:
    start = (first - writer.first_number) % writer.capacity
    fitting, base = min(len(slots), writer.capacity - start), writer.base
    writer.tables.piece_of[base + start : base + start + fitting] = slots[:fitting]
    writer.tables.piece_of[base : base + len(slots) - fitting] = slots[fitting:]
