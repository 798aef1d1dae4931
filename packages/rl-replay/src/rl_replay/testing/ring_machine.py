"""A state machine of hypothesis: a ring against the list of the rows that it holds."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_replay.storages.private_session import PrivateRing
from rl_replay.storages.ring import Ring


class RingMachine(RuleBasedStateMachine):
    """Any order of writes, refused writes and emptying, against a list of row ids and positions.

    Derive from it and name your ring; `TestCase` of the derived class is what pytest runs. The ring
    has one lane: the positions of its rows are row ids modulo the capacity.

    Attributes:
        ring: The ring.

    Raises:
        AssertionError: The ring holds other rows than the list.

    Example:
        >>> class Private(RingMachine):
        ...     def make_ring(self, capacity):
        ...         return PrivateRing(capacity)
        >>> Private.TestCase.__name__
        'Private.TestCase'
    """

    def make_ring(self, capacity: int) -> Ring:
        """Make an empty ring of so many rows: the one that is tested."""
        return PrivateRing(capacity)

    @initialize(capacity=st.integers(1, 7))
    def begin(self, capacity: int) -> None:
        """Begins with an empty ring."""
        self.ring: Ring = self.make_ring(capacity)
        self._live: list[tuple[int, int]] = []  # row id, position
        self._used: set[int] = set()
        self._written = 0

    @rule(data=st.data(), refused=st.booleans())
    def write(self, data: st.DataObject, refused: bool) -> None:
        """Reserves rows, and publishes them or gives them back."""
        count = data.draw(st.integers(1, self.ring.capacity))
        span = self.ring.reserve(count)
        if refused:
            self.ring.cancel()
            return
        self.ring.publish(count)
        rows = span.rows
        places = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        assert not self._used & set(span.numbers), "a row id was used twice"
        assert len(set(places)) == count, "two rows of one write have one position"
        self._used |= set(span.numbers)
        self._written += count
        self._live = [pair for pair in self._live if pair[1] not in places]
        self._live += list(zip(span.numbers, places, strict=True))

    @rule()
    def empty(self) -> None:
        """Drops every row; the next one is at position 0."""
        self.ring.empty()
        self._live = []
        assert self.ring.reserve(1).rows == slice(0, 1)
        self.ring.cancel()

    @invariant()
    def holds_what_was_written_last(self) -> None:
        """Window, positions and row ids are those of the list."""
        window = self.ring.window()
        numbers = window.numbers(torch.arange(len(window), device="cpu"))
        assert numbers.tolist() == [number for number, _ in self._live]
        assert self.ring.written == self._written
        assert self.ring.positions(numbers).tolist() == [place for _, place in self._live]
        at = {place: number for number, place in self._live}
        expected = [at.get(place, -1) for place in range(self.ring.capacity)]
        assert (
            self.ring.numbers_at(torch.arange(self.ring.capacity, device="cpu")).tolist()
            == expected
        )
        some = torch.arange(-2, max(self._used, default=0) + 3, device="cpu")
        standing = {number for number, _ in self._live}
        assert self.ring.is_live(some).tolist() == [n in standing for n in some.tolist()]
