"""Collection in the background: a thread that repeats a call, its time limits and its end."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

SILENT_S = 3.0
"""How long nothing is said."""

LONGEST_S = 1e6
"""No single wait is longer: what waits refuses much larger numbers, and infinity."""

log = logging.getLogger("rl_collect")


class TimeLimit:
    """One time limit for several waits in a row."""

    def __init__(self, timeout_s: float, advice: str) -> None:
        self.limit_s, self._advice = timeout_s, advice
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return min(max(self._end - time.monotonic(), 0.0), LONGEST_S)

    def wait(self, ends: Callable[[float], bool], what: str) -> bool:
        """Wait until something ends or no time is left; say so after a few seconds."""
        if ends(min(SILENT_S, self.left_s)):
            return True
        if self.left_s > 0:
            log.warning("waiting up to %.0f s more for %s: %s", self.left_s, what, self._advice)
        return ends(self.left_s)


class BackgroundLoop:
    """Repeats one call in a thread; `stop` re-raises its exception."""

    def __init__(self, work: Callable[[], bool], name: str) -> None:
        self._work, self._name = work, name
        self._is_asked_to_stop = threading.Event()
        self._failure: BaseException | None = None
        # over the calls, and whether they are still served; told of each turn
        self._lock = threading.Condition()
        self._calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is more to do."""
        return self._thread.is_alive()

    def between(self, call: Callable[[], R], timeout_s: float = 600.0) -> R:
        """Call something in the thread, between two calls of its work."""
        done: Future[R] = Future()
        with self._lock:
            is_direct = self._is_over or threading.current_thread() is self._thread
            if not is_direct:
                self._calls.append((done, call))
        if is_direct:
            return call()
        try:
            return done.result(timeout_s)
        except TimeoutError:
            if done.done():
                raise
            done.cancel()
            raise TimeoutError(self._lateness(timeout_s)) from None

    def wait_for(self, is_enough: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is true after a turn, or the work is over."""
        end = time.monotonic() + timeout_s
        with self._lock:
            while not is_enough() and not self._is_over and (left := end - time.monotonic()) > 0:
                self._lock.wait(min(left, LONGEST_S))
            enough = is_enough()
            if not self._is_over:
                return enough
        if not enough:
            self._raise()
        return True

    def stop(self, time_limit: TimeLimit) -> None:
        """Wait for the call under way, and end."""
        self._is_asked_to_stop.set()
        if not time_limit.wait(self._ends, f"the batch under way in {self._name}"):
            raise TimeoutError(self._lateness(time_limit.limit_s))
        self._raise()

    def finish(self, timeout_s: float) -> None:
        """Wait until there is nothing more to do."""
        if not self._ends(timeout_s):
            raise TimeoutError(self._lateness(timeout_s))
        self._raise()

    def _ends(self, timeout_s: float) -> bool:
        self._thread.join(min(timeout_s, LONGEST_S))
        return not self._thread.is_alive()

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _lateness(self, timeout_s: float) -> str:
        return f"{self._name} did not end within {timeout_s} s: its step takes longer, or hangs."

    def _run(self) -> None:
        try:
            while not self._is_asked_to_stop.is_set() and self._work():
                self._serve()
                with self._lock:
                    self._lock.notify_all()
        except BaseException as error:  # re-raised by `stop`
            self._failure = error
        finally:
            with self._lock:
                self._is_over = True
                self._lock.notify_all()
            self._serve()

    def _serve(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for done, call in calls:
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(call())
            except BaseException as error:  # re-raised in the calling thread
                done.set_exception(error)


class HasShutdown(Protocol):
    """What can be shut down."""

    def shutdown(self) -> None:
        """Stop."""


_started: weakref.WeakKeyDictionary[HasShutdown, int] = weakref.WeakKeyDictionary()


def shut_at_exit(collector: HasShutdown) -> None:
    """Shut a collector down before the interpreter ends, in this process only."""
    # A thread that is in torch when the interpreter goes away aborts the process.
    if not _started:  # after multiprocessing's own, so ahead of it at the end
        atexit.unregister(_shut_all)
        atexit.register(_shut_all)
    _started[collector] = os.getpid()


def forget(collector: HasShutdown) -> None:
    """Leave a collector alone: it was shut down."""
    _started.pop(collector, None)


def _shut_all() -> None:
    failure: Exception | None = None
    for collector, process in list(_started.items()):
        if process == os.getpid():
            try:
                collector.shutdown()
            except Exception as error:  # told after the last one
                failure = error
    if failure is not None:
        raise failure
