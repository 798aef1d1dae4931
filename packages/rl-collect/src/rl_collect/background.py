"""Work that goes on in a thread until it is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Background:
    """Repeats one call in a thread; what it raises is raised to whoever stops it.

    Args:
        work: called again and again, until it returns False.
        name: what to call the thread.

    Example:
        >>> left = [1, 2, 3]
        >>> background = Background(lambda: bool(left.pop()) and bool(left), "counting")
        >>> background.stop(timeout_s=10, finish=True)
        >>> left
        []
    """

    def __init__(self, work: Callable[[], bool], name: str) -> None:
        self._work, self._name = work, name
        self._is_asked_to_stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is more to do."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float, *, finish: bool = False) -> None:
        """Wait for the call under way, and end.

        Args:
            timeout_s: longest time to wait.
            finish: let it go on until it has nothing more to do.

        Raises:
            TimeoutError: the call under way takes longer.
            Exception: whatever the work raised.
        """
        if not finish:
            self._is_asked_to_stop.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            msg = f"{self._name} did not end within {timeout_s} s: its step takes longer, or hangs."
            raise TimeoutError(msg)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self) -> None:
        try:
            while not self._is_asked_to_stop.is_set() and self._work():
                pass
        except BaseException as error:  # handed to whoever stops it
            self._failure = error


class RunsInBackground:
    """A collector that can go on by itself, into its buffer.

    Example:
        >>> from rl_collect import Collector
        >>> issubclass(Collector, RunsInBackground)
        True
    """

    _background: Background | None = None
    _buffer: Any = None
    _is_shut = False

    def _work(self) -> bool:
        """Collect a batch; say whether there may be more."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._is_shut:
            msg = "this collector was shut down: make a new one."
            raise RuntimeError(msg)

    @property
    def is_running(self) -> bool:
        """Whether batches are collected in the background."""
        return self._background is not None and self._background.is_running

    def start(self) -> None:
        """Collect into the buffer in the background, until all frames are played or `shutdown`.

        Raises:
            RuntimeError: there is no buffer, or it runs already.

        Example:
            >>> from rl_collect import Collector
            >>> from rl_envs.testing import CountingEnv
            >>> class Buffer(list):
            ...     def extend(self, batch):
            ...         self.append(batch)
            >>> buffer = Buffer()
            >>> collector = Collector(
            ...     CountingEnv(), frames_per_batch=4, total_frames=12, replay_buffer=buffer
            ... )
            >>> collector.start()
            >>> collector.wait()
            >>> len(buffer)
            3
        """
        self._require_open()
        if self._buffer is None:
            msg = "start collects into a buffer: give replay_buffer, or iterate."
            raise RuntimeError(msg)
        if self._background is not None:
            msg = "this collector runs in the background already."
            raise RuntimeError(msg)
        self._background = Background(self._work, "the collector's thread")

    def wait(self, timeout_s: float = 600.0) -> None:
        """Wait until the background has played all frames.

        Args:
            timeout_s: longest time to wait.

        Raises:
            TimeoutError: they were not played in time.
            Exception: whatever was raised in the background.
        """
        if self._background is not None:
            self._background.stop(timeout_s, finish=True)
            self._background = None
