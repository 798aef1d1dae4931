"""A state machine of hypothesis: lossless rows against a list that keeps both observations."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tensordict import TensorDict

from rl_replay.testing.lossless_ring import LosslessRing, Producer, observe, under_next

LAYOUTS: list[dict[str, bool]] = [
    {},
    {"by_tensors": True},
    {"small": True},
    {"small": True, "full": True},
    {"small": True, "full": True, "separate": True},
    {"small": True, "full": True, "separate": True, "by_tensors": True},
]


"""Options of `LosslessRing`."""


class LosslessRowsMachine(RuleBasedStateMachine):
    """Any order of what can be done to a ring of lossless rows, against a list of whole rows.

    After every call each row comes back with its own next observation, bit for bit. Derive from it
    and override `make` for rows of your own; `TestCase` of the derived class is what pytest runs.

    Attributes:
        ring: The rows and their model.
        producers: What writes to them.

    Raises:
        AssertionError: A row differs from what was written, or a slot has two owners.

    Example:
        >>> class Small(LosslessRowsMachine):
        ...     def make(self, capacity, seed, **kind):
        ...         return LosslessRing(capacity, seed, small=True)
        >>> Small.TestCase.__name__
        'Small.TestCase'
    """

    def make(self, capacity: int, seed: int, **kind: bool) -> LosslessRing:
        """An empty ring of one of several layouts."""
        return LosslessRing(capacity, seed, **kind)

    @initialize(
        seed=st.integers(0, 1 << 30),
        capacity=st.integers(1, 23),
        producers=st.integers(1, 4),
        kind=st.sampled_from(LAYOUTS),
    )
    def begin(self, seed: int, capacity: int, producers: int, kind: dict[str, bool]) -> None:
        """Begins with an empty ring."""
        self.ring = self.make(capacity, seed, **kind)
        self.producers = [Producer(self.ring) for _ in range(producers)]

    @rule(each=st.integers(1, 9), interleaved=st.booleans(), missing=st.booleans())
    def extend(self, each: int, interleaved: bool, missing: bool) -> None:
        """Writes rows of all producers, one after another or in turns."""
        pieces = [one.rows(each) for one in self.producers]
        if interleaved:
            rows = [row for together in zip(*pieces, strict=True) for row in together]
        else:
            rows = [row for piece in pieces for row in piece]
        # rows that do not fit are lost, as from a producer without a reader
        cells = self.ring.cells(rows[: self.ring.capacity])
        self.ring.extend(cells, drop_next=missing and each % 3 == 0)

    @rule(count=st.integers(1, 5), which=st.sampled_from(["roots", "nexts", "both", "one root"]))
    def update(self, count: int, which: str) -> None:
        """Updates observations in place."""
        alive = sorted(self.ring.model)
        if not alive:
            return
        count = min(count, len(alive))
        numbers = self.ring.generator.choice(alive, count, replace=False).tolist()
        new, cells = observe(count, self.ring.generator), TensorDict({}, batch_size=[count])
        one = list(self.ring.observations)[-2]
        for key in self.ring.observations:
            if which in ("roots", "both") or (which == "one root" and key == one):
                cells[key] = new[key]
            if which in ("nexts", "both"):
                cells[under_next(key)] = new[key]
        self.ring.update(numbers, cells)

    @rule()
    def write_back(self) -> None:
        """Writes rows as they were read."""
        numbers = self.ring.numbers()
        if len(numbers) and not self.ring.missing:
            cells = self.ring.rows.read(numbers % self.ring.capacity)
            self.ring.update(numbers.tolist(), cells.select(*self.ring.observations, "next"))

    @rule()
    def clear(self) -> None:
        """Drops every row."""
        self.ring.clear()

    @invariant()
    def every_row_comes_back(self) -> None:
        """Each row is read as it was written."""
        self.ring.check()
