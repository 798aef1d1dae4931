"""The workers of a collector: started, given work, asked for batches, replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from rl_collect.background_loop import TimeLimit
from rl_collect.multi.batch_transport import NUM_SLOTS, BatchMessage, SharedBatchSlots
from rl_collect.multi.carrier import Carrier
from rl_collect.multi.relayed_warnings import WorkerWarnings
from rl_collect.weights.shared_weights import SharedWeights
from rl_envs.env.seeds import next_seed
from rl_slabs import PackedRows
from rl_workers import WorkerDied

MAX_DEATHS = 3
"""How often in a row a worker is replaced that delivers nothing."""


class WorkerGroup:
    """Workers that play batches, each with slots in shared memory where it can have them."""

    # Actions are drawn from torch's generator, which every worker seeds differently: from numbers
    # that follow the generator here, so that torch.manual_seed makes them reproducible.

    def __init__(
        self,
        pool: Carrier,
        seeds: list[int],
        *,
        restarts_workers: bool = False,
        min_workers: int | None = None,
        shares: bool = True,
        sink: Callable[[int, TensorDictBase], None] | None = None,
    ) -> None:
        self.restarts_workers, self._shares = restarts_workers, shares
        self._sink = sink  # where the batches of each worker go, if they have one place each
        self.pool = pool
        count = len(pool)
        self.least = count if min_workers is None else min_workers
        self.stats: list[dict[str, Any]] = [{} for _ in range(count)]
        self.frames = self.restarts = 0
        self.warnings = WorkerWarnings()
        self._slots: list[SharedBatchSlots | None] = [None] * count
        self._begun, self._deaths = [0] * count, [0] * count
        self._starting: set[int] = set()  # they have not been told yet what all are told
        self._lost: set[int] = set()  # they are not replaced any more
        self._shared: tuple[SharedWeights | None, Any] = (None, None)
        self._seeds = seeds  # the last one that was used, which workers read when they start
        self._seed: tuple[int, bool] | None = None  # of the next environment
        try:
            self._start()
        except BaseException:
            self.pool.close()
            raise

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def newest(self) -> int:
        """The number of the newest batch that was begun."""
        return max(self._begun)

    @property
    def present(self) -> list[int]:
        """The workers that take part now."""
        away = self._starting | self._lost
        return [index for index in range(len(self)) if index not in away]

    @property
    def missing(self) -> list[int]:
        """The workers that do not: not started yet, or gone for good."""
        return sorted(self._starting | self._lost)

    @property
    def known_stats(self) -> list[dict[str, Any]]:
        """The stats of all workers that have ever started."""
        return [one for one in self.stats if one]

    def require_all(self) -> None:
        """Raise for workers that take no part."""
        if missing := self.missing:
            msg = (
                f"workers {missing} of {len(self)} are missing, and a state is of all: make a "
                "collector of as many as there are, or wait until they have started."
            )
            raise RuntimeError(msg)

    def is_busy(self, index: int) -> bool:
        """Whether a worker has a batch under way, or starts."""
        return index not in self._lost and self.pool.pending[index] is not None

    def attach(self, shared_weights: SharedWeights | None, stop: Any) -> None:
        """Show all workers where new weights are, and when to stop early."""
        self._shared = shared_weights, stop
        self.pool.offer_weights(shared_weights)
        for index in self.present:
            self.call(index, *self._attachment(index))

    def begin(self, index: int) -> None:
        """Let a worker play its next batch; one that has died is replaced."""
        self._begun[index] += 1
        order = ("play", self._begun[index] % NUM_SLOTS, self._begun[index])
        try:
            self.pool.begin(index, *order)
        except WorkerDied as died:
            self._replace(index, died)
            if index in self.present:
                self.pool.begin(index, *order)

    def take(
        self,
        index: int,
        go_on: Callable[[], bool] = lambda: False,
        *,
        timeout_s: float | None = None,
    ) -> tuple[BatchMessage | None, TensorDictBase | None]:
        """Wait for what a worker has played; nothing if it was replaced or has started."""
        if index in self._starting:
            self._finish_start(index, timeout_s=timeout_s)
            return None, None
        slot = self._begun[index] % NUM_SLOTS
        try:
            message: BatchMessage = self.pool.receive(index, timeout_s=timeout_s)
        except WorkerDied as died:
            self._replace(index, died)
            return None, None
        self.stats[index], self._deaths[index] = message.stats, 0
        self.frames += message.frames
        self.warnings.add(message.warnings)
        slots, batch = self._slots[index], message.batch
        if isinstance(batch, TensorDictBase) and self._shares and self.pool.shares_memory(index):
            self._allocate_slots(index, batch)
        if go_on():
            self.begin(index)
        if isinstance(batch, PackedRows):
            batch = batch.unpack(copy=not batch.block.flags.writeable)  # Ray's may be others' too
        elif batch is None and message.shape and slots is not None:
            batch = slots.read(slot, message.shape)
        if batch is not message.batch and message.dimensions is not None:
            batch = message.dimensions.give(batch)
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
            if index in self._lost:
                raise
            while index in self._starting:
                self._finish_start(index)
            return self.pool.call(index, name, *args)

    def call_all(self, name: str) -> list[Any]:
        """Call a method of all workers that take part, none of which is busy."""
        return [self.call(index, name) for index in self.present]

    def refresh(self) -> None:
        """Ask all workers, none of which is busy, how far they are."""
        for index in self.present:
            self.stats[index] = self.call(index, "stats")

    def set_seed(self, seed: int, static_seed: bool) -> int:
        """Seed all workers, each from the one before, actions included."""
        for index in self.present:
            seed = self.call(index, "set_seed", seed, static_seed)
        self._seed = seed, static_seed
        return seed

    def weights(self) -> Any:
        """The weights of the policy that a worker has made, as all have."""
        return self.call(self.present[0], "weights")

    def load_states(self, states: list[Any]) -> None:
        """Restore what each worker's collector had saved."""
        for index, one in enumerate(states):
            self.call(index, "load_state_dict", one)

    def take_at_last(
        self, index: int, time_limit: TimeLimit
    ) -> tuple[BatchMessage | None, TensorDictBase | None]:
        """Take the batch under way of a worker that gets no other one."""
        if index in self._starting:
            return None, None
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
            self.pool.describe(index),
        )

    def close(self, time_limit: TimeLimit | None = None) -> None:
        """End the workers, and let go of the shared memory."""
        try:
            self.pool.close(timeout_s=60.0 if time_limit is None else max(time_limit.left_s, 0.1))
        finally:
            for slots in self._slots:
                if slots is not None:
                    slots.close()

    def _start(self) -> None:
        """Tell all workers what all are told; those of actors may still be starting."""
        for index in range(len(self)):
            if self.pool.pending[index] is None:
                self._initialise(index)
            else:
                self._starting.add(index)
        while len(self.present) < self.least:
            for index in self.pool.wait():
                self._finish_start(index)

    def _finish_start(self, index: int, *, timeout_s: float | None = None) -> None:
        try:
            self.pool.receive(index, timeout_s=timeout_s)
            self._starting.discard(index)
            self._initialise(index)
        except WorkerDied as died:
            self._starting.discard(index)
            self._replace(index, died)

    def _attachment(self, index: int) -> tuple[Any, ...]:
        """The call by which a worker learns where batches go and weights come from."""
        if self.pool.shares_memory(index):
            return ("attach", self._slots[index], *self._shared)
        return ("attach_offers",)

    def _initialise(self, index: int) -> None:
        """Tell a new worker what all are told; raises `WorkerDied`."""
        self._seeds[0] = next_seed(self._seeds[0])
        self.pool.call(index, "seed_actions", self._seeds[0])
        self.pool.call(index, *self._attachment(index))
        if self._seed is not None:
            seed, is_static = self._seed
            self._seed = self.pool.call(index, "set_seed", seed, is_static), is_static
        self.stats[index] = self.pool.call(index, "stats")

    def _replace(self, index: int, died: WorkerDied) -> None:
        """Start another worker; raises where that is not wanted, and too few are left."""
        while True:
            self._deaths[index] += 1
            if not self.restarts_workers or self._deaths[index] > MAX_DEATHS:
                if len(self) - len(self._lost) <= self.least:
                    raise died
                self._lost.add(index)
                break
            self.restarts += 1
            try:
                self.pool.restart(index)
                if self.pool.pending[index] is None:
                    self._initialise(index)
                else:
                    self._starting.add(index)
                break
            except WorkerDied as again:
                died = again

    def _allocate_slots(self, index: int, batch: TensorDictBase) -> None:
        """Shared memory for batches like one that came by message."""
        try:
            made = SharedBatchSlots.like(batch)
        except TypeError:
            return  # of entries that have no one size: they continue coming by message
        old, self._slots[index] = self._slots[index], made
        self.call(index, *self._attachment(index))
        if old is not None:
            old.close()
