"""Workers that are no children of this process: what is pending there, and what they know."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import HostInfo
from rl_collect.weights.shared_weights import SharedWeights
from rl_slabs import PackedRows
from rl_workers import CallOutOfOrder, Failure, WorkerDied, WorkerTimeout

STARTING = "starting"


class Transport(Protocol):
    """Brings calls to the hosts of workers, and their replies back."""

    # a ticket identifies one pending reply; each worker has one at a time

    node: str  # this machine, as hosts call theirs
    advice: str  # for a worker that does not start

    def __len__(self) -> int: ...

    def start(self, index: int) -> Any:
        """Start a worker, instead of one that is gone too; the ticket of its `HostInfo`."""

    def submit(self, index: int, request: bytes, version: int, weights: list[Any]) -> Any:
        """Call a method; `weights` holds the offer of a version, if the worker lacks it."""

    def offer(self, weights: PackedRows) -> Any:
        """Make weights ready for the workers that are told of them."""

    def take(self, ticket: Any, timeout_s: float) -> Pickled:
        """Wait for a reply; raises `TimeoutError`, or `ConnectionError` where it cannot come."""

    def ready(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for one that `take` would not wait for; all of these, none if it takes longer."""

    def route(self, index: int) -> str:
        """What carries the rows of a worker on another machine, or calls of one on this."""

    def close(self, places: Sequence[HostInfo | None], timeout_s: float) -> Failure | None:
        """Close all workers that have started; kill the ones that take too long."""


@dataclass
class _Worker:
    """One worker, and the call that is pending there."""

    pending: str | None = STARTING
    ticket: Any = None  # of the reply to it
    place: HostInfo | None = None  # None until it has started
    knows: int = -1  # the version of the weights that it was told of last
    ending: str | None = None  # how it died


