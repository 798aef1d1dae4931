"""The worker processes of a collector: started, given work, asked for batches, restarted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase

from rl_collect.background_loop import TimeLimit
from rl_collect.multi.batch_transport import NUM_SLOTS, BatchMessage, SharedBatchSlots
from rl_collect.weights.shared_weights import SharedWeights
from rl_envs.env.seeds import next_seed
from rl_workers import WorkerDied, WorkerPool

MAX_DEATHS = 3
"""How often in a row a worker is replaced that delivers nothing."""


class WorkerGroup:
    """Processes that play batches, each with slots in shared memory."""

    # Actions are drawn from torch's generator, which every worker seeds differently: from numbers
    # that follow the generator here, so that torch.manual_seed makes them reproducible.

    def __init__(
        self,
        make: Sequence[Callable[[], Any]],
        start_method: Literal["fork", "spawn", "forkserver"] | None = None,
        *,
        timeout_s: float = 600.0,
        restarts_workers: bool = False,
        shares: bool = True,
        sink: Callable[[int, TensorDictBase], None] | None = None,
    ) -> None:
        self.restarts_workers, self._shares = restarts_workers, shares
        self._sink = sink  # where the batches of each worker go, if they have one place each
        self.pool = WorkerPool(
            make,
            start_method=start_method,
            preload=["rl_collect"],
            timeout_s=timeout_s,
            name="collector worker",
        )
        self.stats: list[dict[str, Any]] = [{} for _ in make]
        self.frames = self.restarts = 0
        self._slots: list[SharedBatchSlots | None] = [None] * len(make)
        self._begun, self._deaths = [0] * len(make), [0] * len(make)
        self._shared: tuple[SharedWeights | None, Any] = (None, None)
        self._actions_seed = int(torch.randint(2**31, ()))
        self._seed: tuple[int, bool] | None = None  # of the next environment
        try:
            for index in range(len(make)):
                self._initialise(index)
        except BaseException:
            self.pool.close()
            raise

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def newest(self) -> int:
        """The number of the newest batch that was begun."""
        return max(self._begun)

    def is_busy(self, index: int) -> bool:
        """Whether a worker has a batch under way."""
        return self.pool.pending[index] is not None

    def attach(self, shared_weights: SharedWeights | None, stop: Any) -> None:
        """Show all workers where new weights are, and when to stop early."""
        self._shared = shared_weights, stop
        for index in range(len(self)):
            self.call(index, "attach", self._slots[index], *self._shared)

    def begin(self, index: int) -> None:
        """Let a worker play its next batch."""
        self._begun[index] += 1
        order = ("play", self._begun[index] % NUM_SLOTS, self._begun[index])
        try:
            self.pool.begin(index, *order)
        except WorkerDied as died:
            self._replace(index, died)
            self.pool.begin(index, *order)

    def take(
        self,
        index: int,
        go_on: Callable[[], bool] = lambda: False,
        *,
        timeout_s: float | None = None,
    ) -> tuple[BatchMessage | None, TensorDictBase | None]:
        """Wait for what a worker has played."""
        slot = self._begun[index] % NUM_SLOTS
        try:
            message: BatchMessage = self.pool.receive(index, timeout_s=timeout_s)
        except WorkerDied as died:
            self._replace(index, died)
            return None, None
        self.stats[index], self._deaths[index] = message.stats, 0
        self.frames += message.frames
        slots, batch = self._slots[index], message.batch
        if batch is not None and self._shares:
            self._allocate_slots(index, batch)
        if go_on():
            self.begin(index)
        if batch is None and message.shape and slots is not None:
            batch = slots.read(slot, message.shape)
        if self._sink is not None and batch is not None:
            self._sink(index, batch)
            batch = None
        return message, batch

    def call(self, index: int, name: str, *args: Any) -> Any:
        """Call a method of a worker that is not busy."""
        try:
            return self.pool.call(index, name, *args)
        except WorkerDied as died:
            self._replace(index, died)
            return self.pool.call(index, name, *args)

    def call_all(self, name: str) -> list[Any]:
        """Call a method of all workers, none of which is busy."""
        return [self.call(index, name) for index in range(len(self))]

    def refresh(self) -> None:
        """Ask all workers, none of which is busy, how far they are."""
        self.stats = self.call_all("stats")

    def set_seed(self, seed: int, static_seed: bool) -> int:
        """Seed all workers, each from the one before, actions included."""
        for index in range(len(self)):
            seed = self.call(index, "set_seed", seed, static_seed)
        self._seed = seed, static_seed
        return seed

    def take_at_last(
        self, index: int, time_limit: TimeLimit
    ) -> tuple[BatchMessage | None, TensorDictBase | None]:
        """Take the batch under way of a worker that gets no other one."""
        self._wait(index, time_limit)
        return self.take(index, timeout_s=time_limit.left_s)

    def finish(self, index: int, time_limit: TimeLimit) -> Any:
        """Shut down the collector of a worker that is not busy; what had not ended there."""
        self.pool.begin(index, "finish")
        self._wait(index, time_limit)
        return self.pool.receive(index, timeout_s=time_limit.left_s)

    def _wait(self, index: int, time_limit: TimeLimit) -> None:
        """Wait for a reply, or until no time is left."""
        time_limit.wait(
            lambda seconds: self.pool.has_reply(index, timeout_s=seconds),
            f"collector worker {index} (process {self.pool.pids[index]})",
        )

    def close(self, time_limit: TimeLimit | None = None) -> None:
        """End the workers, and let go of the shared memory."""
        try:
            self.pool.close(timeout_s=60.0 if time_limit is None else max(time_limit.left_s, 0.1))
        finally:
            for slots in self._slots:
                if slots is not None:
                    slots.close()

    def _initialise(self, index: int) -> None:
        """Tell a new worker what all are told."""
        self._actions_seed = next_seed(self._actions_seed)
        self.pool.call(index, "seed_actions", self._actions_seed)
        self.pool.call(index, "attach", self._slots[index], *self._shared)
        if self._seed is not None:
            seed, is_static = self._seed
            self._seed = self.pool.call(index, "set_seed", seed, is_static), is_static
        self.stats[index] = self.pool.call(index, "stats")

    def _replace(self, index: int, died: WorkerDied) -> None:
        while True:
            self._deaths[index] += 1
            if not self.restarts_workers or self._deaths[index] > MAX_DEATHS:
                raise died
            self.restarts += 1
            try:
                self.pool.restart(index)
                return self._initialise(index)
            except WorkerDied as again:
                died = again

    def _allocate_slots(self, index: int, batch: TensorDictBase) -> None:
        """Shared memory for batches like one that came by message."""
        try:
            made = SharedBatchSlots.like(batch)
        except TypeError:
            return  # of entries that have no one size: they continue coming by message
        old, self._slots[index] = self._slots[index], made
        self.call(index, "attach", made, *self._shared)
        if old is not None:
            old.close()
