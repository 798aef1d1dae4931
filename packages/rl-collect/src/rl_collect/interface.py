"""What both kinds of collectors are: asked for batches, or left to continue in the background."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase

from rl_collect.arguments import check_count, check_seconds
from rl_collect.background_loop import BackgroundLoop, TimeLimit, forget, shut_at_exit
from rl_collect.progress import Progress
from rl_tensordict import CPU

P = ParamSpec("P")
R = TypeVar("R")


def between_batches(
    method: Callable[Concatenate[Any, P], R], *, needs_open: bool = True
) -> Callable[Concatenate[Any, P], R]:
    """Run a method of a collector between two batches, also while it collects in the background."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._is_shut and not needs_open:
            return method(self, *args, **kwargs)
        self._require_open()
        if self._background is None:
            return method(self, *args, **kwargs)
        found: R = self._background.between(lambda: method(self, *args, **kwargs))
        return found

    return call


last_known = functools.partial(between_batches, needs_open=False)
"""Run a method between two batches, and also after `shutdown`."""


class CollectorInterface:
    """A collection under way: iterated, asked for one more batch, or running in the background.

    Args:
        total_frames: steps to play in all; -1 for no end.
        replay_buffer: where batches go; None for the caller.
        progress: show a bar.
        shutdown_timeout_s: how long `shutdown` waits for a batch under way.

    Example:
        >>> from rl_collect import Collector
        >>> issubclass(Collector, CollectorInterface)
        True
    """

    def __init__(
        self,
        total_frames: int,
        replay_buffer: Any,
        *,
        progress: bool,
        shutdown_timeout_s: float = 60.0,
    ) -> None:
        self._shutdown_timeout_s = check_seconds(shutdown_timeout_s, "shutdown_timeout_s")
        self._stored = 0  # frames in the buffer, for who waits for the first ones
        self._has_set_timeout = False  # of the buffer
        self._total, self._buffer = total_frames, replay_buffer
        self._progress = Progress(total_frames, is_shown=progress)
        self._background: BackgroundLoop | None = None
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
        return -(-self._total // self.frames_of_batch)

    def __bool__(self) -> bool:  # a collector without an end has no length
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def next(self) -> TensorDictBase | None:
        """One more batch; None if there is none, or it went to the buffer.

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

    def start(self, *, min_frames: int = 0, timeout_s: float = 60.0) -> None:
        """Collect into the buffer in the background, until all frames are played or `shutdown`.

        What is asked meanwhile, as `stats()` or new weights, waits for the batch under way. A
        program that ends meanwhile shuts the collector down. A buffer with `first_rows_timeout`,
        as those of rl-replay, is told to wait for its first rows in `sample()` until then.

        Args:
            min_frames: return only when so many frames, or all, are in the buffer.
            timeout_s: longest time to wait for them, here and in `sample()`.

        Raises:
            RuntimeError: there is no buffer, or it runs already.
            TimeoutError: the first frames did not come in time; it continues running.
            Exception: whatever was raised in the background before they came.

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
            >>> collector.start(min_frames=8)
            >>> len(buffer) >= 2
            True
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
        check_count(min_frames, 0, "min_frames")
        timeout_s = check_seconds(timeout_s, "timeout_s")
        # tensordict would import h5py in the thread, which crashes where the program has ended
        TensorDict.from_any(torch.empty(0, device=CPU))
        background = self._background = BackgroundLoop(self._work, "the collector's thread")
        shut_at_exit(self)
        self._let_samples_wait(timeout_s)
        if not background.wait_for(lambda: self._stored >= min_frames, timeout_s):
            msg = (
                f"waited {timeout_s:g} s for {min_frames} frames in the buffer, and {self._stored} "
                "came: a batch is written when it is whole, and trajs_per_batch waits for "
                "trajectories. The collector continues running."
            )
            raise TimeoutError(msg)

    def _let_samples_wait(self, timeout_s: float) -> None:
        if getattr(self._buffer, "first_rows_timeout", None) == 0:  # else somebody has set it
            self._buffer.first_rows_timeout, self._has_set_timeout = timeout_s, True

    def _let_samples_fail(self) -> None:
        """The writer has ended: an empty buffer stays empty."""
        if self._has_set_timeout:
            self._buffer.first_rows_timeout, self._has_set_timeout = 0.0, False

    def wait(self, timeout_s: float = 600.0) -> None:
        """Wait until the background has played all frames.

        Args:
            timeout_s: longest time to wait.

        Raises:
            TimeoutError: they were not played in time.
            Exception: whatever was raised in the background.
        """
        timeout_s = check_seconds(timeout_s, "timeout_s")
        if self._background is not None:
            try:
                self._background.finish(timeout_s)
            finally:
                if not self._background.is_running:
                    self._background = None
                    self._let_samples_fail()

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop, write what is unfinished as truncations, end environments and workers.

        A second call does nothing. It is called at the end of a `with` block, and at the end of a
        program where the collector runs in the background.

        Args:
            timeout_s: longest time to wait for batches under way; `shutdown_timeout_s` of the
                constructor where None. After a few seconds the log says what is waited for.

        Raises:
            TimeoutError: the batch under way in the background did not end in time.
            Exception: whatever was raised in the background.
        """
        limit_s = self._shutdown_timeout_s
        if timeout_s is not None:
            limit_s = check_seconds(timeout_s, "timeout_s")
        if self._is_shut:
            return
        forget(self)
        time_limit = TimeLimit(limit_s, "shutdown(timeout_s=...) sets the limit")
        try:
            if self._background is not None:
                self._background.stop(time_limit)
            self._write_unfinished(time_limit)
        finally:
            self._is_shut = True  # not before: the background would find it closed
            self._progress.close()
            self._let_samples_fail()
            self._close(time_limit)

    def async_shutdown(self, timeout_s: float | None = None) -> None:
        """Stop: the same as `shutdown`."""
        self.shutdown(timeout_s)

    def _write_unfinished(self, time_limit: TimeLimit) -> None:
        """Write to the buffer what no batch has returned."""
        raise NotImplementedError

    def _close(self, time_limit: TimeLimit) -> None:
        """Close environments, or end workers."""
        raise NotImplementedError

    @property
    def frames(self) -> int:
        """Steps played so far."""
        raise NotImplementedError

    @property
    def frames_of_batch(self) -> int:
        """Steps that a batch has, of all environments together."""
        raise NotImplementedError

    def _count_stored(self) -> int:
        """Frames that are in the buffer, between two batches."""
        raise NotImplementedError

    def _batch(self) -> TensorDictBase | None:
        """Play what is returned next, and hand it out or store it."""
        raise NotImplementedError

    def _waits(self) -> bool:
        """Whether something can be returned without playing on."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._is_shut:
            msg = "this collector was shut down: make a new one."
            raise RuntimeError(msg)

    def _may_play(self) -> bool:
        """Whether the caller can have another batch."""
        self._require_open()
        if self._background is not None and self._background.is_running:
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
            self._stored = self._count_stored()
        return self._has_more()