class RemoteWorkers:
    """Workers reached by a transport; see `Carrier`."""

    # A batch from another machine is one block, and workers on this machine attach to the memory of
    # this process. A worker is never restarted and no call repeated by the transport itself: a new
    # worker would not have been told what all are told, and a repeated call would write rows twice.

    def __init__(self, transport: Transport, *, timeout_s: float = 600.0) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        self._weights: SharedWeights | None = None
        self._offer: tuple[int, list[Any]] = (-1, [])  # the newest version, how it is got
        self.closed = False
        self._workers = [_Worker(ticket=transport.start(one)) for one in range(len(transport))]

    def __len__(self) -> int:
        return len(self._transport)

    @property
    def pids(self) -> list[int]:
        """The number of each worker's process, on its machine; 0 where it has not started."""
        return [0 if one.place is None else one.place.pid for one in self._workers]

    @property
    def nodes(self) -> list[str]:
        """Each worker's machine; empty where it has not started."""
        return ["" if one.place is None else one.place.node for one in self._workers]

    @property
    def pending(self) -> list[str | None]:
        """The pending call of each worker."""
        return [worker.pending for worker in self._workers]

    def describe(self, index: int) -> str:
        """The worker as messages call it."""
        found = self._workers[index].place
        if found is None:
            return f"collector worker {index} (not started yet)"
        place = "" if self.shares_memory(index) else f" on node {found.node[:8]}"
        return f"collector worker {index} (process {found.pid}{place})"

    def shares_memory(self, index: int) -> bool:
        """Whether a worker is on this machine."""
        place = self._workers[index].place
        return place is not None and place.node == self._transport.node

    def route(self, index: int) -> str:
        """What carries a worker's batches; empty where it has not started."""
        return "" if self._workers[index].place is None else self._transport.route(index)

    def offer_weights(self, weights: SharedWeights | None) -> None:
        """From now on bring these to workers on other machines."""
        self._weights, self._offer = weights, (-1, [])
        for worker in self._workers:
            worker.knows = -1

    def begin(self, index: int, name: str, *args: Any) -> None:
        """Call a method and do not wait."""
        worker = self._workers[index]
        self._require_open()
        if worker.ending is not None:
            raise self._death(index)
        if worker.pending is not None:
            msg = f"{self.describe(index)} cannot take {name!r}: {worker.pending!r} is pending."
            raise CallOutOfOrder(msg)
        version, weights = self._news(index)
        request = pickle.dumps((name, args), protocol=5)
        worker.pending = name
        worker.ticket = self._transport.submit(index, request, version, weights)

    def receive(self, index: int, *, timeout_s: float | None = None) -> Any:
        """Wait for the reply to the pending call."""
        worker, limit_s = self._workers[index], self._limit(timeout_s)
        self._require_open()
        if worker.ending is not None:
            raise self._death(index)
        if worker.pending is None:
            msg = f"{self.describe(index)} has no call pending: there is no reply to receive."
            raise CallOutOfOrder(msg)
        try:
            reply = self._transport.take(worker.ticket, limit_s)
        except TimeoutError:
            raise self._late(index, limit_s) from None
        except ConnectionError as error:
            worker.ending = str(error)
            raise self._death(index) from error
        result = reply.open()
        doing, worker.pending, worker.ticket = worker.pending, None, None
        if isinstance(result, Failure):
            raise result.revive(f"{self.describe(index)}, in {doing!r}")
        if isinstance(result, HostInfo) and doing == STARTING:
            worker.place = result
        return result

    def call(self, index: int, name: str, *args: Any) -> Any:
        """Call a method and wait."""
        self.begin(index, name, *args)
        return self.receive(index)

    def wait(self, *, timeout_s: float | None = None) -> list[int]:
        """Wait until workers with a pending call have a reply or are gone; those."""
        self._require_open()
        waiting = {
            worker.ticket: index
            for index, worker in enumerate(self._workers)
            if worker.pending is not None and worker.ending is None
        }
        if not waiting:
            msg = "no collector worker has a call pending: there is nothing to wait for."
            raise CallOutOfOrder(msg)
        limit_s = self._limit(timeout_s)
        ready = self._transport.ready(list(waiting), limit_s)
        if not ready:
            raise self._late(min(waiting.values()), limit_s)
        return sorted(waiting[ticket] for ticket in ready)

    def has_reply(self, index: int, *, timeout_s: float) -> bool:
        """Wait until `receive` would not wait long; False where that takes too long."""
        ticket = self._workers[index].ticket
        return ticket is None or bool(self._transport.ready([ticket], timeout_s))

    def restart(self, index: int) -> None:
        """Replace a worker by a new one, whose start is pending then."""
        self._require_open()
        self._workers[index] = _Worker()  # a reply that is not taken holds its memory
        self._workers[index].ticket = self._transport.start(index)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Let each worker finish its call and close its object; then end all."""
        if self.closed:
            return
        self.closed = True
        places = [None if one.ending is not None else one.place for one in self._workers]
        for worker in self._workers:
            worker.ticket = None
        failure = self._transport.close(places, timeout_s)
        if failure is not None:
            raise failure.revive("a collector worker, in 'close'")

    def _news(self, index: int) -> tuple[int, list[Any]]:
        """The newest weights, for a worker on another machine that was not told of them."""
        weights, worker = self._weights, self._workers[index]
        if weights is None or self.shares_memory(index):
            return -1, []
        if weights.newest > self._offer[0]:  # packed once for all workers
            version, packed = weights.packed()
            self._offer = version, [self._transport.offer(packed)]
        if worker.knows == self._offer[0]:
            return -1, []
        worker.knows = self._offer[0]
        return self._offer

    def _death(self, index: int) -> WorkerDied:
        worker = self._workers[index]
        return WorkerDied(f"{self.describe(index)} died in {worker.pending!r}: {worker.ending}")

    def _late(self, index: int, limit_s: float) -> WorkerTimeout:
        doing, advice = self._workers[index].pending, self._transport.advice
        if doing != STARTING:
            advice = "It may still: receive again, raise the timeout, or close."
        return WorkerTimeout(
            f"{self.describe(index)} did not answer {doing!r} within {limit_s:g} s. {advice}"
        )

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _require_open(self) -> None:
        if self.closed:
            msg = "these workers were ended: make a new collector."
            raise CallOutOfOrder(msg)
