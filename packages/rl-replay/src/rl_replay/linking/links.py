"""Who continues whom: found when rows are written, kept as one distance for each row.

Row j continues row i if both are real, their ids are equal, j's step is one more, j is no first
step and i is no boundary. Where ids or steps are missing, rows adjacent along time in one call
continue each other, along a dimension that is not named "time" unless their observations
contradict it; between calls only if the observations say so bit for bit, and the earlier row
reaches one step. Every row has at most one successor, so chains never branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_replay.linking.markers import (
    Extent,
    MarkerColumns,
    MarkerKeys,
    ReadColumn,
    RowRun,
    any_set,
    read_columns,
)
from rl_replay.linking.observations import (
    Contradictions,
    Last,
    Side,
    contradictions,
    lacks,
    last_rows,
    match_last_rows,
    observed,
    rows_of,
)
from rl_slabs import Span
from rl_slabs.internals import Leaves, ValidatedLeaves, leaves_of

StepKey = tuple[int, ...]
"""What a row is called by its markers: every id that it has, then its step."""

# up to here a loop over open ends is quicker than sorting them
_FEW = 48
FEW_ROWS = 16  # all of a call, not only open ends
NOTHING_COMPARED = Contradictions()


class Predecessors(NamedTuple):
    """The predecessors that `Links.match` matched for rows about to be written."""

    # For each row the distance in numbers to the one that it continues, 0 without one, -1 for
    # padding; int32 [n]
    back: NDArray[np.int32]
    # Ids, step and number of the rows that none of them continues yet
    open_ends: dict[StepKey, int]
    consumed: Sequence[StepKey]  # Ids and step of older rows that are continued now
    # The last row of each run, or all rows side by side, where rows are not numbered by ids and
    # steps
    lasts: Sequence[Last] | Side = ()
    contradictions: Contradictions = NOTHING_COMPARED  # Neighbours whose observations were compared
    marks: MarkerColumns | None = None  # The markers, if read as columns
    # Whether the rows are one run: each continues the one before, and all but the last are no ends
    is_run: bool = False
    ends: bool = True  # Whether the last row may be an end; False if it was read and is none


class Links:
    """The offset of each row to its predecessor, and the rows without a successor yet."""

    # Finding changes nothing, so that a write can still be refused; write takes it over.

    def __init__(
        self, capacity: int, keys: MarkerKeys, *, back: NDArray[np.int32] | None = None
    ) -> None:
        self.capacity = capacity
        self.keys = keys
        self.back = np.zeros(capacity, dtype=np.int32) if back is None else back
        self.pending: dict[StepKey, int] = {}
        self._lasts: Sequence[Last] | Side = ()
        self._pruned_at = 64
        self._one_step = True

    def match(
        self,
        cells: TensorDictBase | Leaves | ValidatedLeaves,
        extent: Extent,
        numbers: range,
    ) -> Predecessors:
        """Matches rows about to be written with their predecessors."""
        leaves = cells if isinstance(cells, ValidatedLeaves) else leaves_of(cells)
        if extent.count == 1 and self.keys.numbered and isinstance(leaves, ValidatedLeaves):
            return self.match_one(leaves.__getitem__, numbers.start)
        if extent.count <= FEW_ROWS and isinstance(leaves, ValidatedLeaves):
            found = self._match_run(leaves, numbers) if extent.stride == 1 else None
            if found is not None:
                return found
        columns = read_columns(leaves, self.keys)
        marks, stride = MarkerColumns.read(columns.get, self.keys, extent.count), extent.stride
        if self.keys.numbered and stride == 1 and extent.count <= FEW_ROWS:
            # their names alone decide: a loop over few rows is quicker than arrays
            return self._walk(marks, marks.unlinked(), marks.ends_of_few(), numbers)
        back, seen = marks.unlinked(), NOTHING_COMPARED
        # the predecessor of the first row of each column can only be in an earlier call
        if extent.count > stride:
            joined = marks.joined(slice(0, -stride), slice(stride, None))
            inside = extent.inside()
            if inside is not None:
                joined &= inside
            if self.keys.compares and not extent.named:
                wrong, seen = contradictions(leaves, self.keys, extent, joined)
                joined = joined if wrong is None else joined & ~wrong
            # padding joins no row, so that its -1 stays
            back[stride:] += joined if stride == 1 else joined * np.int32(stride)
        if self.keys.numbered:
            continued = np.zeros(extent.count, dtype=np.bool_)
            # rows that have their successor in this batch are not open
            np.greater(back[stride:], 0, out=continued[:-stride])
            return self._by_number(marks, back, continued, numbers)
        if isinstance(self._lasts, Side) and not extent.named:
            seen = seen._replace(gap=self._lasts.gap(extent.count))
        one_step = stride == 1 < extent.count and not extent.named and self._is_one_step(seen)
        lasts = self._by_bits(leaves, marks, back, stride, side_by_side=one_step)
        return Predecessors(back, {}, (), lasts, seen, marks)

    def match_one(self, get: ReadColumn, number: int) -> Predecessors:
        """`match` for one row, whose leaves `get` returns by key."""
        keys = self.keys
        if keys.mask is not None and not any_set(get(keys.mask)):
            return Predecessors(_PADDING, {}, ())
        run = RowRun.of_row(get, keys)
        ids, step = run.ids, run.step
        if keys.numbered and step is not None:
            back, before = _NONE, (*ids, step - 1)
            found = None if run.begins else self._open_row(before, number + 1)
            consumed = () if found is None else (before,)
            if found is not None:
                back = _NEXT if number - found == 1 else np.array([number - found], dtype=np.int32)
            open_ends = {} if run.ends else {(*ids, step): number}
            return Predecessors(back, open_ends, consumed, ends=run.ends)
        pairs = keys.observations
        if not pairs:
            return Predecessors(_NONE, {}, (), ends=run.ends)
        lasts = last_rows(self._lasts)
        back = _NEXT if len(lasts) == 1 and self._follows(lasts[0], run, get) else _NONE
        last = _OVER
        if not run.ends and run.is_near:
            last = Last(ids, step, True, [get(after).tobytes() for _, after in pairs])
        return Predecessors(back, {}, (), [last], ends=run.ends)

    def _match_run(self, leaves: ValidatedLeaves, numbers: range) -> Predecessors | None:
        """`match` for few rows of which each continues the one before; None for other rows."""
        run = RowRun.of(leaves, self.keys, len(numbers))
        if run is None or run.step is None:
            return None
        back, before = np.ones(len(numbers), dtype=np.int32), (*run.ids, run.step - 1)
        found = None if run.begins else self._open_row(before, numbers.stop)
        back[0] = 0 if found is None else numbers.start - found
        last = (*run.ids, run.step + len(numbers) - 1)
        open_ends = {} if run.ends else {last: numbers[-1]}
        return Predecessors(back, open_ends, () if found is None else (before,), is_run=True)

    def write(self, span: Span, found: Predecessors) -> None:
        """Records the predecessors of rows that were written."""
        rows = span.rows if isinstance(span.rows, slice) else span.rows.numpy()
        self.back[rows] = found.back
        self._lasts = found.lasts
        self._one_step = self._is_one_step(found.contradictions)
        for step in found.consumed:
            self.pending.pop(step, None)
        self.pending.update(found.open_ends)
        if len(self.pending) > 2 * self._pruned_at:
            self._prune(span.numbers.stop - self.capacity)

    def forget(self) -> None:
        """Closes all open trajectories."""
        self.pending.clear()
        self._lasts = ()

    def observe_external(
        self, marks: MarkerColumns, back: NDArray[np.int32], numbers: range
    ) -> None:
        """Records rows that another writer appended after the known ones."""
        self._lasts = ()  # the rows just before are others now
        if not self.keys.numbered:
            return
        steps, count = _steps(marks), marks.count
        later = np.flatnonzero(back > 0)
        earlier = later - back[later]
        has_next = np.zeros(count, dtype=np.bool_)
        has_next[earlier[earlier >= 0]] = True
        # rows that continue a row from before these: that one is open no longer
        outside = later[earlier < 0]
        tails = np.flatnonzero(marks.before_others() & ~has_next)
        for rows, shift in ((outside, 1), (tails, 0)):
            names = [column[rows].tolist() for column in marks.ids]
            for row, *ids, step in zip(
                rows.tolist(), *names, (steps[rows] - shift).tolist(), strict=True
            ):
                if shift:
                    self.pending.pop((*ids, step), None)
                else:
                    self.pending[*ids, step] = numbers[row]

    def observe_tail(self, cells: TensorDictBase, back: NDArray[np.int32]) -> None:
        """Records the newest row of each run, for rows without ids and steps."""
        self._lasts = ()
        leaves = leaves_of(cells)
        marks = MarkerColumns.read(read_columns(leaves, self.keys).get, self.keys, len(back))
        self._lasts = self._by_bits(leaves, marks, back.copy(), len(back))

    def drop_before(self, number: int) -> None:
        """Closes the trajectories whose last row is older than `number`."""
        self._lasts = ()
        self._prune(number)

    def revise(self, marks: MarkerColumns, first: int) -> None:
        """Recomputes the links of all live rows after their markers changed or were loaded."""
        # Links that the markers still allow stay. Rows with ids and steps find their predecessor
        # at any position.
        numbers = np.arange(first, first + marks.count)
        positions = numbers % self.capacity
        distance = self.back[positions].astype(np.int64)
        row = np.flatnonzero((distance > 0) & (np.arange(marks.count) >= distance))
        row = row[marks.joined(row - distance[row], row)]
        back = np.zeros(marks.count, dtype=np.int32)
        back[row] = distance[row]
        if marks.real is not None:
            back[~marks.real] = -1
        self.forget()
        if self.keys.numbered:
            continued = np.zeros(marks.count, dtype=np.bool_)
            continued[row - distance[row]] = True
            found = self._by_number(marks, back, continued, range(first, first + marks.count))
            back, self.pending = found.back, found.open_ends
        self.back[positions] = back

    def _by_number(
        self,
        marks: MarkerColumns,
        back: NDArray[np.int32],
        continued: NDArray[np.bool_],
        numbers: range,
    ) -> Predecessors:
        """Completes `back` for rows with ids and steps, from this batch and from older rows."""
        (heads,) = (marks.after_others() & (back == 0)).nonzero()
        (tails,) = (marks.before_others() & ~continued).nonzero()
        if len(heads) + len(tails) <= _FEW:
            return self._walk(marks, back, (set(heads.tolist()), set(tails.tolist())), numbers)
        return self._sort(marks, back, (heads, tails), numbers)

    def _walk(
        self,
        marks: MarkerColumns,
        back: NDArray[np.int32],
        ends: tuple[set[int], set[int]],
        numbers: range,
    ) -> Predecessors:
        """Matches few heads and tails in a loop."""
        open_ends: dict[StepKey, int] = {}
        consumed: list[StepKey] = []
        heads, tails = ends
        order = sorted(heads | tails)
        names = [column[order].tolist() for column in (*marks.ids, _steps(marks))]
        for row, *ids, step in zip(order, *names, strict=True):
            number = numbers[row]
            before = (*ids, step - 1)
            if row in heads:
                found = open_ends.pop(before, None)
                if found is None and before not in consumed:
                    found = self._open_row(before, numbers.stop)
                    consumed += [] if found is None else [before]
                if found is not None:
                    back[row] = number - found
            if row in tails:
                open_ends[*ids, step] = number
        return Predecessors(back, open_ends, consumed, marks=marks)

    def _sort(
        self,
        marks: MarkerColumns,
        back: NDArray[np.int32],
        ends: tuple[NDArray[np.int64], NDArray[np.int64]],
        numbers: range,
    ) -> Predecessors:
        """Matches many heads and tails by one sort."""
        # Sorted by the step that a tail is and a head wants, a head continues the tail just ahead.
        heads, tails = ends
        row = np.concatenate([heads, tails])
        is_tail = np.arange(len(row)) >= len(heads)
        names = [column[row] for column in marks.ids] + [_steps(marks)[row] - ~is_tail]
        order = np.lexsort((2 * row + is_tail, *names))
        row, is_tail, names = row[order], is_tail[order], [name[order] for name in names]
        # [ends], equal to the entry before in all ids and the step
        same = np.zeros(len(row), dtype=np.bool_)
        same[1:] = np.logical_and.reduce([name[1:] == name[:-1] for name in names])
        inner = np.flatnonzero(same[1:] & is_tail[:-1] & ~is_tail[1:])
        back[row[inner + 1]] = row[inner + 1] - row[inner]

        def steps_of(places: NDArray[np.int64]) -> Iterator[StepKey]:
            return zip(*(name[places].tolist() for name in names), strict=True)

        queries = np.flatnonzero(~same & ~is_tail) if self.pending else _NO_ROWS
        consumed: list[StepKey] = []
        for step, late in zip(steps_of(queries), row[queries].tolist(), strict=True):
            found = self._open_row(step, numbers.stop)
            if found is not None:
                back[late] = numbers[late] - found
                consumed.append(step)
        # tails that no entry follows stay open
        last = np.flatnonzero(is_tail & ~np.append(same[1:], False))
        late_numbers = (row[last] + numbers.start).tolist()
        open_ends = dict(zip(steps_of(last), late_numbers, strict=True))
        return Predecessors(back, open_ends, consumed, marks=marks)

    def _open_row(self, step: StepKey, end: int) -> int | None:
        """The open row at a step, unless the rows up to `end` overwrite it."""
        number = self.pending.get(step)
        return number if number is not None and number >= end - self.capacity else None

    def _by_bits(
        self,
        leaves: Leaves | ValidatedLeaves,
        marks: MarkerColumns,
        back: NDArray[np.int32],
        stride: int,
        *,
        side_by_side: bool = False,
    ) -> Sequence[Last] | Side:
        """Completes `back` for rows without ids or steps: equal observations prove a successor."""
        pairs, paths = self.keys.observations, self.keys.observed
        if not pairs or lacks(leaves, paths):
            return ()
        count, begin = len(back), max(len(back) - stride, 0)
        match_last_rows(self._lasts, self.keys, leaves, marks, back, stride)
        if side_by_side:
            return Side.of(marks, back, observed(leaves, self.keys, 1), self.capacity)
        following: list[NDArray[Any]] = []
        lasts = []
        for place, row in enumerate(range(begin, count)):
            if back[row] < 0 or not marks.leads_on(row):
                lasts.append(_OVER)
                continue
            if not following:
                following = [
                    rows_of(leaves, key, path, slice(begin, count))
                    for (_, key), (_, path) in zip(pairs, paths, strict=True)
                ]
            bits = [rows[place].tobytes() for rows in following]
            lasts.append(Last(*marks.name(row), True, bits))
        return lasts

    def _is_one_step(self, seen: Contradictions) -> bool:
        """Whether the rows of one call are one step of as many environments."""
        return 2 * seen.cut > seen.compared if seen.compared else self._one_step

    def _follows(self, last: Last, run: RowRun, get: ReadColumn) -> bool:
        """Whether a row is the successor of the last row of the previous call."""
        if not last.waits or run.begins or not last.precedes(run.ids, run.step):
            return False
        pairs = zip(self.keys.observations, last.following, strict=True)
        return all(get(key).tobytes() == bits for (key, _), bits in pairs)

    def _prune(self, first: int) -> None:
        self.pending = {step: n for step, n in self.pending.items() if n >= first}
        self._pruned_at = max(64, len(self.pending))


_OVER = Last((), None, False, [])
_PADDING, _NONE, _NEXT = (np.array([distance], dtype=np.int32) for distance in (-1, 0, 1))
_NO_ROWS = np.zeros(0, dtype=np.int64)


def _steps(marks: MarkerColumns) -> NDArray[Any]:
    if marks.step is None:
        raise TypeError("rows without steps cannot be matched by them.")
    return marks.step
