"""A state machine of hypothesis: links of rows against every pair of live rows."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tensordict import TensorDict, TensorDictBase

from rl_layout.testing import EndKind, trajectories
from rl_replay.testing.linked_ring import LinkedRing


class LinksMachine(RuleBasedStateMachine):
    """Any order of writes by several producers, with lost rows and rows out of order.

    After every call each live row is linked to the row that its markers say it continues. Derive
    from it to link rows in another way; `TestCase` of the derived class is what pytest runs.

    Attributes:
        ring: The rows and their links.

    Raises:
        AssertionError: A row is linked to another one than the markers say.

    Example:
        >>> class Mine(LinksMachine):
        ...     def make(self, capacity, example):
        ...         return LinkedRing(capacity, example)
        >>> Mine.TestCase.__name__
        'Mine.TestCase'
    """

    def make(self, capacity: int, example: TensorDictBase) -> LinkedRing:
        """The ring for rows like an example."""
        return LinkedRing(capacity, example)

    @initialize(capacity=st.integers(1, 40), lengths=st.lists(st.integers(1, 9), min_size=1))
    def begin(self, capacity: int, lengths: list[int]) -> None:
        """Begins with an empty ring, and the tapes of three producers."""
        kinds = [EndKind(i % 3) for i in range(len(lengths))]
        self._tapes = [
            trajectories(lengths * 4, kinds * 4, first_id=100 * producer) for producer in range(3)
        ]
        self.ring = self.make(capacity, self._tapes[0])
        self._places = [0, 0, 0]

    @rule(producer=st.integers(0, 2), count=st.integers(1, 12))
    def extend(self, producer: int, count: int) -> None:
        """Writes the next rows of one producer."""
        rows = self._next(producer, count)
        if len(rows):
            self.ring.extend(rows)

    @rule(producer=st.integers(0, 2), count=st.integers(1, 7))
    def lose(self, producer: int, count: int) -> None:
        """Passes over rows of one producer."""
        self._next(producer, count)

    @rule(count=st.integers(1, 30), data=st.data())
    def shuffle(self, count: int, data: st.DataObject) -> None:
        """Writes rows of all producers in any order."""
        rows = [row for producer in range(3) for row in self._next(producer, count).unbind(0)]
        rows = rows[: self.ring.ring.capacity]
        if rows:
            order = data.draw(st.permutations(range(len(rows))))
            self.ring.extend(TensorDict.stack([rows[i] for i in order]))

    @rule()
    def empty(self) -> None:
        """Drops every row."""
        self.ring.empty()

    @invariant()
    def links_are_what_the_markers_say(self) -> None:
        """Each live row is linked to the row that it continues."""
        assert self.ring.live_links() == self.ring.expected()

    def _next(self, producer: int, count: int) -> TensorDictBase:
        tape, place = self._tapes[producer], self._places[producer]
        rows: TensorDictBase = tape[place : place + min(count, self.ring.ring.capacity)]
        self._places[producer] += len(rows)
        return rows
