"""Batches made ahead of time, none of them older than the last change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Stamp = tuple[int, ...]
"""Counts of what makes batches stale."""


@dataclass
class Pending:
    """One batch that is being made.

    Attributes:
        stamp: The buffer's counts of changes when its rows were chosen.
        size: How many rows were asked for.
        before: The state of the sampler before it chose them.
        last: Whether they end an epoch.
        future: The batch; None in place of it where it became stale.
    """

    stamp: Stamp
    size: int
    before: dict[str, Any]
    last: bool
    future: Future[Any]


class Prefetch:
    """A queue of batches that threads gather and transform.

    Rows are chosen in the order in which batches are handed out, so the sequence of samples is
    that without prefetching.

    Args:
        depth: How many batches are made ahead, each by a thread of its own.

    Example:
        >>> queue = Prefetch(2)
        >>> queue.submit(lambda: "batch", stamp=(0,), size=3, before={}, last=False)
        >>> queue.take((0,), 3).future.result(), queue.take((0,), 3)
        ('batch', None)
        >>> queue.close()
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: deque[Pending] = deque()
        self._threads = ThreadPoolExecutor(depth, thread_name_prefix="rl-replay")

    def __len__(self) -> int:
        return len(self._queue)

    def submit(
        self,
        make: Callable[[], Any],
        *,
        stamp: Stamp,
        size: int,
        before: dict[str, Any],
        last: bool,
    ) -> None:
        """Let a thread make a batch.

        Args:
            make: Makes it; returns None where it became stale.
            stamp: See `Pending`.
            size: See `Pending`.
            before: See `Pending`.
            last: See `Pending`.
        """
        future = self._threads.submit(make)
        self._queue.append(Pending(stamp, size, before, last, future))

    def take(self, stamp: Stamp, size: int) -> Pending | None:
        """The batch that is next, if it is neither stale nor of another size.

        Args:
            stamp: The buffer's count of changes now.
            size: How many rows are asked for.
        """
        if self._queue and self._queue[0].stamp == stamp and self._queue[0].size == size:
            return self._queue.popleft()
        return None

    def drop(self) -> dict[str, Any] | None:
        """Forget every batch.

        Returns:
            The state of the sampler before it chose the first of them; None where there was none.
        """
        state = self._queue[0].before if self._queue else None
        for pending in self._queue:
            pending.future.cancel()
        self._queue.clear()
        return state

    def close(self) -> None:
        """Let the threads end."""
        self.drop()
        self._threads.shutdown(wait=True)
