"""Prefetched batches: made by threads, in the order in which rows were drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Stamp = tuple[int, ...]
"""Counts of the changes that make batches stale."""


class DrawnFrom(NamedTuple):
    """The state from which rows were drawn, to draw them once more."""

    sampler: dict[str, Any]  # The state of the sampler
    rng: torch.Tensor | None  # That of the generator; None for torch's own, which others use too


@dataclass
class PrefetchedBatch:
    """A batch that a thread makes."""

    stamp: Stamp  # The counts of changes when its rows were drawn
    size: int  # How many rows were asked for
    row_ids: torch.Tensor  # Those that were chosen, int64 [N]
    before: DrawnFrom  # The state from which its rows were drawn
    rng_after: torch.Tensor | None  # The state of the generator after that
    future: Future[Any]  # The batch; None in place of it where it became stale


class Prefetch:
    """A queue of batches that threads gather and transform."""

    # Rows are chosen in the order in which batches are returned, so the sequence of samples is
    # that without prefetching.

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: deque[PrefetchedBatch] = deque()
        self._threads = ThreadPoolExecutor(depth, thread_name_prefix="rl-replay")

    def __len__(self) -> int:
        return len(self._queue)

    def submit(
        self,
        make: Callable[[], Any],
        *,
        stamp: Stamp,
        size: int,
        row_ids: torch.Tensor,
        before: DrawnFrom,
        rng_after: torch.Tensor | None,
    ) -> None:
        """Lets a thread make a batch."""
        future = self._threads.submit(make)
        self._queue.append(PrefetchedBatch(stamp, size, row_ids, before, rng_after, future))

    def take(
        self, stamp: Stamp, size: int, are_live: Callable[[torch.Tensor], bool]
    ) -> PrefetchedBatch | None:
        """The next batch, if it is neither stale nor of another size, and its rows are live."""
        if not self._queue:
            return None
        first = self._queue[0]
        if first.stamp == stamp and first.size == size and are_live(first.row_ids):
            return self._queue.popleft()
        return None

    def drop(self) -> tuple[DrawnFrom, torch.Tensor | None] | None:
        """Drops every batch; returns the states before the first and after the last was drawn."""
        if not self._queue:
            return None
        ahead = self._queue[0].before, self._queue[-1].rng_after
        for pending in self._queue:
            pending.future.cancel()
        self._queue.clear()
        return ahead
