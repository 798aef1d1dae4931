"""Keeps the trajectory tables of one lane up to date while its rows are written and overwritten.

A batch whose rows mostly lie one after the other is taken in run by run, with a few plain numbers
each; any other by `batch_append`, with array operations over all its rows. Both say the same, and
neither can do without the other: one row takes 3.5 us run by run and 58 us by arrays, 64
environments x 32 steps 2,150 us run by run and 110 us by arrays (two cores, busy).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_replay.trajectories import batch_append
from rl_replay.trajectories.tables import (
    BEGIN,
    BORN,
    BROKEN,
    END,
    FREE_PIECES,
    FREE_TRAJECTORIES,
    FRESH_PIECE,
    FRESH_TRAJECTORY,
    INDEXED,
    JUMP,
    JUMP_START,
    LIVE,
    LONE,
    LOW,
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
    TrajectoryTables,
)


class TrajectoryWriter(LaneTables):
    """Updates one lane's part of the tables. One writer at a time."""

    # up to so many runs, and one more for each 80 rows, plain numbers are faster than arrays: a run
    # takes 2 to 3 us, arrays 60 us and 0.04 us a row
    few_runs = 40

    def __init__(self, tables: TrajectoryTables, capacity: int, lane: int = 0) -> None:
        super().__init__(tables, capacity, lane)
        self._piece_of = tables.piece_of.data
        self._pieces = tables.pieces.data
        self._trajectories = tables.trajectories.data
        self._live = tables.live.data

    def clear(self, number: int) -> None:
        """Empties the lane; the next row has id `number`."""
        words = self.words
        # set during every update: a process that finds it set rebuilds the lane from the links
        words[BROKEN] = 1
        for column in (STEPS, LIVE, PIECES, LONE, FREE_PIECES, FRESH_PIECE):
            words[column] = 0
        words[FREE_TRAJECTORIES] = words[FRESH_TRAJECTORY] = 0
        words[INDEXED] = words[LOW] = number - self.first_number
        words[BROKEN] = 0

    def append(self, first_number: int, back: NDArray[np.integer]) -> None:
        """Appends rows; the rows that they overwrite are dropped first."""
        count = len(back)
        if first_number != self.indexed or count > self.capacity:
            raise ValueError(
                f"expected at most {self.capacity} rows from number {self.indexed} on, got {count} "
                f"from {first_number} on. Drop what was overwritten, then append in order."
            )
        self.drop_before(first_number + count - self.capacity)
        words = self.words
        words[BROKEN] = 1
        # back == 1 continues the row just before
        heads = (back != 1).nonzero()[0]
        if len(heads) <= self.few_runs + count // 80:
            self._append_runs(first_number, back, heads.tolist())
        else:
            batch_append.append(self, first_number, back.astype(np.int64))
        words[INDEXED] += count
        words[BROKEN] = 0

    def drop_before(self, number: int) -> None:
        """Drops the rows before a row id; an id not indexed yet empties the lane."""
        low = self.low
        if number <= low:
            return
        if number >= self.indexed:
            self.clear(number)
            return
        words = self.words
        words[BROKEN] = 1
        # run by run first; many short runs by array operations
        for _ in range(self.few_runs + (number - low) // 80):
            low += self._drop_run(low, number)
            if low == number:
                break
        else:
            batch_append.drop(self, low, number)
        words[LOW] = number - self.first_number
        words[BROKEN] = 0

    def _append_runs(self, first: int, back: NDArray[np.integer], heads: list[int]) -> None:
        # row 0 always begins a run: its predecessor is in an earlier call
        starts = heads if heads[:1] == [0] else [0, *heads]
        for start, stop in zip(starts, [*starts[1:], len(back)], strict=True):
            if stop > start:
                self._append_run(first + start, int(back[start]), stop - start)

    def _append_run(self, number: int, back: int, count: int) -> None:
        """Appends a row and the rows after it that each continue the row just before."""
        if back < 0:
            self._write_piece_of(number, 1, NO_PIECE)
            number, back, count = number + 1, 0, count - 1
            if not count:
                return
        before = self._piece_before(number, back)
        if before < 0:
            self._begin_trajectory(number, count)
            return
        pieces = self._pieces
        lone = pieces[before, END] - pieces[before, START] == 1
        if not lone and pieces[before, STRIDE] != back:
            self._begin_piece(before, number, count)
            return
        # the rows after the first continue at distance 1, which fits no piece of another distance
        fitting = count if back == 1 else 1
        if lone:
            # ORIGIN + STRIDE * START is still the piece's first row id
            pieces[before, ORIGIN] -= back * pieces[before, START]
            pieces[before, STRIDE] = back
            self.words[LONE] -= 1
        end = pieces[before, END] = pieces[before, END] + fitting
        self._trajectories[pieces[before, TRAJECTORY], STOP] = end
        self.words[STEPS] += fitting
        self._write_piece_of(number, fitting, before)
        if fitting < count:
            self._append_run(number + 1, 1, count - 1)

    def _piece_before(self, number: int, back: int) -> int:
        # an overwritten predecessor counts as none
        before = number - back
        if back <= 0 or before < self.low:
            return NO_PIECE
        return int(self._piece_of[self.base + (before - self.first_number) % self.capacity])

    def _begin_trajectory(self, number: int, count: int) -> None:
        slot, piece = self.free_trajectories.take_one(), self.free_pieces.take_one()
        words, trajectories = self.words, self._trajectories
        place = self.base + words[LIVE]
        trajectories[slot, BEGIN] = 0
        trajectories[slot, PLACE] = place
        trajectories[slot, BORN] = number
        self._fill_piece(piece, number, 0, count, slot)
        pieces = self._pieces
        # the first piece ends every search: it leads to itself
        pieces[piece, PREVIOUS] = pieces[piece, JUMP] = piece
        pieces[piece, JUMP_START] = pieces[piece, SPAN] = 0
        self._live[place] = slot
        words[LIVE] += 1

    def _begin_piece(self, before: int, number: int, count: int) -> None:
        piece, pieces = self.free_pieces.take_one(), self._pieces
        slot, start = pieces[before, TRAJECTORY], pieces[before, START]
        pieces[piece, PREVIOUS] = before
        jump, span = pieces[before, JUMP], pieces[before, SPAN]
        # jump lengths as in a skew-binary list: any step of a trajectory is found in a number of
        # jumps logarithmic in that of its pieces. Where pieces were evicted a new list begins.
        alive = pieces[before, JUMP_START] >= self._trajectories[slot, BEGIN]
        if alive and span == pieces[jump, SPAN]:
            pieces[piece, JUMP], pieces[piece, SPAN] = pieces[jump, JUMP], 2 * span + 1
            pieces[piece, JUMP_START] = pieces[jump, JUMP_START]
        else:
            pieces[piece, JUMP], pieces[piece, SPAN] = before, 1
            pieces[piece, JUMP_START] = start
        self._fill_piece(piece, number, pieces[before, END], count, slot)

    def _fill_piece(self, piece: int, number: int, start: int, count: int, slot: int) -> None:
        pieces, words = self._pieces, self.words
        stride = 1 if count > 1 else 0
        # so that the row at step s has id ORIGIN + STRIDE * s
        pieces[piece, ORIGIN] = number - stride * start
        pieces[piece, STRIDE] = stride
        pieces[piece, START] = start
        pieces[piece, END] = start + count
        pieces[piece, TRAJECTORY] = slot
        self._trajectories[slot, STOP] = start + count
        self._trajectories[slot, TAIL] = piece
        words[STEPS] += count
        words[PIECES] += 1
        words[LONE] += count == 1
        self._write_piece_of(number, count, piece)

    def _write_piece_of(self, number: int, count: int, piece: int) -> None:
        start = (number - self.first_number) % self.capacity
        array, base, end = self.tables.piece_of, self.base, start + count
        if count == 1:
            self._piece_of[base + start] = piece
        elif end <= self.capacity:
            array[base + start : base + end] = piece
        else:
            array[base + start : base + self.capacity] = piece
            array[base : base + end - self.capacity] = piece

    def _drop_run(self, number: int, end: int) -> int:
        """Drops a row and the rows after it in its piece; returns how many."""
        pieces, words = self._pieces, self.words
        piece = self._piece_of[self.base + (number - self.first_number) % self.capacity]
        if piece == NO_PIECE:
            return 1
        stride, stop = pieces[piece, STRIDE], pieces[piece, END]
        step = (number - pieces[piece, ORIGIN]) // stride if stride else pieces[piece, START]
        # at other distances rows of other pieces are in between
        count: int = min(end - number, stop - step) if stride == 1 else 1
        slot, step = pieces[piece, TRAJECTORY], step + count
        # eviction moves BEGIN only; pieces keep their steps
        self._trajectories[slot, BEGIN] = step
        words[STEPS] -= count
        if step == stop:
            if stop == self._trajectories[slot, STOP]:
                self._end_trajectory(slot)
            words[PIECES] -= 1
            words[LONE] -= stop - pieces[piece, START] == 1
            self.free_pieces.give(piece)
        return count

    def _end_trajectory(self, slot: int) -> None:
        place = self._trajectories[slot, PLACE]
        self.words[LIVE] -= 1
        # the last entry fills the hole, so that `live` stays dense
        last = self._live[self.base + self.words[LIVE]]
        self._live[place] = last
        self._trajectories[last, PLACE] = place
        self.free_trajectories.give(slot)
