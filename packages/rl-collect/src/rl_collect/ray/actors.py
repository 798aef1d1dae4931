"""Workers in actors of Ray: started, called, waited for, replaced."""

from __future__ import annotations

import os
import pickle
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_collect.ray.host import Host, HostInfo, Reply
from rl_collect.weights.shared_weights import SharedWeights
from rl_workers import CallOutOfOrder, Failure, WorkerDied, WorkerTimeout

STARTING = "starting"
_ENDING_S = 5.0  # for the process of a killed actor to be gone


@dataclass
class _Actor:
    """One actor, and the call that is pending there."""

    handle: Any
    pending: str | None = None
    reference: Any = None  # of the reply to it
    pid: int = 0
    node: str = ""
    knows: int = -1  # the version of the weights that it was told of last
    ending: str | None = None  # how it died


class Actors:
    """Workers in actors, each with resources of its own; see `Carrier`."""

    # No tensordict passes through Ray: calls and replies are bytes, a batch from another machine is
    # one block, and on this machine workers attach to the memory of this process.

    # an actor is never restarted by Ray itself: a new one would not have been told what all are
    # told, and a repeated call would write its rows twice

    def __init__(
        self,
        make: Sequence[bytes],
        configs: Sequence[Mapping[str, Any]],
        *,
        timeout_s: float = 600.0,
        needs_memory: bool = False,
    ) -> None:
        import ray

        self._ray, self._make, self._configs = ray, make, configs
        self._timeout_s = timeout_s
        self._node: str = ray.get_runtime_context().get_node_id()
        self._shared_on = self._node if needs_memory else None
        self._weights: SharedWeights | None = None
        self._offer: tuple[int, list[Any]] = (-1, [])  # the newest version, a reference to it
        self._host = ray.remote(Host)
        self.closed = False
        self._actors = [self._start(index) for index in range(len(make))]

    def __len__(self) -> int:
        return len(self._make)

    @property
    def pids(self) -> list[int]:
        """The number of each worker's process, on its machine; 0 where it has not started."""
        return [actor.pid for actor in self._actors]

    @property
    def nodes(self) -> list[str]:
        """Ray's id of each worker's machine; empty where it has not started."""
        return [actor.node for actor in self._actors]

    @property
    def pending(self) -> list[str | None]:
        """The pending call of each worker."""
        return [actor.pending for actor in self._actors]

    def describe(self, index: int) -> str:
        """The worker as messages call it."""
        actor = self._actors[index]
        place = f" on node {actor.node[:8]}" if actor.node not in ("", self._node) else ""
        process = f"process {actor.pid}{place}" if actor.pid else "not started yet"
        return f"collector worker {index} ({process})"

    def shares_memory(self, index: int) -> bool:
        """Whether a worker is on this machine."""
        return self._actors[index].node == self._node

    def offer_weights(self, weights: SharedWeights | None) -> None:
        """From now on bring these to workers on other machines."""
        self._weights, self._offer = weights, (-1, [])
        for actor in self._actors:
            actor.knows = -1

    def begin(self, index: int, name: str, *args: Any) -> None:
        """Call a method and do not wait."""
        actor = self._actors[index]
        self._require_open()
        if actor.ending is not None:
            raise self._death(index)
        if actor.pending is not None:
            msg = f"{self.describe(index)} cannot take {name!r}: {actor.pending!r} is pending."
            raise CallOutOfOrder(msg)
        version, weights = self._news(index)
        request = pickle.dumps((name, args), protocol=5)
        actor.pending = name
        actor.reference = actor.handle.call.remote(request, version, weights)

    def receive(self, index: int, *, timeout_s: float | None = None) -> Any:
        """Wait for the reply to the pending call."""
        actor, limit_s = self._actors[index], self._limit(timeout_s)
        self._require_open()
        if actor.ending is not None:
            raise self._death(index)
        if actor.pending is None:
            msg = f"{self.describe(index)} has no call pending: there is no reply to receive."
            raise CallOutOfOrder(msg)
        errors = self._ray.exceptions
        try:
            reply: Reply = self._ray.get(actor.reference, timeout=limit_s)
        except errors.GetTimeoutError:
            raise self._late([index], limit_s) from None
        except errors.RayError as error:  # the actor, its node, or the reply on it is gone
            actor.ending = _first_line(error)
            raise self._death(index) from error
        result = reply.open()
        doing, actor.pending, actor.reference = actor.pending, None, None
        if isinstance(result, Failure):
            raise result.revive(f"{self.describe(index)}, in {doing!r}")
        if isinstance(result, HostInfo) and doing == STARTING:
            actor.pid, actor.node = result
        return result

    def call(self, index: int, name: str, *args: Any) -> Any:
        """Call a method and wait."""
        self.begin(index, name, *args)
        return self.receive(index)

    def wait(self, *, timeout_s: float | None = None) -> list[int]:
        """Wait until workers with a pending call have a reply or are gone; those."""
        self._require_open()
        waiting = {
            actor.reference: index
            for index, actor in enumerate(self._actors)
            if actor.pending is not None and actor.ending is None
        }
        if not waiting:
            msg = "no collector worker has a call pending: there is nothing to wait for."
            raise CallOutOfOrder(msg)
        limit_s, references = self._limit(timeout_s), list(waiting)
        if not self._ray.wait(references, timeout=limit_s, fetch_local=False)[0]:
            raise self._late(sorted(waiting.values()), limit_s)
        ready, _ = self._ray.wait(
            references, num_returns=len(references), timeout=0, fetch_local=False
        )
        return sorted(waiting[reference] for reference in ready)

    def has_reply(self, index: int, *, timeout_s: float) -> bool:
        """Wait until `receive` would not wait long; False where that takes too long."""
        actor = self._actors[index]
        if actor.reference is None:
            return True
        return bool(self._ray.wait([actor.reference], timeout=timeout_s, fetch_local=False)[0])

    def restart(self, index: int) -> None:
        """Replace a worker by a new actor, whose start is pending then."""
        self._require_open()
        self._kill(self._actors[index])
        self._actors[index] = self._start(index)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Let each worker finish its call and close its object; then end all actors."""
        if self.closed:
            return
        self.closed = True
        failure, deadline = None, time.monotonic() + timeout_s
        if not self._ray.is_initialized():  # the session was ended, and all actors with it
            return
        try:
            living = [actor for actor in self._actors if actor.ending is None and actor.pid]
            last = [actor.handle.close.remote() for actor in living]
            for reference in last:
                left_s = max(deadline - time.monotonic(), 0)
                failure = self._last_word(reference, left_s) or failure
        finally:
            for actor in self._actors:
                self._kill(actor)
            self._wait_for_ends()
        if failure is not None:
            raise failure.revive("a collector worker, in 'close'")

    def _start(self, index: int) -> _Actor:
        options = {"max_restarts": 0, "max_task_retries": 0, **self._configs[index]}
        handle = self._host.options(**options).remote()
        reference = handle.start.remote(self._make[index], self._shared_on)
        return _Actor(handle, STARTING, reference)

    def _news(self, index: int) -> tuple[int, list[Any]]:
        """The newest weights, for a worker on another machine that was not told of them."""
        weights, actor = self._weights, self._actors[index]
        if weights is None or self.shares_memory(index):
            return -1, []
        if weights.newest > self._offer[0]:  # put once, whoever asks for it
            version, packed = weights.packed()
            self._offer = version, [self._ray.put(packed)]
        if actor.knows == self._offer[0]:
            return -1, []
        actor.knows = self._offer[0]
        return self._offer

    def _last_word(self, reference: Any, timeout_s: float) -> Failure | None:
        try:
            result = self._ray.get(reference, timeout=timeout_s).open()
        except self._ray.exceptions.RayError:  # it is gone, or busy for too long
            return None
        return result if isinstance(result, Failure) else None

    def _kill(self, actor: _Actor) -> None:
        actor.reference = None  # a reply that is not taken holds its memory
        self._ray.kill(actor.handle, no_restart=True)

    def _wait_for_ends(self) -> None:
        """Wait until the processes on this machine are gone, which Ray does not."""
        deadline = time.monotonic() + _ENDING_S
        for actor in self._actors:
            if actor.node != self._node:
                continue
            try:
                descriptor = os.pidfd_open(actor.pid)
            except ProcessLookupError:
                continue
            try:
                waiting = select.poll()
                waiting.register(descriptor, select.POLLIN)
                waiting.poll(max(deadline - time.monotonic(), 0) * 1000)
            finally:
                os.close(descriptor)

    def _death(self, index: int) -> WorkerDied:
        actor = self._actors[index]
        return WorkerDied(f"{self.describe(index)} died in {actor.pending!r}: {actor.ending}")

    def _late(self, indices: list[int], limit_s: float) -> WorkerTimeout:
        actor = self._actors[indices[0]]
        advice = "It may still: receive again, raise the timeout, or close."
        if actor.pending == STARTING:
            advice = "Has the cluster resources left for it? `ray status` tells."
        return WorkerTimeout(
            f"{self.describe(indices[0])} did not answer {actor.pending!r} within {limit_s:g} s. "
            f"{advice}"
        )

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _require_open(self) -> None:
        if self.closed:
            msg = "these actors were ended: make a new collector."
            raise CallOutOfOrder(msg)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "because" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {reason:.300}"
