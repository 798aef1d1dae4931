"""What runs where a worker is that is no child of the caller: it makes one object and calls it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rl_collect.multi.pickled import Pickled
from rl_slabs import PackedRows
from rl_workers import Failure


class HostInfo(NamedTuple):
    """Where a worker runs."""

    pid: int
    node: str  # the machine


class WorkerHost:
    """Holds the worker of a collector; whatever is raised is returned."""

    def __init__(self) -> None:
        self._target: Any = None

    def start(self, make: Callable[[], Any], node: str, shared_on: str | None) -> Pickled:
        """Make the object; `shared_on` is the node whose memory it must be able to attach to."""

        def make_target() -> HostInfo:
            torch.set_num_threads(1)
            if shared_on not in (None, node):
                msg = (
                    f"this worker is on node {node}, and its replay_buffer is in the memory of "
                    f"node {shared_on}: give a RayReplayBuffer, or place all workers on one node."
                )
                raise ValueError(msg)
            self._target = make()
            return HostInfo(os.getpid(), node)

        return _attempt(make_target)

    def offer_weights(self, version: int, fetch: Callable[[], PackedRows]) -> None:
        """Note where the newest weights are."""
        self._target.offer_weights(version, fetch)

    def call(self, read: Callable[[], tuple[str, tuple[Any, ...]]]) -> Pickled:
        """Call a method, whose name and arguments are read here."""

        def call_target() -> Any:
            name, args = read()
            return getattr(self._target, name)(*args)

        return _attempt(call_target)

    def close(self) -> Pickled:
        """Close the object."""
        target, self._target = self._target, None
        return _attempt(lambda: None if target is None else target.close())


def _attempt(function: Callable[[], Any]) -> Pickled:
    try:
        return Pickled.of(function())
    except Exception as error:
        return Pickled.of(Failure.of(error))
