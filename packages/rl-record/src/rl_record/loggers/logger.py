"""The interface of all loggers, and the thread that writes for them."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import torch
from torch import Tensor

from rl_record.loggers.event import (
    Event,
    Histogram,
    Metrics,
    Number,
    Rewind,
    RunSettings,
    SingleFrames,
    Sink,
    Video,
    numbers,
    taken,
)
from rl_record.loggers.run_folder import check_inside, written
from rl_tensordict import as_tensor
from rl_tensordict.arguments import (
    check_integer,
    check_number,
    check_state,
    check_type,
    check_whole,
    shown,
)

LULL_S = 0.1  # between two looks into the queue


class Logger:
    """Takes what a training loop logs, and hands it to a sink in a thread of its own.

    The loop pays for the hand-over: numbers are kept as they are, a tensor of a device is copied
    there and read in the thread. What a sink raises is raised by the next call.

    Steps are counted by the caller: frames, updates, whatever is the same for all that belongs
    together. Without a step, an entry gets the one after the last.

    Args:
        exp_name: name of the run.
        sink: where events go.

    Example:
        >>> class Printer:
        ...     def write(self, events):
        ...         for event in events:
        ...             print(event.step, dict(event.values))
        ...
        ...     def close(self):
        ...         print("closed")
        >>> with Logger("a run", Printer()) as logger:
        ...     logger.log_metrics({"loss": 0.5, "return": 3}, step=100)
        100 {'loss': 0.5, 'return': 3}
        closed
    """

    def __init__(self, exp_name: str, sink: Sink) -> None:
        check_type("exp_name", exp_name, str, "the name of the run")
        self.exp_name = exp_name
        self.last_step = -1
        self._last_of: dict[str, int] = {}  # largest step, by name
        self._was_backwards = False
        self._writer = WriterThread(sink)
        weakref.finalize(self, self._writer.close, 60.0)  # also at the end of a script

    def log_scalar(self, name: str, value: Number, step: int | None = None) -> None:
        """Log a number.

        Args:
            name: name of the curve; a "/" groups names, as in ``"loss/critic"``.
            value: a number, or a tensor or an array of one element. NaN and infinite ones are kept,
                and counted in `stats`.
            step: when it was; the step after the last one by default.

        Raises:
            TypeError: the value is no number, or the step none.
            ValueError: the logger is closed.
        """
        check_type("name", name, str, "a name")
        self.log_metrics({name: value}, step)

    def log_metrics(self, metrics: Mapping[str, Number], step: int | None = None) -> None:
        """Log numbers of one step.

        Args:
            metrics: numbers by name, see `log_scalar`. A tensordict of losses may be passed.
            step: when they were; the step after the last one by default.

        Raises:
            TypeError: a value is no number, or the step none.
            ValueError: the logger is closed.
        """
        try:
            entries = metrics.items()
        except AttributeError:
            check_type("metrics", metrics, Mapping, "numbers by name")
            raise
        values = {
            name: value if type(value) is float else taken(name, value) for name, value in entries
        }
        with self._writer.lock:  # several threads may log
            step = self._step(step)
            last, backwards = self._last_of, False
            for name in values:
                if last.get(name, step) > step:
                    backwards = True
                else:
                    last[name] = step
            if backwards and not self._was_backwards:
                self._warn_backwards(step)
            self._was_backwards = backwards
            self._writer.put(Metrics(values, step, time.time(), backwards))

    def log_histogram(
        self, name: str, data: Tensor, step: int | None = None, *, bins: int = 30
    ) -> None:
        """Log how numbers are distributed.

        Args:
            name: name of the curve.
            data: a tensor of any shape; it is copied.
            step: when they were; the step after the last one by default.
            bins: number of intervals of equal width between the least and the largest.

        Raises:
            TypeError: `data` is no tensor of numbers.
            ValueError: there is no number, `bins` is below 1, or the logger is closed.
        """
        check_type("name", name, str, "a name")
        values = _tensor(name, data, "real numbers")
        check_whole("bins", bins, 1)
        if not values.numel() or values.is_complex():
            msg = f"{name!r}: expected real numbers, got {values.dtype} {list(values.shape)}."
            raise ValueError(msg)
        copy = values.detach().clone()
        self._writer.put(Histogram(name, copy, bins, self._step(step), time.time()))

    def log_video(
        self,
        name: str,
        video: Tensor | Sequence[Tensor] | Path | str,
        step: int | None = None,
        *,
        fps: float = 30.0,
    ) -> None:
        """Log a video; frames are encoded in the thread that writes.

        Args:
            name: what it shows.
            video: frames, uint8 ``[T, C, H, W]`` or ``[1, T, C, H, W]`` with 1, 3 or 4 channels,
                which are copied; or a list of frames ``[C, H, W]``, which are not copied and must
                not change any more; or a file that an encoder has made.
            step: when it was; the step after the last one by default.
            fps: frames a second.

        Raises:
            TypeError: frames are not uint8.
            ValueError: frames have another shape, the name leaves the folder of videos, `fps` is
                not above 0, or the logger is closed.
            FileNotFoundError: there is no such file.
        """
        check_inside("name", name)
        check_number("fps", fps)
        if not 0 < fps < inf:
            msg = f"{name!r}: expected a number of frames a second above 0, got fps={fps}."
            raise ValueError(msg)
        if isinstance(video, list | tuple) and video and isinstance(video[0], Tensor):
            single = _single_frames(name, video)
            self._writer.put(SingleFrames(name, single, self._step(step), float(fps), time.time()))
            return
        frames = _existing(video) if isinstance(video, Path | str) else _frames(name, video)
        self._writer.put(Video(name, frames, self._step(step), float(fps), time.time()))

    def log_hparams(self, settings: Mapping[str, Any]) -> None:
        """Log what the run was started with.

        Args:
            settings: values by name; what is neither a number, a text nor a list or mapping of
                such is written as its `repr`. They are read now.

        Raises:
            TypeError: it is no mapping.
            ValueError: the logger is closed.
        """
        check_type("settings", settings, Mapping, "a mapping of values by name")
        self._writer.put(RunSettings(written(settings), time.time()))

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until all that was logged is written.

        Args:
            timeout_s: seconds to wait at most.

        Raises:
            TimeoutError: it took longer.
            Exception: what the sink raised.
        """
        self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 60.0) -> None:
        """Write what is left, and end the thread; a second call does nothing.

        Args:
            timeout_s: seconds to wait at most.

        Raises:
            TimeoutError: it took longer.
            Exception: what the sink raised.
        """
        self._writer.close(timeout_s)

    def stats(self) -> dict[str, Any]:
        """Numbers of events written and waiting, and of values that are not finite, by name."""
        return self._writer.stats()

    def state_dict(self) -> dict[str, Any]:
        """The steps so far, for a checkpoint of the run."""
        return {"last_step": self.last_step, "last_of": dict(self._last_of)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: events logged after its step are void for readers of the run.

        Args:
            state: what `state_dict` returned.

        Raises:
            TypeError: it is no mapping.
            ValueError: it is none of a logger, or the logger is closed.
        """
        check_state("a logger", state, ("last_of", "last_step"))
        check_type("last_of", state["last_of"], Mapping, "steps by name")
        self.last_step = check_integer("last_step", state["last_step"])
        self._last_of = dict(state["last_of"])
        self._writer.put(Rewind(self.last_step, time.time()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """The name of the run and its last step."""
        return f"{type(self).__name__}({self.exp_name!r}, last_step={self.last_step})"

    def _step(self, given: int | None) -> int:
        """The step of an entry."""
        with self._writer.lock:
            step = self.last_step + 1 if given is None else check_integer("step", given)
            self.last_step = max(step, self.last_step)
            return step

    def _warn_backwards(self, step: int) -> None:
        msg = (
            f"step {step} comes after step {self.last_step} of {self.exp_name!r}. It is kept, and "
            "marked as backwards. Count steps in one unit, and across a resume."
        )
        warnings.warn(msg, UserWarning, stacklevel=4)


class WriterThread:
    """Hands events to a sink, in their order, in a thread that starts with the first one."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.queue: SimpleQueue[Event | SingleFrames | threading.Event] = SimpleQueue()
        self.num_written, self.not_finite = 0, Counter[str]()
        self.error: Exception | None = None  # of the sink, until somebody is told
        self.thread: threading.Thread | None = None
        self.is_awaited = threading.Event()  # by a caller that flushes or closes
        self.pid, self.is_closed, self.lock = os.getpid(), False, threading.RLock()

    def put(self, event: Event | SingleFrames) -> None:
        """Hand an event over; raises what the sink raised before."""
        self._require_own_process()
        with self.lock:
            if self.error is not None:
                self._raise()
            if self.is_closed:
                msg = "the logger is closed: make another one, with resume=True to go on in its "
                raise ValueError(msg + "file.")
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="rl-record", daemon=True)
                self.thread.start()
            self.queue.put(event)

    def flush(self, timeout_s: float) -> None:
        """Wait until what was handed over is written."""
        self._require_own_process()
        if self.thread is not None and not self.is_closed:
            reached = threading.Event()
            self.queue.put(reached)
            self.is_awaited.set()
            if not reached.wait(timeout_s):
                raise TimeoutError(self._lateness(timeout_s))
        self._raise()

    def close(self, timeout_s: float) -> None:
        """Write what is left, close the sink, end the thread."""
        if self.is_closed or os.getpid() != self.pid:
            return
        with self.lock:
            self.is_closed = True
            self.queue.put(_END)
            self.is_awaited.set()
        if self.thread is None:
            self.sink.close()
        elif threading.current_thread() is not self.thread:  # garbage is collected there too
            self.thread.join(timeout_s)
            if self.thread.is_alive():
                raise TimeoutError(self._lateness(timeout_s))
            self._raise()

    def stats(self) -> dict[str, Any]:
        """Counts of events and of numbers that are not finite."""
        waiting, bad = self.queue.qsize(), dict(self.not_finite)
        return {"written": self.num_written, "waiting": waiting, "not_finite": bad}

    def _require_own_process(self) -> None:
        if os.getpid() != self.pid:
            msg = f"the logger belongs to process {self.pid}: make one in this process."
            raise RuntimeError(msg)

    def _lateness(self, timeout_s: float) -> str:
        return f"the sink has not written {self.queue.qsize()} events after {timeout_s} s."

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        ends = False
        while not ends:
            found = [self.queue.get()]
            try:
                while True:
                    found.append(self.queue.get_nowait())
            except Empty:
                pass
            ends = _END in found
            events = [event for event in found if not isinstance(event, threading.Event)]
            for is_metrics, group in groupby(events, lambda event: isinstance(event, Metrics)):
                # others may fail alone, as a video without room on the disk does
                for part in [list(group)] if is_metrics else ([event] for event in group):
                    self._try(self._write, part)
            if ends:
                self._try(self.sink.close)
            for event in found:
                if isinstance(event, threading.Event):
                    event.set()
            # entries that come meanwhile wake no thread, which costs their caller more
            if not ends:
                self.is_awaited.wait(LULL_S)
                self.is_awaited.clear()  # before the queue is read, as it is set after an entry

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call; the first error is kept, and raised where the next entry is logged."""
        try:
            call(*arguments)
        except Exception as error:
            self.error = self.error or error

    def _write(self, events: Sequence[Event | SingleFrames]) -> None:
        self.sink.write([self._read(event) for event in events])
        self.num_written += len(events)

    def _read(self, event: Event | SingleFrames) -> Event:
        """An event with numbers in the place of tensors, or with one tensor for single frames."""
        if isinstance(event, SingleFrames):
            return event.as_video()
        if not isinstance(event, Metrics):
            return event
        values = numbers(event.values)
        self.not_finite.update(name for name, value in values.items() if not isfinite(value))
        return Metrics(values, event.step, event.time, event.is_backwards)


_END = threading.Event()


def _tensor(name: str, data: Any, expected: str) -> Tensor:
    """Data as a tensor."""
    try:
        return as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        msg = f"{name!r}: expected {expected}, got {shown(data)}."
        raise TypeError(msg) from None


def _existing(path: Path | str) -> Path:
    found = Path(path)
    if not found.is_file():
        msg = f"{found} is no file: pass frames, or a video that was encoded."
        raise FileNotFoundError(msg)
    return found


def _single_frames(name: str, video: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Frames ``[C, H, W]``, as they are."""
    _check_frames(name, video[0][None])
    shape = video[0].shape
    for place, frame in enumerate(video):
        alike = isinstance(frame, Tensor) and frame.shape == shape and frame.dtype == torch.uint8
        if not alike:
            msg = f"{name!r}: expected frames alike, uint8 {list(shape)} as the first one, "
            msg += f"got {shown(frame)} as frame {place}."
            raise ValueError(msg)
    return tuple(frame.detach() for frame in video)


def _frames(name: str, video: Any) -> Tensor:
    """Frames ``[T, C, H, W]``, copied."""
    frames = _tensor(name, video, "frames of uint8, or a file")
    frames = frames[0] if frames.ndim == 5 and len(frames) == 1 else frames
    _check_frames(name, frames)
    return frames.detach().clone()


def _check_frames(name: str, frames: Tensor) -> None:
    if frames.dtype != torch.uint8:
        msg = f"{name!r}: expected frames of uint8, got {frames.dtype}. Multiply by 255 and cast."
        raise TypeError(msg)
    if frames.ndim != 4 or frames.shape[1] not in (1, 3, 4) or not frames.numel():
        expected = "[T, C, H, W] with 1, 3 or 4 channels"
        msg = f"{name!r}: expected frames {expected}, got {list(frames.shape)}."
        raise ValueError(msg)
