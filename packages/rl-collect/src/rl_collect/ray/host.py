"""What runs in an actor: a host that makes one object and answers calls to its methods."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_workers import Failure

Buffers = list[NDArray[np.uint8]]


class HostInfo(NamedTuple):
    """Where an actor runs."""

    pid: int
    node: str  # Ray's id of the machine


class Reply(NamedTuple):
    """What a call returned or raised, pickled; large arrays are apart, so that Ray copies none."""

    head: bytes
    buffers: Buffers

    @classmethod
    def of(cls, result: Any) -> Reply:
        """Pickle a result, or a `Failure`."""
        found: list[pickle.PickleBuffer] = []
        head = pickle.dumps(result, protocol=5, buffer_callback=found.append)
        return cls(head, [np.frombuffer(one.raw(), np.uint8) for one in found])

    def open(self) -> Any:
        """The result; its arrays are read-only views of the reply."""
        return pickle.loads(self.head, buffers=self.buffers)


class Host:
    """Holds the worker of a collector; made by Ray in an actor."""

    def __init__(self) -> None:
        self._target: Any = None

    def start(self, make: bytes, shared_on: str | None) -> Reply:
        """Make the object; `shared_on` is the node whose memory it must be able to attach to."""
        import ray

        def make_target() -> HostInfo:
            torch.set_num_threads(1)
            info = HostInfo(os.getpid(), ray.get_runtime_context().get_node_id())
            if shared_on not in (None, info.node):
                msg = (
                    f"this worker is on node {info.node}, and its replay_buffer is in the memory "
                    f"of node {shared_on}: give a RayReplayBuffer, or remote_configs that place "
                    "all workers on one node."
                )
                raise ValueError(msg)
            self._target = pickle.loads(make)()
            return info

        return _attempt(make_target)

    def call(self, request: bytes, version: int, weights: list[Any]) -> Reply:
        """Call a method; `weights` holds a reference to those of a version, if one is newer."""
        if weights:
            self._target.offer_weights(version, _fetcher(weights[0]))

        def call_target() -> Any:
            name, args = pickle.loads(request)
            return getattr(self._target, name)(*args)

        return _attempt(call_target)

    def close(self) -> Reply:
        """Close the object."""
        target, self._target = self._target, None
        return _attempt(lambda: None if target is None else target.close())


def _attempt(function: Callable[[], Any]) -> Reply:
    try:
        return Reply.of(function())
    except Exception as error:
        return Reply.of(Failure.of(error))


def _fetcher(reference: Any) -> Callable[[], Any]:
    def fetch() -> Any:
        import ray

        return ray.get(reference)

    return fetch
