"""Workers in actors of Ray: started, called, waited for, ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import HostInfo
from rl_collect.ray.host import Host
from rl_slabs import PackedRows
from rl_workers import Failure

_ENDING_S = 5.0  # for the process of a killed actor to be gone


class Actors:
    """A `Transport` to actors, each with resources of its own; a ticket is Ray's reference."""

    # No tensordict passes through Ray: requests and replies are bytes

    advice = "Has the cluster resources left for it? `ray status` tells."

    def __init__(
        self,
        make: Sequence[bytes],
        configs: Sequence[Mapping[str, Any]],
        *,
        needs_memory: bool = False,
    ) -> None:
        import ray

        self._ray, self._make, self._configs = ray, make, configs
        self.node: str = ray.get_runtime_context().get_node_id()
        self._shared_on = self.node if needs_memory else None
        self._class = ray.remote(Host)
        self._handles: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._make)

    def start(self, index: int) -> Any:
        """Start an actor; one that was there before is killed."""
        if index in self._handles:
            self._ray.kill(self._handles[index], no_restart=True)
        options = {"max_restarts": 0, "max_task_retries": 0, **self._configs[index]}
        handle = self._handles[index] = self._class.options(**options).remote()
        return handle.start.remote(self._make[index], self._shared_on)

    def submit(self, index: int, request: bytes, version: int, weights: list[Any]) -> Any:
        """Call a method of the worker in an actor."""
        return self._handles[index].call.remote(request, version, weights)

    def offer(self, weights: PackedRows) -> Any:
        """Put weights into the object store, from which actors fetch them."""
        return self._ray.put(weights)

    def take(self, ticket: Any, timeout_s: float) -> Pickled:
        """Wait for a reply, of which large arrays are read-only."""
        errors = self._ray.exceptions
        try:
            reply: Pickled = self._ray.get(ticket, timeout=timeout_s)
        except errors.GetTimeoutError as error:
            raise TimeoutError from error
        except errors.RayError as error:  # the actor, its node, or the reply on it is gone
            raise ConnectionError(_first_line(error)) from error
        return reply

    def ready(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for one reply; all that are there then."""
        wait = self._ray.wait
        if not wait(list(tickets), timeout=timeout_s, fetch_local=False)[0]:
            return []
        found: list[Any]
        found, _ = wait(list(tickets), num_returns=len(tickets), timeout=0, fetch_local=False)
        return found

    def close(self, places: Sequence[HostInfo | None], timeout_s: float) -> Failure | None:
        """Close all workers that have started, then kill all actors."""
        if not self._ray.is_initialized():  # the session was ended, and all actors with it
            return None
        failure, deadline = None, time.monotonic() + timeout_s
        try:
            living = [self._handles[index] for index, place in enumerate(places) if place]
            for reference in [handle.close.remote() for handle in living]:
                left_s = max(deadline - time.monotonic(), 0)
                failure = self._last_word(reference, left_s) or failure
        finally:
            for handle in self._handles.values():
                self._ray.kill(handle, no_restart=True)
            self._wait_for_ends([place for place in places if place])
        return failure

    def _last_word(self, reference: Any, timeout_s: float) -> Failure | None:
        try:
            result = self.take(reference, timeout_s).open()
        except (ConnectionError, TimeoutError):  # it is gone, or busy for too long
            return None
        return result if isinstance(result, Failure) else None

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
                waiting = select.poll()
                waiting.register(descriptor, select.POLLIN)
                waiting.poll(max(deadline - time.monotonic(), 0) * 1000)
            finally:
                os.close(descriptor)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "because" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {reason:.300}"
