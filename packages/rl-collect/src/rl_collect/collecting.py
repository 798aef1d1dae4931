"""What both kinds of collectors are: asked for batches, or left to go on in the background."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tensordict import TensorDictBase

from rl_collect.progress import Progress

P = ParamSpec("P")
R = TypeVar("R")


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
        self._lock = threading.Lock()  # over the calls, and whether they are still served
        self._calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is more to do."""
        return self._thread.is_alive()

    def between(self, call: Callable[[], R], timeout_s: float = 600.0) -> R:
        """Call something in the thread, between two calls of its work.

        Args:
            call: what to call.
            timeout_s: longest time to wait for the work under way.

        Returns:
            What it returns.

        Raises:
            TimeoutError: the work under way takes longer.
            Exception: whatever it raises.
        """
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
            raise TimeoutError(self._lateness(timeout_s))
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _lateness(self, timeout_s: float) -> str:
        return f"{self._name} did not end within {timeout_s} s: its step takes longer, or hangs."

    def _run(self) -> None:
        try:
            while not self._is_asked_to_stop.is_set() and self._work():
                self._serve()
        except BaseException as error:  # handed to whoever stops it
            self._failure = error
        finally:
            with self._lock:
                self._is_over = True
            self._serve()

    def _serve(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for done, call in calls:
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(call())
            except BaseException as error:  # handed to whoever called
                done.set_exception(error)


def between_batches(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Let a method of a collector run where no batch is under way, also beside the background.

    Args:
        method: of a `Collecting`, that was not shut down.

    Returns:
        The method to put in its place.

    Example:
        >>> from rl_collect import Collector
        >>> Collector.reset.__name__
        'reset'
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._require_open()
        if self._background is None:
            return method(self, *args, **kwargs)
        found: R = self._background.between(lambda: method(self, *args, **kwargs))
        return found

    return call


class Collecting:
    """A collection under way: iterated, asked for one more batch, or going on by itself.

    Args:
        total_frames: steps to play in all; -1 for no end.
        replay_buffer: where batches go; None for the caller.
        progress: show a bar.

    Example:
        >>> from rl_collect import Collector
        >>> issubclass(Collector, Collecting)
        True
    """

    def __init__(self, total_frames: int, replay_buffer: Any, *, progress: bool) -> None:
        self._total, self._buffer = total_frames, replay_buffer
        self._progress = Progress(total_frames, is_on=progress)
        self._background: Background | None = None
        self._is_shut = False

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        while self._may_play():
            batch = self._batch()
            # the last steps may have completed no trajectory
            if batch is not None or self._buffer is not None:
                yield batch
        self._progress.close()

    def __len__(self) -> int:
        if self._total == -1:
            msg = "this collector has no end: give total_frames, or do not ask for its length."
            raise TypeError(msg)
        return -(-self._total // self._frames_of_batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def next(self) -> TensorDictBase | None:
        """One more batch; None where there is none, or it went to the buffer.

        Raises:
            RuntimeError: the collector was shut down, or runs in the background.

        Example:
            >>> from rl_collect import Collector
            >>> from rl_envs.testing import CountingEnv
            >>> Collector(CountingEnv(), frames_per_batch=4).next().shape
            torch.Size([4])
        """
        return self._batch() if self._may_play() else None

    @property
    def is_running(self) -> bool:
        """Whether batches are collected in the background."""
        return self._background is not None and self._background.is_running

    def start(self) -> None:
        """Collect into the buffer in the background, until all frames are played or `shutdown`.

        What is asked meanwhile, as `stats()` or new weights, waits for the batch under way.

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
            try:
                self._background.stop(timeout_s, finish=True)
            finally:
                if not self._background.is_running:
                    self._background = None

    def shutdown(self, timeout_s: float = 60.0) -> None:
        """Stop; see the two collectors."""
        raise NotImplementedError

    @property
    def frames(self) -> int:
        """Steps played so far."""
        raise NotImplementedError

    @property
    def _frames_of_batch(self) -> int:
        raise NotImplementedError

    def _batch(self) -> TensorDictBase | None:
        """Play what is handed out next, and hand it out or store it."""
        raise NotImplementedError

    def _waits(self) -> bool:
        """Whether something can be handed out without playing on."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._is_shut:
            msg = "this collector was shut down: make a new one."
            raise RuntimeError(msg)

    def _may_play(self) -> bool:
        """Whether the caller can have another batch."""
        self._require_open()
        if self.is_running:
            msg = (
                "this collector runs in the background: batches go to the buffer, take them there."
            )
            raise RuntimeError(msg)
        return self._has_more()

    def _has_frames_left(self) -> bool:
        return self._total == -1 or self.frames < self._total

    def _has_more(self) -> bool:
        return self._has_frames_left() or self._waits()

    def _work(self) -> bool:
        if self._has_more():
            self._batch()
        return self._has_more()
