"""What runs in the worker of a collector: a collector of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collect.collector import Collector
from rl_collect.multi.batch_transport import BatchMessage, Outbox, PackedSlots, SharedBatchSlots
from rl_collect.multi.relayed_warnings import WarningRecord, record_warnings
from rl_collect.weights.load import has_weights
from rl_collect.weights.offered_weights import OfferedWeights
from rl_collect.weights.shared_weights import SharedWeights
from rl_slabs import PackedRows
from rl_tensordict import Dimensions

BatchSlots = SharedBatchSlots | PackedSlots


class CollectorWorker:
    """Plays batches when it is asked to, with the newest weights."""

    def __init__(self, make: Callable[[], Collector]) -> None:
        self._collector = make()
        self._slots: BatchSlots | None = None
        self._shared_weights: SharedWeights | OfferedWeights | None = None
        self._offered = OfferedWeights()
        self._stop: Any = None

    def attach(
        self, slots: BatchSlots | None, shared_weights: SharedWeights | None, stop: Any
    ) -> None:
        """Take the memory that is shared with the caller."""
        self._slots = slots
        self._take_weights(shared_weights)
        self._stop = None if stop is None else (stop, stop.columns()["stop"])

    def attach_offers(self) -> None:
        """Pack batches, and take weights that are offered: no memory is shared with the caller."""
        self._slots = PackedSlots()
        self._take_weights(self._offered if self._offered.newest >= 0 else None)

    def offer_weights(self, version: int, fetch: Callable[[], PackedRows]) -> None:
        """Note the newest weights, to be fetched when they are needed."""
        self._offered.offer(version, fetch)

    def _take_weights(self, shared_weights: SharedWeights | OfferedWeights | None) -> None:
        self._shared_weights = shared_weights
        batches = self._collector.batches
        batches.refresh = None if shared_weights is None else self._refresh
        if shared_weights is not None:  # weights may have changed since this worker was made
            batches.policy_version = -1
            self._refresh()

    def _refresh(self) -> None:
        """Act with the newest weights."""
        assert self._shared_weights is not None
        batches = self._collector.batches
        batches.policy_version = self._shared_weights.load_into(
            self._collector.weights.acting, batches.policy_version
        )

    def play(self, slot: int, number: int = 0) -> BatchMessage:
        """Play a batch."""
        collector = self._collector
        batches = collector.batches
        if self._stop is not None:
            column = self._stop[1]
            batches.is_enough = lambda: bool(column[0] >= number)
        before = collector.frames
        with record_warnings() as records:
            batch: Any = collector.next()
        if isinstance(collector.options.replay_buffer, Outbox):
            batch = collector.options.replay_buffer.take()
        shape = () if batch is None else tuple(batch.shape)
        dimensions = None
        if batch is not None and self._slots is not None:
            dimensions = Dimensions.of(batch)
            batch = self._slots.put(slot, batch)
        return self.message(collector.frames - before, shape, dimensions, batch, records)

    def message(
        self,
        frames: int,
        shape: tuple[int, ...],
        dimensions: Dimensions | None,
        batch: TensorDictBase | PackedRows | None,
        records: list[WarningRecord],
    ) -> BatchMessage:
        """Say what was played."""
        return BatchMessage(frames, shape, dimensions, batch, self.stats(), records)

    def seed_actions(self, seed: int) -> None:
        """Seed what actions are drawn from."""
        torch.manual_seed(seed)

    def frames_of_batch(self) -> int:
        """How many steps a batch has."""
        return self._collector.frames_of_batch

    def weights(self) -> dict[str, Tensor]:
        """The weights of the policy; none if it has none."""
        acting = self._collector.weights.acting
        return dict(acting.state_dict()) if has_weights(acting) else {}

    def pop_trajectories(self) -> Any:
        """Take the trajectories that are held, unfinished ones as truncations; play none."""
        self._collector.batches.finish()
        return self._collector.pop_trajectories()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, and what actions are drawn from."""
        torch.manual_seed(seed)
        return self._collector.set_seed(seed, static_seed)

    def reset(self) -> None:
        """Begin new trajectories with the next batch."""
        self._collector.reset()

    def finish(self) -> Any:
        """Shut the collector down."""
        self._collector.shutdown()
        buffer = self._collector.options.replay_buffer
        return buffer.take() if isinstance(buffer, Outbox) else None

    def stats(self) -> dict[str, Any]:
        """Tell how far the collector is."""
        return self._collector.stats()

    def state_dict(self) -> dict[str, Any]:
        """Save the collector, with the newest weights."""
        if self._shared_weights is not None:  # they may have been published after the last batch
            self._refresh()
        return self._collector.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as a saved collector would have."""
        self._collector.load_state_dict(state)

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown()


def make_worker(
    make_env: Callable[..., Any],
    policy: Any,
    options: Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    index: int = 0,
) -> CollectorWorker:
    """Make the worker; called in its process."""
    given = dict(options)
    factory = given.pop("policy_factory")
    acting = policy if factory is None else factory()
    if seeds is not None:
        # a fork has the caller's generator: environments of all workers would draw the same
        torch.manual_seed(seeds[0] + index)
    return CollectorWorker(lambda: Collector(make_env, acting, **given))
