"""A state machine of hypothesis: the index of trajectories against a list of rows for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_replay.testing.reference_index import ReferenceIndex
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Window


class TrajectoryIndexMachine(RuleBasedStateMachine):
    """Rows of several producers in any order, with lost links, copies, padding and wraps.

    After every call the index tells the trajectories that a list of rows for each one tells. Derive
    from it and override `make` for an index of your own; `TestCase` of the derived class is what
    pytest runs.

    Attributes:
        index: The index.
        reference: The lists.
        back: How far each row is from its predecessor, by position.

    Raises:
        AssertionError: The index tells other trajectories than the lists.

    Example:
        >>> class Mine(TrajectoryIndexMachine):
        ...     def make(self, capacity):
        ...         return TrajectoryIndex(capacity)
        >>> Mine.TestCase.__name__
        'Mine.TestCase'
    """

    def make(self, capacity: int) -> TrajectoryIndex:
        """An index for so many rows."""
        return TrajectoryIndex(capacity)

    @initialize(capacity=st.integers(1, 40), few=st.integers(0, 5))
    def begin(self, capacity: int, few: int) -> None:
        """Begins without rows."""
        self.index, self.reference = self.make(capacity), ReferenceIndex(capacity)
        self.index.writers[0].few_runs = few  # small batches are to go by either algorithm
        self.back = np.zeros(capacity, dtype=np.int32)
        self._open: list[int | None] = []  # rows without a successor
        self._newest: dict[int, int] = {}  # of each producer

    @rule(producers=st.lists(st.integers(0, 4), min_size=1, max_size=40))
    def extend_by_producers(self, producers: list[int]) -> None:
        """Each row continues the last one of its producer."""
        back, first = [], self.index.indexed()
        for number, producer in enumerate(producers[: self.index.capacity], first):
            back.append(self._follow(number, self._newest.get(producer)))
            self._newest[producer] = number
        self._write(back)

    @rule(length=st.integers(1, 40), stride=st.integers(1, 7), cut=st.integers(1, 12))
    def extend_at_a_stride(self, length: int, stride: int, cut: int) -> None:
        """Environments side by side, a trajectory ending every `cut` rows."""
        first, back = self.index.indexed(), []
        for place in range(min(length, self.index.capacity)):
            before = None if place % cut == cut - 1 else first + place - stride
            back.append(self._follow(first + place, before))
        self._write(back)

    @rule(length=st.integers(1, 40), stride=st.integers(1, 3))
    def extend_padded(self, length: int, stride: int) -> None:
        """Every third row is padding."""
        first, back = self.index.indexed(), []
        for place in range(min(length, self.index.capacity)):
            real = place % 3 < 2
            back.append(self._follow(first + place, first + place - stride) if real else -1)
        self._write(back)

    @rule(data=st.data())
    def extend_in_any_order(self, data: st.DataObject) -> None:
        """As where samples are stored again: a row continues any that is still to be continued."""
        first, back = self.index.indexed(), []
        for number in range(first, first + data.draw(st.integers(0, self.index.capacity))):
            before = data.draw(st.sampled_from([None, *self._open[-6:]]))
            back.append(self._follow(number, before))
        self._write(back)

    @rule(share=st.floats(0, 1.2))
    def drop(self, share: float) -> None:
        """Drops the oldest rows, and perhaps rows that are not there yet."""
        low = self.index.low()
        number = low + int(share * (self.index.indexed() - low))
        self.index.drop_before(number)
        self.reference.drop_before(number)

    @rule()
    def rebuild(self) -> None:
        """Makes the index anew from the links."""
        low, high = self.index.low(), self.index.indexed()
        self.index.clear()
        self.index.catch_up(self.back, Window((low,), (high - low,)))

    @rule(k=st.integers(1, 9))
    def look_around(self, k: int) -> None:
        """Looks for the rows k steps before and after each row."""
        rows = {
            row: (chain, place)
            for chain in self.reference.chains()
            for place, row in enumerate(chain)
        }
        numbers = np.arange(self.index.low() - 2, self.index.indexed() + 2)
        slots, offsets = self.index.locate(numbers)
        after, is_after = self.index.after(numbers, k)
        before, is_before = self.index.before(numbers, k)
        heads: dict[int, tuple[int, ...]] = {}
        for i, row in enumerate(numbers.tolist()):
            chain, place = rows.get(row, ((row,), 0))
            assert offsets[i] == (place if row in rows else -1)
            assert heads.setdefault(int(slots[i]), chain) == chain or row not in rows
            assert is_after[i] == (place + k < len(chain))
            assert is_before[i] == (place - k >= 0)
            assert after[i] == chain[min(place + k, len(chain) - 1)]
            assert before[i] == chain[max(place - k, 0)]

    @invariant()
    def tells_the_trajectories_row_by_row(self) -> None:
        """Trajectories, their lengths and all tables of the index are those of the lists."""
        index, reference = self.index, self.reference
        wanted = reference.chains()
        assert trajectories_in(index) == wanted
        assert (index.low(), index.indexed()) == (reference.low, reference.indexed)
        assert sorted(index.lengths()) == sorted(map(len, wanted))
        assert (len(index), index.steps) == (len(wanted), sum(map(len, wanted)))
        index.check(self.back)

    def _write(self, back: Sequence[int]) -> None:
        first = self.index.indexed()
        self.index.append(first, np.array(back, dtype=np.int32))
        self.reference.append(first, back)
        self.back[np.arange(first, first + len(back)) % self.index.capacity] = back

    def _follow(self, number: int, before: int | None) -> int:
        """The distance to a row that is still to be continued, else 0."""
        if before is None or before not in self._open:
            self._open.append(number)
            return 0
        self._open.remove(before)
        self._open.append(number)
        return number - before


def trajectories_in(index: TrajectoryIndex) -> list[tuple[int, ...]]:
    """The row ids of every trajectory of an index, sorted.

    Example:
        >>> index = TrajectoryIndex(9)
        >>> index.append(0, np.array([0, 1, 0], dtype=np.int32))
        >>> trajectories_in(index)
        [(0, 1), (2,)]
    """
    slots = index.slots()
    lengths = index.lengths_of(slots)
    numbers = index.rows(slots, np.zeros_like(slots), lengths)
    return sorted(tuple(rows.tolist()) for rows in np.split(numbers, lengths.cumsum())[:-1])
