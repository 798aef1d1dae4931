"""Which rows are written next, and which can be read: the ring of one process."""

from __future__ import annotations

from typing import Protocol

import torch

from rl_slabs import Span, Window


class Ring(Protocol):
    """What a storage needs from a ring; `PrivateRing` implements it for one process."""

    # A row's number is its count in the life of its lane and never used again; its position is.

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

    def floors(self) -> tuple[int, ...]:
        """For each lane the first row id since the last `empty` or `restore`."""
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
