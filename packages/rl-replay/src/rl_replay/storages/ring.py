"""Which rows are written next, and which can be read: the ring of one process."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rl_slabs import Span, Window


class Ring(Protocol):
    """What a storage needs from a ring; `PrivateRing` implements it for one process."""

    # A row's number is its count in the life of its lane and never used again; its position is
    # at its position, reused.

    capacity: int

    def begin_attempt(self) -> None:
        """Forgets the last span; see `attempt_stands`."""
        ...

    def attempt_stands(self) -> bool:
        """Whether this thread has reserved a span since `begin_attempt` and published it."""
        ...

    @property
    def span_limit(self) -> int:
        """The most rows of one write."""
        ...

    @property
    def written(self) -> int:
        """Rows ever published, those of all lanes together."""
        ...

    def reserve(self, count: int) -> Span:
        """Reserves the next rows, which cannot be read from then on."""
        ...

    def publish(self, count: int) -> None:
        """Makes the rows of the span readable."""
        ...

    def cancel(self) -> None:
        """Returns the span untouched: none of its rows was written."""
        ...

    def window(self) -> Window:
        """The row ids that can be read now."""
        ...

    def positions(self, numbers: torch.Tensor) -> torch.Tensor:
        """The positions of row ids, also of overwritten ones; int64 of the same shape."""
        ...

    def numbers_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The row id at each position, -1 if none can be read."""
        ...

    def is_live(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row ids are live, bool of the same shape."""
        ...

    def empty(self) -> None:
        """Drops every published row."""
        ...

    def restore(self, published: int, floor: int) -> None:
        """Restores the bounds of a ring."""
        ...


class PrivateRing:
    """A ring for the threads of one process, under their buffer's lock."""

    def __init__(self, capacity: int, *, after: int = -1) -> None:
        self.capacity = capacity
        self.published = self.floor = self._reserved = self._before = self._skipped = 0
        self._window: Window | None = None  # made again only where something changed
        self._attempt: range | None = None
        self._begin_after(after)

    def begin_attempt(self) -> None:
        """Forgets the last span; see `attempt_stands`."""
        self._attempt = None

    def attempt_stands(self) -> bool:
        """Whether a span was reserved since `begin_attempt` and published."""
        return self._attempt is not None and self._attempt.stop <= self.published

    @property
    def span_limit(self) -> int:
        """The most rows of one write."""
        return self.capacity

    @property
    def written(self) -> int:
        """Rows ever published."""
        return self.published - self._skipped

    @property
    def first(self) -> int:
        """The oldest readable row id."""
        return max(self._reserved - self.capacity, self.floor)

    def __len__(self) -> int:
        return max(self.published - self.first, 0)

    def reserve(self, count: int) -> Span:
        """Reserves the next rows, which cannot be read from then on."""
        first, self._before = self.published, self._reserved
        # never back: rows that an interrupted write half overwrote would look whole again
        self._reserved, self._window = max(self._reserved, first + count), None
        start = first % self.capacity
        numbers = self._attempt = range(first, first + count)
        if start + count <= self.capacity:
            return Span(slice(start, start + count), numbers)
        return Span(torch.arange(start, start + count) % self.capacity, numbers)

    def publish(self, count: int) -> None:
        """Makes the rows of the span readable."""
        # one line, so that no interrupt leaves one without the other
        self.published, self._window = self.published + count, None

    def cancel(self) -> None:
        """Returns the span untouched: none of its rows was written."""
        self._reserved, self._window = self._before, None

    def window(self) -> Window:
        """The row ids that can be read now."""
        window = self._window
        if window is None:
            first = self.first
            window = self._window = Window((first,), (max(self.published - first, 0),))
        return window

    def positions(self, numbers: torch.Tensor) -> torch.Tensor:
        """The positions of row ids, also of overwritten ones."""
        if self.published <= self.capacity:
            return numbers
        if numbers.is_cpu:
            return torch.from_numpy(np.asarray(numbers.numpy() % self.capacity))
        return numbers % self.capacity

    def numbers_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The row id at each position, -1 if none can be read."""

        def newest(found: NDArray[np.int64]) -> NDArray[np.int64]:
            last = self.published - 1
            numbers = last - (last - found) % self.capacity
            return np.where(numbers >= self.first, numbers, -1)

        return _through_numpy(positions, newest)

    def is_live(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row ids are live."""
        first, end = self.first, self.published
        return _through_numpy(numbers, lambda found: (found >= first) & (found < end))

    def empty(self) -> None:
        """Drops every published row; the next one is at position 0, with a new id."""
        self._begin_after(self.published - 1)

    def restore(self, published: int, floor: int) -> None:
        """Restores the bounds of a ring."""
        self._reserved, self._before = published, published
        self.floor, self.published, self._skipped, self._window = floor, published, 0, None

    def _begin_after(self, number: int) -> None:
        begin = -(-(number + 1) // self.capacity) * self.capacity
        skipped = self._skipped + begin - self.published
        self.floor, self._reserved, self._before, self.published, self._skipped, self._window = (
            *(begin,) * 4,
            skipped,
            None,
        )


def _through_numpy(numbers: torch.Tensor, compute: Any) -> torch.Tensor:
    # numpy takes a third of torch's time on a few hundred numbers
    if numbers.is_cpu:
        return torch.from_numpy(np.asarray(compute(numbers.numpy())))
    return torch.from_numpy(np.asarray(compute(numbers.cpu().numpy()))).to(numbers.device)
