"""The class that Ray makes in an actor."""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import WorkerHost
from rl_collect.ray.blocks import Announced, BlockSender
from rl_collect.ray.reception import Invitation, connect
from rl_workers import Channel


class Started(NamedTuple):
    """What became of a start."""

    reply: Pickled
    node: str
    is_connected: bool


class Host:
    """Holds the worker of a collector."""

    def __init__(self) -> None:
        self._host = WorkerHost()
        self._end: socket.socket | None = None
        self._sender: BlockSender | None = None

    def start(self, make: bytes, shared_on: str | None, invitation: Invitation) -> Started:
        """Make the worker; `shared_on` is the node whose memory it must be able to attach to."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        reply = self._host.start(lambda: pickle.loads(make)(), node, shared_on)
        self._end = connect(invitation, node)
        if self._end is not None and node != invitation.node:
            self._sender = BlockSender(self._end)
        return Started(reply, node, self._end is not None)

    def serve(self) -> Pickled:
        """Answer a learner on this machine until it hangs up; what closing the worker came to."""
        assert self._end is not None
        channel = Channel(self._end)
        try:
            with contextlib.suppress(EOFError, BrokenPipeError):
                while True:
                    self._answer(channel)
        finally:
            channel.close()
        return self._host.close()

    def _answer(self, channel: Channel) -> None:
        request = channel.receive()
        reply = self._host.call(lambda: pickle.loads(request))
        channel.send(pickle.dumps(reply, protocol=5))

    def call(
        self, request: bytes, version: int, weights: list[Any], by_blocks: bool
    ) -> Pickled | Announced:
        """Call a method; `weights` holds a reference to those of a version, if one is newer."""
        if weights:
            self._host.offer_weights(version, _fetcher(weights[0]))
        reply = self._host.call(lambda: pickle.loads(request))
        return self._sender.send(reply) if by_blocks and self._sender is not None else reply

    def close(self) -> Pickled:
        """Close the worker."""
        if self._sender is not None:
            self._sender.close()
        return self._host.close()


def _fetcher(reference: Any) -> Callable[[], Any]:
    def fetch() -> Any:
        import ray

        return ray.get(reference)

    return fetch
