"""Supervised processes: each makes one object and answers calls to its methods.

    caller                                            worker i
    ------                                            --------
    WorkerPool                                        an object, made here by make[i]
      |  signal(i, "step")   2 bytes and integers       |
      |---------------------- channel ----------------->|  object.step()
      |<--------------------- channel ------------------|
      |  receive(i)                                     |

Data of every step belongs in shared memory that both sides hold; a signal only announces it. A
call carries anything that can be pickled, for rare events.

When the caller ends, a worker sees the end of its channel and of its lifeline, and leaves. When a
worker ends, the caller gets a `WorkerDied` from its current wait, or from its next call.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.util import Finalize
from typing import Any, Self

from rl_workers import worker_loop
from rl_workers.arguments import require_text, seconds, whole
from rl_workers.errors import CallOutOfOrder
from rl_workers.pickling import Portable
from rl_workers.start_methods import StartMethod, context_of
from rl_workers.worker import Worker
from rl_workers.worker_loop import WorkerConfig

SILENT_S = 3.0
"""Time before a warning names workers that do not leave."""

log = logging.getLogger("rl_workers")


class WorkerPool:
    """Worker processes, each of which holds one object and answers calls to its methods.

    A pool belongs to the thread that uses it. Workers are no daemons, so that one may hold a pool
    itself; still no worker outlives its parent.

    Args:
        make: One function for each worker, which makes its object there.
        signals: Names of methods that take and return whole numbers only, or nothing; `signal`
            calls them with a message of a few bytes.
        start_method: "fork", "spawn" or "forkserver"; see `context_of`.
        preload: Modules that the server of forks imports once for all workers, where `start_method`
            is None and the program has no such server yet.
        timeout_s: Longest time to wait for a reply; each wait may name its own.
        start_timeout_s: Longest time to wait for a new worker.
        name: What to call the workers in messages.
        num_threads: How many threads torch may use in a worker; None to leave that alone.

    Attributes:
        closed: Whether `close` was called.

    Raises:
        ValueError: No worker at all, or a timeout that is not positive.
        TypeError: `make` holds something that cannot be called.
        WorkerDied: A worker ended while it started.
        WorkerTimeout: A worker was not ready in time.
        Exception: `make` raised it in the worker; its cause shows the traceback there.

    Example:
        >>> with WorkerPool([list, list], start_method="fork") as pool:
        ...     pool.call(1, "append", "a")
        ...     pool.call(1, "count", "a")
        ...
        ()
        1
    """

    def __init__(  # noqa: PLR0913 - a wait of its own for each thing that can take long
        self,
        make: Sequence[Callable[[], Any]],
        *,
        signals: Iterable[str] = (),
        start_method: StartMethod | None = None,
        preload: Sequence[str] = (),
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        name: str = "worker",
        num_threads: int | None = 1,
    ) -> None:
        self.closed = True  # until there is something to close
        _require(make)
        self._timeout_s = _positive(timeout_s, "timeout_s")
        self._start_timeout_s = _positive(start_timeout_s, "start_timeout_s")
        require_text(name, "name")
        if num_threads is not None:
            num_threads = whole(num_threads, "num_threads")
        signals = _names(signals)
        self._make = [Portable(function) for function in make]
        self._requests = {
            signal: worker_loop.request_signal(number) for number, signal in enumerate(signals)
        }
        self._context = context_of(start_method, preload=preload)
        self._name, self._num_threads = name, num_threads
        self._process = os.getpid()
        self._workers: list[Worker] = []
        self.closed = False
        # before multiprocessing itself, at the end of this process, waits for its children
        self._at_exit = Finalize(None, _close_if_open, (weakref.ref(self),), exitpriority=10)
        try:
            for index in range(len(make)):
                self._workers.append(self._start(index))
            self._watch()
            self.receive_all(timeout_s=self._start_timeout_s)
        except BaseException:
            self._end_all(deadline=None)
            raise

    def __len__(self) -> int:
        return len(self._make)

    @property
    def pids(self) -> list[int]:
        """The number of each worker's process.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.pids[0] == os.getpid()
            False
        """
        return [worker.pid for worker in self._workers]

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each worker's process, negative for a signal; None until it is known.

        Example:
            >>> with WorkerPool([list, list], start_method="fork") as pool:
            ...     running = pool.exit_codes
            >>> running, pool.exit_codes
            ([None, None], [0, 0])
        """
        return [worker.exit_code for worker in self._workers]

    @property
    def pending(self) -> list[str | None]:
        """The pending call of each worker; None if it waits for a call.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.pending
            [None]
        """
        return [worker.pending for worker in self._workers]

    def signal(self, index: int, name: str, *numbers: int) -> None:
        """Call a method by its number, with whole numbers only; `receive` has the reply.

        Args:
            index: Which worker.
            name: One of the `signals` of the pool.
            numbers: Its arguments, of 64 bits each.

        Raises:
            KeyError: `name` is none of the signals.
            CallOutOfOrder: The worker has a call pending, or the pool is closed.
            WorkerDied: Its process is gone.

        Example:
            >>> with WorkerPool([list], signals=["append"], start_method="fork") as pool:
            ...     pool.signal(0, "append", 7)
            ...     pool.receive(0)
            ()
        """
        request = self._request(name)
        if numbers:
            try:
                request = worker_loop.request_signal(request[1], numbers)
            except struct.error:
                raise TypeError(
                    f"a signal takes whole numbers of 64 bits, got {numbers!r:.80}: use begin() "
                    "for anything else."
                ) from None
        self._worker(index).send(request, name)

    def signal_all(self, name: str) -> None:
        """Call a method of every worker by its number, without arguments.

        Raises:
            KeyError: `name` is none of the signals.
            CallOutOfOrder: A worker has a call pending, or the pool is closed.
            WorkerDied: A process is gone.

        Example:
            >>> with WorkerPool([list, list], signals=["clear"], start_method="fork") as pool:
            ...     pool.signal_all("clear")
            ...     pool.receive_all()
            [(), ()]
        """
        request = self._request(name)
        self._require_open()
        for worker in self._workers:
            worker.send(request, name)

    def begin(self, index: int, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method by its name and do not wait; `receive` has the reply.

        Raises:
            CallOutOfOrder: The worker has a call pending, or the pool is closed.
            WorkerDied: Its process is gone.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.begin(0, "append", 7)
            ...     pool.receive(0)
            ()
        """
        require_text(name, "name")
        self._worker(index).send(worker_loop.request_call(name, args, kwargs), name)

    def receive(self, index: int, *, timeout_s: float | None = None) -> Any:
        """Wait for the reply of one worker.

        Args:
            index: Which worker.
            timeout_s: Longest time to wait; that of the pool where None.

        Returns:
            What the method returned; a tuple of whole numbers for a signal, `()` for None.

        Raises:
            CallOutOfOrder: No call is pending there, or the pool is closed.
            WorkerDied: The process is gone.
            WorkerTimeout: No reply came in time; the call stays pending.
            Exception: The method raised it; its cause shows the traceback there.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.begin(0, "pop")
            ...     pool.receive(0)
            Traceback (most recent call last):
            IndexError: pop from empty list
        """
        return self._worker(index).take_reply(self._limit(timeout_s))

    def receive_all(self, *, timeout_s: float | None = None) -> list[Any]:
        """Wait for the reply of every worker that has a call pending.

        The death of any worker ends the wait at once. An exception of a call does not: all other
        replies are taken first, so that afterwards no call is pending.

        Args:
            timeout_s: Longest time to wait for all of them; that of the pool where None.

        Returns:
            The replies, by worker; None for one that had no call pending.

        Raises:
            WorkerDied: A process is gone that had raised nothing.
            WorkerTimeout: A reply did not come in time.
            Exception: A call raised it; that of the first worker, if several did.

        Example:
            >>> with WorkerPool([list, list], start_method="fork") as pool:
            ...     pool.begin(1, "__len__")
            ...     pool.receive_all()
            [None, 0]
        """
        self._require_open()
        limit_s = self._limit(timeout_s)
        deadline = time.monotonic() + limit_s
        replies: list[Any] = [None] * len(self._workers)
        failures: dict[int, Exception] = {}
        left = sum(worker.pending is not None for worker in self._workers)
        while left:
            for worker, has_message in self._events(deadline, limit_s):
                try:
                    found = worker.read() if has_message else worker.take_reply(0)
                except Exception as error:
                    if worker.is_dead or worker.pending is not None:
                        raise failures.get(worker.index, error)  # noqa: B904 - told, and left
                    failures[worker.index] = error
                else:
                    replies[worker.index] = found
                left -= 1
        if failures:
            raise failures[min(failures)]
        return replies

    def wait(self, *, timeout_s: float | None = None) -> list[int]:
        """Wait until some worker with a pending call has a reply, or is gone.

        One whose death was raised already is not waited for.

        Returns:
            Those whose `receive` returns or raises without waiting; at least one.

        Raises:
            CallOutOfOrder: No call is pending anywhere, or the pool is closed.
            WorkerTimeout: No reply came in time.

        Example:
            >>> with WorkerPool([list, list], start_method="fork") as pool:
            ...     pool.begin(1, "__len__")
            ...     pool.wait()
            [1]
        """
        self._require_open()
        busy = [one for one in self._workers if one.pending is not None and not one.is_dead]
        if not busy:
            raise CallOutOfOrder(
                f"no {self._name} has a call pending: there is nothing to wait for."
            )
        limit_s = self._limit(timeout_s)
        waiting = select.poll()
        owner = {descriptor: worker for worker in busy for descriptor in worker.descriptors}
        for descriptor in owner:
            waiting.register(descriptor, select.POLLIN)
        ready = {owner[descriptor].index for descriptor, _ in waiting.poll(limit_s * 1000)}
        if not ready:
            raise busy[0].timeout_error(limit_s)
        return sorted(ready)

    def call(self, index: int, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of one worker and wait for its reply.

        Raises:
            CallOutOfOrder: The worker has a call pending, or the pool is closed.
            WorkerDied: Its process is gone.
            WorkerTimeout: No reply came in time.
            Exception: The method raised it.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.call(0, "index", 3)
            Traceback (most recent call last):
            ValueError: 3 is not in list
        """
        self.begin(index, name, *args, **kwargs)
        return self.receive(index)

    def call_all(self, name: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of every worker at once and wait for all replies.

        Args:
            name: The method.
            arguments: For each worker; none if None.

        Raises:
            CallOutOfOrder: A worker has a call pending, or the pool is closed.
            WorkerDied: A process is gone.
            WorkerTimeout: A reply did not come in time.
            Exception: The method raised it.

        Example:
            >>> with WorkerPool([list, list], start_method="fork") as pool:
            ...     pool.call_all("append", [(3,), (5,)])
            ...     pool.call_all("pop")
            [(), ()]
            [3, 5]
        """
        each = [()] * len(self) if arguments is None else arguments
        fits = isinstance(each, Sequence) and all(isinstance(one, tuple | list) for one in each)
        if not fits or len(each) < len(self):
            raise ValueError(
                f"arguments must be a list of {len(self)} tuples, one for each worker, got "
                f"{arguments!r:.80}."
            )
        for index in range(len(self)):
            self.begin(index, name, *each[index])
        return self.receive_all()

    def restart(self, index: int) -> None:
        """Replace a worker, dead or not, by a new one of the same kind.

        Raises:
            CallOutOfOrder: The pool is closed.
            WorkerDied: The new one ended while it started.
            WorkerTimeout: The new one was not ready in time.
            Exception: The worker could not make its object.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.call(0, "append", 7)
            ...     pool.restart(0)
            ...     pool.call(0, "__len__")
            ()
            0
        """
        self._worker(index).kill()
        self._workers[index] = self._start(index)
        self._watch()
        self._workers[index].take_reply(self._start_timeout_s)

    def revive(self, *, timeout_s: float | None = None) -> list[int]:
        """Replace workers that have died or do not answer in time.

        Replies that are still pending are taken and dropped, exceptions included.

        Args:
            timeout_s: Longest time to wait for answers; that of the pool where None.

        Returns:
            Which were replaced; they know nothing of what the old ones were told.

        Raises:
            CallOutOfOrder: The pool is closed.
            Exception: As for `restart`.

        Example:
            >>> import signal
            >>> with WorkerPool([list, list], start_method="fork") as pool:
            ...     os.kill(pool.pids[1], signal.SIGKILL)
            ...     pool.begin(0, "clear")
            ...     pool.revive(), pool.pending
            ([1], [None, None])
        """
        self._require_open()
        deadline = time.monotonic() + self._limit(timeout_s)
        for worker in self._workers:
            worker.probe()
        lost = [worker.index for worker in self._workers if not worker.is_responsive(deadline)]
        for index in lost:
            self.restart(index)
        return lost

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Let each worker finish its call, close its object and leave; once more is nothing.

        Args:
            timeout_s: Those that have not left after this time are killed.

        Raises:
            Exception: Closing an object raised it in a worker; all workers are gone by then.

        Example:
            >>> pool = WorkerPool([list], start_method="fork")
            >>> pool.close()
        """
        timeout_s = seconds(timeout_s, "timeout_s")
        if self.closed:
            return
        failure = None
        deadline = time.monotonic() + timeout_s
        try:
            for worker in self._workers:
                worker.ask_to_leave(timeout_s)
            failure = self._drain(deadline)
        except BaseException:  # a second Ctrl-C: no more patience
            deadline = time.monotonic()
            raise
        finally:
            self._end_all(deadline)
        if failure is not None:
            raise failure

    def _drain(self, deadline: float) -> BaseException | None:
        """Wait until all processes have ended; say after a while which have not."""
        failure = None
        soon = min(time.monotonic() + SILENT_S, deadline)
        for worker in self._workers:
            found = worker.drain(soon)
            if not worker.is_gone and (left_s := deadline - time.monotonic()) > 0:
                log.warning(
                    "waiting up to %.0f s more for %s to end%s: then it is killed. "
                    "close(timeout_s=...) sets the limit.",
                    left_s,
                    worker.who,
                    "" if worker.pending is None else f" {worker.pending!r}",
                )
                found = worker.drain(deadline) or found  # its last word may have come before
            failure = found or failure
        return failure

    def has_reply(self, index: int, *, timeout_s: float) -> bool:
        """Wait until one worker with a pending call has a reply, or is gone.

        Args:
            index: Which worker.
            timeout_s: Longest time to wait.

        Returns:
            Whether `receive` returns or raises without waiting.

        Raises:
            CallOutOfOrder: The pool is closed.

        Example:
            >>> with WorkerPool([list], start_method="fork") as pool:
            ...     pool.begin(0, "__len__")
            ...     pool.has_reply(0, timeout_s=60)
            True
        """
        return self._worker(index).has_event(seconds(timeout_s, "timeout_s"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # the workers see their channels close and leave, at a time unknown here
        if not self.closed and self._process == os.getpid():
            warnings.warn(
                f"a pool of {len(self)} {self._name} processes was dropped: call close(), or use "
                "it in a with block.",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = "closed, " if self.closed else ""
        return f"WorkerPool({state}{len(self)} of {self._name!r}, pending={self.pending})"

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else seconds(timeout_s, "timeout_s")

    def _start(self, index: int) -> Worker:
        config = WorkerConfig(
            self._make[index], tuple(self._requests), os.getpid(), self._num_threads
        )
        return Worker(
            self._context, config, index=index, name=self._name, timeout_s=self._timeout_s
        )

    def _watch(self) -> None:
        """One place to wait for all workers, each by its channel and by its process."""
        self._all = select.poll()
        self._owner: dict[int, tuple[Worker, bool]] = {}
        for worker in self._workers:
            channel, process = worker.descriptors
            self._owner |= {channel: (worker, True), process: (worker, False)}
        for descriptor in self._owner:
            self._all.register(descriptor, select.POLLIN)

    def _events(self, deadline: float, limit_s: float) -> list[tuple[Worker, bool]]:
        """Each worker that has a message or is gone, and whether it is a message."""
        left_s = max(deadline - time.monotonic(), 0)
        found: dict[int, tuple[Worker, bool]] = {}
        for descriptor, _ in self._all.poll(left_s * 1000):
            worker, has_message = self._owner[descriptor]
            if has_message or worker.index not in found:
                found[worker.index] = worker, has_message
        if not found:
            late = next(worker for worker in self._workers if worker.pending is not None)
            raise late.timeout_error(limit_s)
        return list(found.values())

    def _worker(self, index: int) -> Worker:
        self._require_open()
        index = whole(index, "index")
        if not 0 <= index < len(self._workers):
            raise IndexError(f"there are {len(self)} workers, from 0: got {index}.")
        return self._workers[index]

    def _request(self, name: str) -> bytes:
        require_text(name, "name")
        try:
            return self._requests[name]
        except KeyError:
            known = list(self._requests)
            raise KeyError(f"{name!r} is no signal, choose from {known}, or use begin().") from None

    def _require_open(self) -> None:
        if self.closed:
            raise CallOutOfOrder(f"this pool of {self._name} processes is closed: make a new one.")

    def _end_all(self, deadline: float | None) -> None:
        self.closed = True
        self._at_exit.cancel()
        for worker in self._workers:
            worker.kill(deadline)


def _close_if_open(reference: weakref.ref[WorkerPool]) -> None:
    pool = reference()
    if pool is not None:
        pool.close()


def _require(make: Any) -> None:
    if not isinstance(make, Sequence) or isinstance(make, str | bytes):
        raise TypeError(f"make must be a list of functions, got {type(make).__name__}.")
    if not make:
        raise ValueError("a pool needs at least one worker, got none: pass a function for each.")


def _positive(limit_s: Any, name: str) -> float:
    found = seconds(limit_s, name)
    if found == 0:
        raise ValueError(f"limits are positive: got {name}={limit_s}. Pass a large one to wait.")
    return found


def _names(signals: Any) -> list[str]:
    if isinstance(signals, str) or not isinstance(signals, Iterable):
        raise TypeError(
            f"signals must be a list of names, got {type(signals).__name__}: pass ['step']."
        )
    found = list(signals)
    for name in found:
        require_text(name, "a signal")
    return found
