"""Lanes against lists: what is published, reserved and emptied in any order."""

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tensordict import TensorDict

from rl_slabs import Lanes, RowSchema, Slab
from rl_slabs.lanes.lane import LANE_SHIFT, RESERVED, STARTED, THREAD

SMALL = RowSchema({"number": (torch.int64, ()), "frame": (torch.int64, (33,))})
CAPACITY, LANES = 5, 3


class LanesAgainstLists(RuleBasedStateMachine):
    """Writers that publish, give up, die and are replaced; the model is a list for each lane."""

    def __init__(self):
        super().__init__()
        self.slab = Slab.private(SMALL, CAPACITY * LANES, lanes=LANES)
        self.lanes = Lanes(self.slab)
        self.writers = [Lanes(self.slab).claim() for _ in range(LANES)]
        self.published = [0] * LANES
        self.reserved = [0] * LANES
        self.floor = [0] * LANES

    which = st.integers(0, LANES - 1)
    count = st.integers(1, CAPACITY)

    def rows(self, numbers):
        column = torch.tensor(list(numbers))
        frame = column[:, None].expand(-1, 33)
        return TensorDict({"number": column, "frame": frame}, batch_size=[len(column)])

    @rule(which=which, count=count, kept=st.integers(0, CAPACITY))
    def write_and_publish_some(self, which, count, kept):
        span = self.writers[which].reserve(count)
        self.slab.write(span.rows, self.rows(span.numbers))
        self.writers[which].publish(min(kept, count))
        self.reserved[which] = max(self.reserved[which], self.published[which] + count)
        self.published[which] += min(kept, count)

    @rule(which=which, count=count, written=st.integers(0, CAPACITY))
    def die_in_the_middle_of_a_span(self, which, count, written):
        span = self.writers[which].reserve(count)
        part = self.lanes.rows(torch.tensor(span.numbers[:written], dtype=torch.int64))
        self.slab.rows.columns()["number"][part.numpy()] = -1
        self.reserved[which] = max(self.reserved[which], self.published[which] + count)
        self.slab.words[which, STARTED] -= 1
        self.writers[which] = Lanes(self.slab).claim()
        assert self.writers[which].number == which

    @rule()
    def empty(self):
        self.lanes.empty()
        self.floor = list(self.published)

    @invariant()
    def exactly_the_rows_of_the_model_are_read(self):
        expected = [
            number + (which << LANE_SHIFT)
            for which in range(LANES)
            for number in range(
                max(self.reserved[which] - CAPACITY, self.floor[which], 0), self.published[which]
            )
        ]
        window = self.lanes.window()
        numbers = window.numbers(torch.arange(len(window)))
        assert numbers.tolist() == expected
        found = self.slab.read(self.lanes.rows(numbers))
        assert found["number"].tolist() == expected
        assert found["frame"].eq(numbers[:, None]).all()

    @invariant()
    def exactly_those_are_accepted(self):
        window = self.lanes.window()
        alive = set(window.numbers(torch.arange(len(window))).tolist())
        tried = torch.tensor(
            [
                number + (which << LANE_SHIFT)
                for which in range(LANES)
                for number in range(self.published[which] + 2)
            ]
        )
        accepted = tried[self.lanes.accept(tried)]
        assert set(accepted.tolist()) == alive

    @invariant()
    def what_is_reserved_never_falls_behind(self):
        words = self.slab.words
        assert words[:, RESERVED].tolist() == self.reserved
        assert (words[:, THREAD] > 0).all()


TestLanesAgainstLists = LanesAgainstLists.TestCase
