"""The ring of one process, against a list of the numbers that it holds."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_replay.storages.private_session import PrivateRing


class Model(RuleBasedStateMachine):
    """Any order of writes, refused writes and emptying."""

    @initialize(capacity=st.integers(1, 7))
    def make(self, capacity: int) -> None:
        self.ring, self.capacity = PrivateRing(capacity), capacity
        self.live: list[tuple[int, int]] = []  # number, position
        self.used: set[int] = set()
        self.written = 0

    @rule(data=st.data(), refused=st.booleans())
    def write(self, data: st.DataObject, refused: bool) -> None:
        count = data.draw(st.integers(1, self.capacity))
        span = self.ring.reserve(count)
        if refused:
            self.ring.cancel()
            return
        self.ring.publish(count)
        rows = span.rows
        places = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        assert not self.used & set(span.numbers)
        self.used |= set(span.numbers)
        self.written += count
        self.live = [pair for pair in self.live if pair[1] not in places]
        self.live += list(zip(span.numbers, places, strict=True))
        assert len(set(places)) == count

    @rule()
    def empty(self) -> None:
        self.ring.empty()
        self.live = []
        assert self.ring.reserve(1).rows == slice(0, 1)
        self.ring.cancel()

    @invariant()
    def holds_what_was_written_last(self) -> None:
        if not hasattr(self, "ring"):
            return
        window = self.ring.window()
        numbers = window.numbers(torch.arange(len(window)))
        assert numbers.tolist() == [number for number, _ in self.live]
        assert len(self.ring) == len(self.live)
        assert self.ring.written == self.written
        assert self.ring.positions(numbers).tolist() == [place for _, place in self.live]
        at = {place: number for number, place in self.live}
        expected = [at.get(place, -1) for place in range(self.capacity)]
        assert self.ring.numbers_at(torch.arange(self.capacity)).tolist() == expected
        some = torch.arange(-2, max(self.used, default=0) + 3)
        standing = {number for number, _ in self.live}
        assert self.ring.is_live(some).tolist() == [n in standing for n in some.tolist()]


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestModel = Model.TestCase


def test_a_ring_of_another_size_goes_on_with_new_numbers_at_position_0() -> None:
    ring = PrivateRing(4, after=9)
    assert ring.reserve(2) == (slice(0, 2), range(12, 14))
    assert ring.written == 0


def test_numbers_need_more_than_32_bits():
    ring = PrivateRing(5)
    first = 7 * 2**40
    ring.restore(published=first + 3, floor=first - 1)
    ring.reserve(4)
    ring.publish(4)
    numbers = torch.arange(first + 2, first + 7)
    assert ring.window().numbers(torch.arange(5)).tolist() == numbers.tolist()
    assert ring.is_live(torch.tensor([first + 1, first + 2, first + 6, first + 7, 6])).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert ring.numbers_at(ring.positions(numbers)).tolist() == numbers.tolist()
