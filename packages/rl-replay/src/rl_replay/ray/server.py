"""What runs in the actor: a buffer in shared memory, and its verbs for those who cannot attach."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.ray.parcel import unwrapped, wrapped


class StorageFacts(NamedTuple):
    """What is known of a storage without asking for it."""

    max_size: int
    ndim: int
    lanes: int | None  # as it was asked for


class BufferFacts(NamedTuple):
    """What is known of a buffer without asking for it."""

    node: str  # Ray's id of its machine
    storage: StorageFacts
    batch_size: int | None
    priority_key: Any  # where samplers read priorities from; None for a buffer without


class Counts(NamedTuple):
    """How many rows there are; it comes with every answer."""

    size: int
    written: int


class BufferServer:
    """Owns a buffer; made by Ray in an actor, whose calls run one after another."""

    def __init__(self) -> None:
        self._buffer: Any = None

    def start(self, make: bytes) -> BufferFacts:
        """Make the buffer."""
        import ray

        torch.set_num_threads(1)
        buffer: ReplayBuffer = pickle.loads(make)()
        self._buffer, storage = buffer, buffer.storage
        return BufferFacts(
            ray.get_runtime_context().get_node_id(),
            StorageFacts(storage.max_size, storage.ndim, getattr(storage, "lanes", None)),
            buffer.batch_size,
            getattr(buffer, "priority_key", None),
        )

    def attachment(self) -> bytes:
        """The buffer, for another process of this machine."""
        import ray

        pickled: bytes = ray.cloudpickle.dumps(self._buffer)
        return pickled

    def counts(self) -> Counts:
        """How many rows there are."""
        return Counts(len(self._buffer), self._buffer.write_count)

    def call(self, name: str, *args: Any) -> tuple[Any, Counts]:
        """Call a method of the buffer."""
        method: Callable[..., Any] = getattr(self._buffer, name)
        return wrapped(method(*(unwrapped(one) for one in args))), self.counts()

    def next_batch(self, size: int | None, with_info: bool) -> tuple[Any, Any, bool, Counts]:
        """Draw a batch; with what is known about it, and whether it ends an epoch."""
        asked = self._buffer.batch_size if size is None else size
        rows, info, is_last = self._buffer.batches.next_batch(asked)
        return wrapped(rows), info if with_info else None, is_last, self.counts()
