from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rl_replay.priorities.memory import PriorityMemory
from rl_replay.priorities.row_priorities import RowPriorities
from rl_replay.storages.private_session import PrivateRing

ALPHA, EPS = 0.7, 1e-3


def priorities(room, **options):
    return RowPriorities(PriorityMemory(room, **options))


class PriorityMachine(RuleBasedStateMachine):
    """Rows that are written and given priorities, against a dictionary of them."""

    @initialize(capacity=st.integers(1, 70))
    def begin(self, capacity):
        self.ring = PrivateRing(capacity)
        self.rows = priorities(capacity, alpha=ALPHA, eps=EPS)
        self.known: dict[int, float] = {}
        self.highest, self.stale, self.alpha = 1.0, 0, ALPHA

    @property
    def live(self):
        window = self.ring.window()
        return range(window.first[0], window.first[0] + window.counts[0])

    def catch_up(self):
        """New rows have the highest priority when somebody looks."""
        self.rows.catch_up(self.ring)
        self.known = {row: self.known.get(row, self.highest) for row in self.live}

    @rule(data=st.data())
    def write(self, data):
        count = data.draw(st.integers(1, self.ring.capacity))
        self.ring.reserve(count)
        self.ring.publish(count)

    @rule()
    def empty(self):
        self.ring.empty()

    @precondition(lambda self: self.ring.published)
    @rule(data=st.data())
    def update(self, data):
        written = st.integers(max(0, self.ring.published - 150), self.ring.published - 1)
        row_ids = data.draw(st.lists(written, min_size=1, max_size=9))
        priorities = data.draw(
            st.lists(st.floats(0, 9, width=32), min_size=len(row_ids), max_size=len(row_ids))
        )
        self.catch_up()
        self.rows.update(self.ring, np.array(row_ids), np.float32(priorities))
        for row, priority in zip(row_ids, priorities, strict=True):
            if row in self.known:
                self.known[row] = priority
                self.highest = max(self.highest, priority)
            else:
                self.stale += 1
        assert self.rows.stale == self.stale

    @rule(alpha=st.sampled_from([0.0, 0.5, 1.0]))
    def move_alpha(self, alpha):
        self.rows.set_alpha(alpha)
        self.alpha = alpha

    @rule()
    def reload(self):
        self.catch_up()
        rows = priorities(self.ring.capacity, alpha=self.alpha, eps=EPS)
        rows.load(self.rows.save())
        rows.stale = self.stale
        self.rows = rows

    @precondition(lambda self: len(self.live))
    @rule(seed=st.integers(0, 99))
    def draw(self, seed):
        self.catch_up()
        rng = np.random.default_rng(seed)
        row_ids, probabilities = self.rows.draw(self.ring, 20, rng.random, strata=False)
        weights = {row: (p + EPS) ** self.alpha for row, p in self.known.items()}
        total = sum(weights.values())
        wanted = [weights[row] / total for row in row_ids.tolist()]
        np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)
        least = min(weights.values()) / total
        assert self.rows.lowest_probability(self.ring) == pytest.approx(least, rel=1e-5)


PriorityMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestPriorityMachine = PriorityMachine.TestCase


def test_rows_without_priority_are_refused():
    ring = PrivateRing(5)
    rows = priorities(5, alpha=1.0, eps=0.0)
    ring.reserve(3)
    ring.publish(3)
    rows.catch_up(ring)
    rows.update(ring, np.arange(3), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="none of 3 rows has a priority above 0"):
        rows.draw(ring, 1, np.random.default_rng(0).random, strata=False)


def test_highest_priority_can_be_that_of_stored_rows():
    ring = PrivateRing(3)
    rows = priorities(3, alpha=1.0, eps=0.0)
    for priority in (4.0, 0.25):
        ring.reserve(3)
        ring.publish(3)
        rows.catch_up(ring)
        rows.update(ring, ring.published - 1 - np.arange(3), np.full(3, priority, np.float32))
    assert rows.memory.highest == 4
    rows.forget_highest()
    assert rows.memory.highest == 0.25


def test_first_priorities_are_those_that_rows_were_written_with():
    ring = PrivateRing(4)
    rows = priorities(4, alpha=1.0, eps=0.0)
    ring.reserve(3)
    ring.publish(3)
    rows.catch_up(
        ring, read_first=lambda begin, end: np.arange(begin + 2, end + 2, dtype=np.float32)
    )
    assert rows.save().priorities.tolist() == [2, 3, 4]
    assert rows.tree.weights[:3].tolist() == [2, 3, 4]
    assert rows.memory.highest == 4


def shared_rows(count):
    ring = PrivateRing(count)
    rows = priorities(count, alpha=1.0, eps=0.0, shared=True)
    ring.reserve(count)
    ring.publish(count)
    rows.catch_up(ring)
    return ring, rows


def test_sums_that_a_killed_process_left_out_are_computed_by_later_draws():
    ring, rows = shared_rows(600)
    rows.tree.sums[:] *= 3.0
    rng = np.random.default_rng(0)
    for _ in range(3):  # 256 leaves each
        rows.draw(ring, 4, rng.random, strata=False)
    assert rows.tree.total == 600


def test_words_of_rows_that_are_gone_are_written_anew_when_they_are_drawn():
    ring, rows = shared_rows(20)
    rows.tree.put(7, np.array([999], np.uint32), np.array([1e6], np.float32))
    rng = np.random.default_rng(0)
    row_ids, probabilities = rows.draw(ring, 50, rng.random, strata=False)
    assert set(row_ids.tolist()) <= set(range(20))
    assert rows.tree.ids[7] == 8
    assert rows.tree.total == 20
    np.testing.assert_allclose(probabilities, 1 / 20)


def ring_of(capacity, published):
    ring = PrivateRing(capacity)
    for _ in range(published):
        ring.reserve(1)
        ring.publish(1)
    return ring


def test_a_process_that_is_behind_leaves_words_of_younger_rows():
    fast = priorities(4, alpha=1.0, eps=0.0)
    slow = RowPriorities(fast.memory)
    slow.catch_up(ring_of(4, 1))
    fast.catch_up(ring_of(4, 6))  # rows 4 and 5 are in the places of 0 and 1
    fast.update(ring_of(4, 6), np.array([4]), np.float32([9.0]))
    slow.catch_up(ring_of(4, 4))
    assert fast.tree.ids[:4].tolist() == [5, 6, 3, 4]
    assert fast.tree.weights[:4].tolist() == [9, 1, 1, 1]


def test_updates_of_rows_that_stand_count_where_an_old_word_is_in_their_place():
    ring, rows = ring_of(4, 6), priorities(4, alpha=1.0, eps=0.0)
    rows.catch_up(ring)
    rows.tree.put(0, np.array([1], np.uint32), np.array([7], np.float32))  # as row 0 was
    rows.update(ring, np.array([4, 0, 2]), np.float32([3.0, 5.0, 2.0]))
    assert rows.stale == 1
    assert rows.tree.ids[:4].tolist() == [5, 6, 3, 4]
    assert rows.tree.weights[:4].tolist() == [3, 1, 2, 1]


def test_words_that_were_lost_are_found_by_later_draws():
    ring, rows = shared_rows(600)
    rows.tree.put(300, np.zeros(1, np.uint32), np.zeros(1, np.float32))
    rng = np.random.default_rng(0)
    for _ in range(3):  # 256 leaves each
        rows.draw(ring, 4, rng.random, strata=False)
    assert rows.tree.ids[300] == 301
    assert rows.tree.total == 600
