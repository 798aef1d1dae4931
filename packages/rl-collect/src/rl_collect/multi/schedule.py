"""In what order workers deliver: all together, or one by one while the others continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from tensordict import TensorDictBase

from rl_collect.multi.worker_group import WorkerGroup
from rl_slabs import RowSchema, Slab

Batches = list[TensorDictBase]


class Schedule(Protocol):
    """The order in which batches of workers are taken."""

    # shared memory that tells workers to end their batch early; None if nothing does
    stop: Slab | None

    @property
    def has_part(self) -> bool:
        """Whether something was taken for a turn that is not complete."""

    def next(self) -> Batches:
        """Wait for what is returned next; fewer batches where some went to a buffer."""

    def drain(self) -> Batches:
        """Wait until no worker is busy; what is ready to be returned then."""

    def take_remaining(self) -> Batches:
        """Give up what was taken for a turn that is not complete."""


class SyncSchedule:
    """All workers begin a batch, and it is returned when all have delivered theirs."""

    def __init__(self, workers: WorkerGroup, threshold: float | None = None) -> None:
        self._workers, self._threshold = workers, threshold
        self._done: dict[int, TensorDictBase | None] = {}  # of workers that have delivered
        self.stop: Slab | None = None
        if threshold is not None:
            self.stop = Slab.shared(RowSchema({"stop": (torch.int64, ())}), 1)

    @property
    def has_part(self) -> bool:
        """Whether some workers have delivered while others have not."""
        return bool(self._done)

    def next(self) -> Batches:
        """A batch of every worker; one that failed in between is asked again."""
        workers = self._workers
        while not self._is_complete():
            for index in workers.present:
                if index not in self._done and not workers.is_busy(index):
                    workers.begin(index)
            for index in workers.pool.wait():
                self._take(index)
            if self._threshold is not None and len(self._done) >= self._threshold * len(workers):
                assert self.stop is not None
                self.stop.columns()["stop"][0] = workers.newest
        found = [self._done.pop(index) for index in sorted(self._done)]
        return [batch for batch in found if batch is not None]

    def _is_complete(self) -> bool:
        """Whether all that take part have delivered, and they are enough."""
        workers, done = self._workers, self._done
        return len(done) >= workers.least and all(index in done for index in workers.present)

    def drain(self) -> Batches:
        """Wait until no worker is busy; nothing is returned before all have delivered."""
        for index in range(len(self._workers)):
            while self._workers.is_busy(index):
                self._take(index)
        return []

    def take_remaining(self) -> Batches:
        """Give up what some workers have delivered while others have not."""
        found, self._done = self._done.values(), {}
        return [batch for batch in found if batch is not None]

    def _take(self, index: int) -> None:
        message, batch = self._workers.take(index)
        if message is not None:
            self._done[index] = batch


class AsyncSchedule:
    """Every batch is returned as it comes, while its worker plays the next one."""

    stop: Slab | None = None
    has_part = False

    def __init__(self, workers: WorkerGroup, sizes: Sequence[int], total_frames: int) -> None:
        self._workers, self._sizes, self._total = workers, sizes, total_frames
        self._turn = 0

    def next(self) -> Batches:
        """The batch of the next worker that is ready, in turn; all continue."""
        workers, count = self._workers, len(self._workers)
        while True:
            for index in workers.present:
                if not workers.is_busy(index) and self._may_begin(index):
                    workers.begin(index)
            index = min(workers.pool.wait(), key=lambda one: (one - self._turn) % count)
            self._turn = (index + 1) % count
            message, batch = workers.take(index, self._asked(index))
            if message is not None:
                return [] if batch is None else [batch]

    def drain(self) -> Batches:
        """Wait until no worker is busy, and take all batches."""
        found: Batches = []
        for index in range(len(self._workers)):
            while self._workers.is_busy(index):
                batch = self._workers.take(index)[1]
                found += [] if batch is None else [batch]
        return found

    def take_remaining(self) -> Batches:
        """Nothing: what is taken is returned."""
        return []

    def _asked(self, index: int) -> Callable[[], bool]:
        return lambda: self._may_begin(index)

    def _may_begin(self, index: int) -> bool:
        """Whether frames are left that no other worker plays yet."""
        playing = [
            size
            for other, size in enumerate(self._sizes)
            if other != index and self._workers.is_busy(other)
        ]
        return self._total == -1 or self._workers.frames + sum(playing) < self._total
