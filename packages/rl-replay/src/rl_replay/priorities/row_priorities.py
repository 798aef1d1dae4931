"""Priorities of the rows of a storage: of new ones and of sampled ones, and draws by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from rl_replay.priorities.least_weight import LeastWeight
from rl_replay.priorities.memory import (
    ALPHA,
    CLEARED,
    EPOCH,
    HIGHEST,
    LENGTH,
    HalfWords,
    PriorityMemory,
)
from rl_replay.priorities.row_ids import ids_of, require_written, runs, within
from rl_replay.priorities.saved import Saved, went_back
from rl_replay.priorities.slice_candidates import SliceCandidates
from rl_replay.storages.ring import Ring
from rl_slabs import Window
from rl_tensordict import UnfitValue
from rl_tensordict.types import Flags, Floats, Ints, Singles

ReadFirst = Callable[[int, int], Singles | None]
"""The priorities that rows were written with, from one row id on up to another; None without."""

_ROUNDS = 64
_HEALED = 256  # leaves whose sums each draw from shared priorities computes again


class DrawnRows(NamedTuple):
    """Rows that were drawn."""

    row_ids: Ints  # int64 [n]
    probabilities: Floats  # [n]


def no_first_priorities(_begin: int, _end: int) -> None:
    """Rows that were written without a priority."""


class RowPriorities:
    """The priorities of the rows of one ring."""

    # A row's id and weight are in one word of the tree. Writers of rows do nothing: before rows are
    # drawn or updated, `catch_up` compares the window with the one it saw last. The word of a row
    # that was not drawn yet has the highest priority that any row ever had.

    def __init__(self, memory: PriorityMemory) -> None:
        self.memory = memory  # where the priorities are
        self.tree = memory.tree
        # how many priorities came back, in this process, after their row was overwritten
        self.stale = 0
        self.seen: Window | None = None  # the window of the last `catch_up`
        # rows of which the caller is to find out whether slices can begin with them
        self.candidates = SliceCandidates()
        self._saved: Saved | None = None
        self._cleared = -1.0  # the count of clears up to which `seen` is true
        self._healed = 0  # the leaf from which sums are computed next
        self._lane_size = 1  # positions of each lane
        self._standing = np.zeros((2, 1), np.int64)  # what `seen` says of each lane, for loops
        self._least = LeastWeight()

    def __getstate__(self) -> PriorityMemory:
        return self.memory

    def __setstate__(self, memory: PriorityMemory) -> None:
        self.__init__(memory)  # type: ignore[misc]

    def moved(self, room: int, *, shared: bool) -> RowPriorities:
        """The same priorities in other memory."""
        old = self.memory
        found = RowPriorities(PriorityMemory(room, alpha=old.alpha, eps=old.eps, shared=shared))
        found.memory.board[LENGTH] = old.length
        found.load(self.save())
        found.stale = self.stale
        found.candidates.keeps_heads = self.candidates.keeps_heads
        return found

    def set_alpha(self, alpha: float) -> None:
        """Computes all weights again, from the priorities."""
        self.memory.board[ALPHA] = alpha
        live = np.flatnonzero(self.tree.words)
        self._weigh(live, self.tree.ids[live])
        self._least.forget()

    def of_slices(self, length: int) -> None:
        """Draws slices of so many rows: a row has weight once `start_at` names it."""
        memory = self.memory
        if memory.length == length:
            return
        if memory.is_shared and memory.length:
            raise ValueError(
                f"slices of {memory.length} rows are drawn from this shared buffer, and now of "
                f"{length}: give all processes the same length."
            )
        memory.board[LENGTH] = length
        self.load(self.save())

    def catch_up(
        self,
        ring: Ring,
        epoch: int = 0,
        read_first: ReadFirst = no_first_priorities,
        *,
        highest_of_stored: bool = False,
    ) -> None:
        """Takes in the rows that were written and dropped since the last call."""
        # `epoch` counts how often any process dropped or loaded all rows. New rows have the
        # priorities they were written with, as `read_first` gives them, or the highest: so far, or
        # `highest_of_stored`.
        window, memory = ring.window(), self.memory
        known = self._cleared == memory.board[CLEARED] and epoch == memory.board[EPOCH]
        if known and (window is self.seen or window == self.seen):
            return
        seen = self.seen
        if memory.board[EPOCH] != epoch:
            self.load(self._saved)
            memory.board[EPOCH] = epoch
        if seen is None or self._cleared != memory.board[CLEARED] or went_back(seen, window):
            if self.seen is not None and went_back(self.seen, window):
                self._clear()
            self._cleared = float(memory.board[CLEARED])
            seen = Window((0,) * len(window.first), (0,) * len(window.first))
        each = self._lane_size = ring.capacity // len(window.first)
        if ring.capacity > memory.room:
            raise ValueError(
                f"the storage has room for {ring.capacity} rows and its sampler for {memory.room}: "
                "give both the same capacity."
            )
        lanes = list(zip(seen.first, seen.counts, window.first, window.counts, strict=True))
        for old_first, old_count, first, count in lanes:
            old_end, end = old_first + old_count, first + count
            if self.candidates.keeps_heads:
                self._note_heads(old_first, min(first, old_end))
            # where rows continue, new ones overwrite the rows of one revolution before
            goes_on = first <= old_end and not highest_of_stored
            self._drop(max(old_first, end - each) if goes_on else old_first, min(first, old_end))
        if highest_of_stored and self._saved is None:
            self.forget_highest()
        for old_first, old_count, first, count in lanes:
            self._take_in(max(old_first + old_count, first), first + count, read_first)
        self._standing = np.array((window.first, window.counts))
        self.seen = window
        self._restore_saved(ring, window)

    def draw(
        self, ring: Ring, count: int, uniform: Callable[[int], Floats], *, strata: bool
    ) -> DrawnRows:
        """Draws rows in proportion to their weights, by random numbers in [0, 1) of `uniform`.

        With `strata` each is drawn from a part of its own of the sum of all weights.
        """
        if self.memory.is_shared:
            self._heal(ring)
        standing = self._standing, self._lane_size
        drawn = self.tree.draw_rows(uniform(count), *standing, strata=strata)
        positions, probabilities, row_ids, good, bad_rows = drawn
        if not bad_rows:
            return DrawnRows(row_ids, probabilities)
        for _ in range(_ROUNDS):
            bad = np.flatnonzero(~good)
            if not bad.size:
                return DrawnRows(row_ids, probabilities)
            found = ring.numbers_at(torch.from_numpy(positions[bad])).numpy()
            # another process has taken in what it found there
            same = (found >= 0) & (positions[bad] >= 0)
            same &= ids_of(found) == self.tree.ids[positions[bad]]
            row_ids[bad], good[bad] = found, same
            bad = bad[~same]
            if not bad.size:
                continue
            self._mend(ring, positions[bad])
            if not self.tree.total > 0:
                break
            again = self.tree.draw_rows(uniform(len(bad)), *standing, strata=False)
            positions[bad], probabilities[bad], row_ids[bad], good[bad], _ = again
        raise UnfitValue(_why_none(self.memory, ring, self._positions))

    def update(self, ring: Ring, row_ids: Ints, priorities: Singles) -> None:
        """Sets the priorities of rows that are stored still, and counts the others."""
        memory, lanes = self.memory, (self._standing, self._lane_size)
        assigned = memory.assign(row_ids, *lanes, priorities)
        if assigned.known < 0:
            require_written(ring.window(), row_ids)
            standing = within(row_ids, self.seen)
            self.stale += len(row_ids) - int(standing.sum())
            row_ids, priorities = row_ids[standing], priorities[standing]
            assigned = memory.assign(row_ids, *lanes, priorities)
        memory.raise_highest(assigned.highest)
        if assigned.known < len(row_ids):
            again = self._regain(ring, row_ids, priorities, ~assigned.same)
            self.stale += len(row_ids) - assigned.known - int(again.sum())
            memory.raise_highest(float(priorities[again].max(initial=0.0)))
        self._least.note(self.tree, assigned.positions)

    def replace(self, ring: Ring, row_ids: Ints, priorities: Singles | None) -> None:
        """Follows rows of one lane to their new ids, where those of `row_ids` replaced others."""
        seen, first = self.seen, ring.window().first[0]
        if seen is None or len(seen.first) > 1 or first < seen.first[0]:
            return  # `catch_up` takes all of them in
        self.memory.shift_ids(first - seen.first[0])
        self.seen = Window((first,), seen.counts)
        self._standing = np.array((self.seen.first, self.seen.counts))
        known, given = within(row_ids, self.seen), self._first_priorities(priorities, len(row_ids))
        self._set_anew(self._positions(ring, row_ids[known]), row_ids[known], given[known])
        self._least.forget()

    def start_at(self, ring: Ring, row_ids: Ints, *, allowed: bool = True) -> None:
        """Lets rows be drawn as the first ones of slices, or no more."""
        positions = self._positions(ring, row_ids)
        self.memory.allow(positions, row_ids, allowed=allowed)
        self._least.note(self.tree, positions)

    def find_starts_anew(self) -> None:
        """Lets no row be drawn as the first one of a slice before the caller names it again."""
        seen = self.seen
        if seen is None:
            return
        self.memory.startable[:] = False
        live = np.flatnonzero(self.tree.words)
        self._weigh(live, self.tree.ids[live])
        ranges = zip(seen.first, seen.counts, strict=True)
        self.candidates.new[:] = [(first, first + count) for first, count in ranges if count]

    def note_successors(self, ring: Ring, row_ids: Ints, successors: Ints) -> None:
        """Keeps which rows continue some, until these are overwritten."""
        positions = self._positions(ring, row_ids)
        same = self.tree.ids[positions] == ids_of(row_ids)
        self.memory.ahead[positions[same]] = (successors - row_ids)[same]

    def lowest_probability(self, ring: Ring) -> float:
        """The probability of the row that is drawn least often."""
        return self._least.find(self.tree, ring) / self.tree.total

    def forget_highest(self) -> None:
        """The highest priority is that of the rows that are stored."""
        found = self.memory.priorities[self.tree.ids != 0]
        self.memory.board[HIGHEST] = found.max() if len(found) else 1.0

    def save(self) -> Saved | None:
        """The priorities of all rows that were taken in; None before the first ones."""
        if self._saved is not None or self.seen is None:
            return self._saved
        return Saved.of(self.memory, self.seen, self._lane_size)

    def load(self, saved: Saved | None) -> None:
        """Takes priorities over for the rows that `catch_up` finds next; the former ones go."""
        self.seen, self._saved = None, saved
        self._clear()
        self.memory.board[HIGHEST] = 1.0 if saved is None else saved.highest

    def _positions(self, ring: Ring, row_ids: Ints) -> Ints:
        """The positions of row ids, as the ring says them."""
        if self.seen is not None and len(self.seen.first) == 1:
            found: Ints = row_ids % self._lane_size
            return found
        return ring.positions(torch.from_numpy(row_ids)).numpy()

    def _clear(self) -> None:
        self.memory.clear()
        self.candidates.clear()
        self._least.forget()

    def _restore_saved(self, ring: Ring, window: Window) -> None:
        saved, self._saved = self._saved, None
        if saved is None:
            return
        for begin, kept in saved.parts(window):
            self.update(ring, np.arange(begin, begin + len(kept)), kept)
        self.memory.board[HIGHEST] = saved.highest

    def _note_heads(self, begin: int, end: int) -> None:
        """Adds the rows that continue some that are gone, while new ones do not name others yet."""
        for place, first, stop in runs(begin, end, self._lane_size):
            row_ids, rows = np.arange(first, stop), slice(place, place + stop - first)
            far = np.where(self.tree.ids[rows] == ids_of(row_ids), self.memory.ahead[rows], 0)
            heads = row_ids + far
            self.candidates.heads += heads[(far > 0) & (heads >= end)].tolist()

    def _drop(self, begin: int, end: int) -> None:
        for place, first, stop in runs(begin, end, self._lane_size):
            # where another process has taken a newer row in, its word stays
            same = self.tree.ids[place : place + stop - first] == ids_of(np.arange(first, stop))
            nothing = np.zeros(stop - first, np.uint32)
            self.tree.put(place, nothing, nothing.view(np.float32), same)

    def _take_in(self, begin: int, end: int, read_first: ReadFirst) -> None:
        if begin >= end:
            return
        memory = self.memory
        given = read_first(begin, end)
        if memory.length:
            self.candidates.add_new(begin, end, self._lane_size)
        given = self._first_priorities(given, end - begin)
        for place, first, stop in runs(begin, end, self._lane_size):
            memory.take_in(place, first, given[first - begin : stop - begin])
            self._least.note(self.tree, slice(place, place + stop - first))

    def _first_priorities(self, given: Singles | None, count: int) -> Singles:
        """The priorities of so many new rows: the given ones, or the highest."""
        if given is None:
            return np.full(count, self.memory.highest, np.float32)
        self.memory.raise_highest(float(given.max(initial=0.0)))
        return given

    def _weigh(self, positions: Ints, ids: HalfWords) -> None:
        """Sets the words of leaves by their priorities."""
        self.tree.update(positions, ids, self.memory.weights_at(positions))
        self._least.note(self.tree, positions)

    def _regain(self, ring: Ring, row_ids: Ints, priorities: Singles, lost: Flags) -> Flags:
        """Sets rows that stand and whose word others overwrote with an old one; which these are."""
        standing: Flags = lost & ring.is_live(torch.from_numpy(row_ids)).numpy()
        standing &= within(row_ids, self.seen)
        if standing.any():
            positions = ring.positions(torch.from_numpy(row_ids[standing])).numpy()
            self._set_anew(positions, row_ids[standing], priorities[standing])
        return standing

    def _heal(self, ring: Ring) -> None:
        """Looks at some leaves again: a killed process may have left out the sums above its words.

        Of two processes that look at a word and then write it the slower one may leave an old one.
        """
        begin = self._healed % self.memory.room
        rows = np.arange(begin, min(begin + _HEALED, self.memory.room))
        self._healed = begin + _HEALED
        self.tree.sum_up(begin, begin + len(rows))
        row_ids = ring.numbers_at(torch.from_numpy(rows[rows < ring.capacity])).numpy()
        rows = rows[: len(row_ids)]
        wrong = within(row_ids, self.seen) & (self.tree.ids[rows] != ids_of(row_ids))
        if wrong.any():
            self._mend(ring, rows[wrong])

    def _mend(self, ring: Ring, positions: Ints) -> None:
        """Writes words anew whose rows others overwrote, and sums that promise too much."""
        places = np.unique(positions[positions >= 0])
        if not len(places):  # a process was killed between a word and the sums above it
            self.tree.sum_up(0, self.memory.room)
            return
        row_ids = ring.numbers_at(torch.from_numpy(places)).numpy()
        seen = within(row_ids, self.seen)
        gone = places[~seen]  # `catch_up` takes in what is there now
        self.tree.update(gone, np.zeros(len(gone), np.uint32), np.zeros(len(gone), np.float32))
        highest = np.full(len(places) - len(gone), self.memory.highest, np.float32)
        self._set_anew(places[seen], row_ids[seen], highest)

    def _set_anew(self, positions: Ints, row_ids: Ints, priorities: Singles) -> None:
        """Sets rows whose word is not theirs; whether they can begin slices is looked up again."""
        memory = self.memory
        memory.priorities[positions], memory.startable[positions] = priorities, False
        self._weigh(positions, ids_of(row_ids))
        if memory.length:
            self.candidates.mended += row_ids.tolist()


def _why_none(
    memory: PriorityMemory, ring: Ring, positions_of: Callable[[Ring, Ints], Ints]
) -> str:
    """Why no row can be drawn, and what to do."""
    window, length = ring.window(), memory.length
    count, lanes = len(window), zip(window.first, window.counts, strict=True)
    if not count:
        return "there are no rows to sample yet: extend the buffer first."
    row_ids = np.concatenate([np.arange(first, first + rows) for first, rows in lanes])
    positions = positions_of(ring, row_ids)
    known = memory.tree.ids[positions] == ids_of(row_ids)
    if length and not memory.startable[positions[known]].any():
        return (
            f"none of {count} rows begins a slice of {length} rows: ask for shorter ones, or "
            f"wait for more rows."
        )
    what = "begins a slice of this length and has" if length else "has"
    return (
        f"none of {count} rows {what} a priority above 0: update_priority(index, priority) "
        f"sets them, eps keeps them above 0."
    )
