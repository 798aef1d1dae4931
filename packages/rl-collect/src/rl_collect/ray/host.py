"""The class that Ray makes in an actor."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import WorkerHost


class Host:
    """Holds the worker of a collector."""

    def __init__(self) -> None:
        self._host = WorkerHost()

    def start(self, make: bytes, shared_on: str | None) -> Pickled:
        """Make the worker; `shared_on` is the node whose memory it must be able to attach to."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return self._host.start(lambda: pickle.loads(make)(), node, shared_on)

    def call(self, request: bytes, version: int, weights: list[Any]) -> Pickled:
        """Call a method; `weights` holds a reference to those of a version, if one is newer."""
        if weights:
            self._host.offer_weights(version, _fetcher(weights[0]))
        return self._host.call(lambda: pickle.loads(request))

    def close(self) -> Pickled:
        """Close the worker."""
        return self._host.close()


def _fetcher(reference: Any) -> Callable[[], Any]:
    def fetch() -> Any:
        import ray

        return ray.get(reference)

    return fetch
