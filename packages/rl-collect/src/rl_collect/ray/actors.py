"""Workers in actors of Ray: started, called, waited for, ended."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import HostInfo
from rl_collect.ray.blocks import LOOK_S
from rl_collect.ray.host import Host, Started
from rl_collect.ray.reception import Invitation, Reception, wait_readable
from rl_collect.ray.replies import LocalCalls, RayReply, result_of
from rl_slabs import PackedRows
from rl_workers import Failure

_ENDING_S = 5.0  # for the process of a killed actor to be gone

Reply = RayReply | LocalCalls


@dataclass
class _Actor:
    """An actor, and the connection that it has to the learner: at most one of the two."""

    handle: Any
    invitation: Invitation
    calls: LocalCalls | None = None  # to one on this machine
    blocks: socket.socket | None = None  # from one on another machine

    def close(self) -> None:
        for one in (self.calls, self.blocks):
            if one is not None:
                one.close()


class Actors:
    """A `Transport` to actors, each with resources of its own; a ticket is a `Reply`."""

    # Ray starts actors and tells of their ends. On this machine calls pass it by, and from others
    # the rows of batches do; where no connection comes about it carries both. No tensordict passes
    # through it.

    advice = (
        "Has the cluster resources left for it (`ray status` tells), and do firewalls let the "
        "machines reach the ports of one another's Ray workers (ray start --min-worker-port, "
        "--max-worker-port)?"
    )

    def __init__(
        self,
        make: Sequence[bytes],
        configs: Sequence[Mapping[str, Any]],
        *,
        needs_memory: bool = False,
        ports: Sequence[int] = (0,),
    ) -> None:
        import ray

        self._ray, self._make, self._configs = ray, make, configs
        self.node: str = ray.get_runtime_context().get_node_id()
        self._shared_on = self.node if needs_memory else None
        self._class = ray.remote(Host)
        self._actors: dict[int, _Actor] = {}
        self._reception = Reception(self.node, ray.util.get_node_ip_address(), ports)
        self._bell, self._rings = socket.socketpair()  # who waits for Ray waits for a byte
        self._bell.setblocking(False)
        self._rings.setblocking(False)

    def __len__(self) -> int:
        return len(self._make)

    def start(self, index: int) -> Reply:
        """Start an actor; one that was there before is killed."""
        if index in self._actors:
            self._ray.kill(self._actors[index].handle, no_restart=True)
            self._actors[index].close()
        options = {"max_restarts": 0, "max_task_retries": 0, **self._configs[index]}
        invitation = self._reception.invite()
        handle = self._class.options(**options).remote()
        actor = self._actors[index] = _Actor(handle, invitation)
        reference = handle.start.remote(self._make[index], self._shared_on, invitation)
        return RayReply(reference, self._ring, met=functools.partial(self._meet, actor))

    def submit(self, index: int, request: bytes, version: int, weights: list[Any]) -> Reply:
        """Call a method of the worker in an actor."""
        actor = self._actors[index]
        if actor.calls is not None:
            return actor.calls.submit(request)
        by_blocks = actor.blocks is not None
        reference = actor.handle.call.remote(request, version, weights, by_blocks)
        return RayReply(reference, self._ring, end=actor.blocks)

    def offer(self, weights: PackedRows) -> Any:
        """Put weights into the object store, from which actors fetch them."""
        return self._ray.put(weights)

    def take(self, ticket: Reply, timeout_s: float) -> Pickled:
        """Wait for a reply, of which large arrays may be read-only."""
        return ticket.take(timeout_s)

    def ready(self, tickets: Sequence[Reply], timeout_s: float) -> list[Any]:
        """Wait for one reply; all that are there then."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(4096)
            found = [one for one in tickets if one.is_ready()]
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            descriptors = (self._bell.fileno(), *(one.fileno() for one in tickets))
            wait_readable([one for one in descriptors if one >= 0], min(left_s, LOOK_S))

    def route(self, index: int) -> str:
        """A connection of the actor's own, or Ray where none came about."""
        actor = self._actors[index]
        return "socket" if actor.calls else "blocks" if actor.blocks else "ray"

    def close(self, places: Sequence[HostInfo | None], timeout_s: float) -> Failure | None:
        """Close all workers that have started, then kill all actors."""
        try:
            if not self._ray.is_initialized():  # the session was ended, and all actors with it
                return None
            return self._close_workers(places, timeout_s)
        finally:
            for actor in self._actors.values():
                actor.close()
            for one in (self._reception, self._bell, self._rings):
                one.close()

    def _close_workers(self, places: Sequence[HostInfo | None], timeout_s: float) -> Failure | None:
        failure, deadline = None, time.monotonic() + timeout_s
        try:
            living = [self._actors[index] for index, place in enumerate(places) if place]
            for future in [_closing(actor) for actor in living]:
                left_s = max(deadline - time.monotonic(), 0)
                failure = _last_word(future, left_s) or failure
        finally:
            for actor in self._actors.values():
                self._ray.kill(actor.handle, no_restart=True)
            self._wait_for_ends([place for place in places if place])
        return failure

    def _meet(self, actor: _Actor, started: Started) -> Pickled:
        """Take the connection of an actor that has started."""
        end = self._reception.welcome(actor.invitation) if started.is_connected else None
        if end is not None and started.node == self.node:
            ended = actor.handle.serve.remote().future()
            ended.add_done_callback(self._ring)
            actor.calls = LocalCalls(end, ended)
        else:
            actor.blocks = end
            if end is None:
                _warn_of(actor.invitation)
        return started.reply

    def _ring(self, _: Any) -> None:
        """Wake who waits; one byte does, and after the end no thread waits."""
        with contextlib.suppress(OSError):
            self._rings.send(b"\0")

    def _wait_for_ends(self, places: Sequence[HostInfo]) -> None:
        """Wait until the processes on this machine are gone, which Ray does not."""
        deadline = time.monotonic() + _ENDING_S
        for place in places:
            if place.node != self.node:
                continue
            try:
                descriptor = os.pidfd_open(place.pid)
            except ProcessLookupError:
                continue
            try:
                wait_readable([descriptor], max(deadline - time.monotonic(), 0))
            finally:
                os.close(descriptor)


def _warn_of(invitation: Invitation) -> None:
    host, port = invitation.address
    warnings.warn(
        f"an actor on another machine could not connect to {host}:{port}, so Ray brings its "
        "batches, which takes longer: open that port of this machine; ports=range(20_000, 20_010), "
        "an argument of RayCollector, fixes which it may be.",
        stacklevel=2,
    )


def _closing(actor: _Actor) -> Any:
    return actor.handle.close.remote().future() if actor.calls is None else actor.calls.hang_up()


def _last_word(future: Any, timeout_s: float) -> Failure | None:
    try:
        result = result_of(future, timeout_s).open()
    except (ConnectionError, TimeoutError):  # it is gone, or busy for too long
        return None
    return result if isinstance(result, Failure) else None
