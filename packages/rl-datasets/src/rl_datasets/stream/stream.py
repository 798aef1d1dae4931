"""A thread that reads episodes into a ring of rows, ahead of what is drawn of it."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count

from rl_datasets.chunk import Chunk, chunks
from rl_datasets.convert import dataset_tag
from rl_datasets.episodes import EpisodeSource
from rl_datasets.report import DatasetReport
from rl_datasets.stream.pace import Pace
from rl_replay import LazyTensorStorage, ReplayBuffer, RoundRobinWriter
from rl_tensordict import as_key
from rl_tensordict.arguments import check_number, check_whole

_RING_BYTES = 1 << 30
_MOST_ROWS, _FEWEST_ROWS = 1 << 20, 1 << 10
_WRITE_BYTES = 1 << 21  # samples wait for such a write at most


@dataclass(frozen=True)
class StreamOptions:
    """How a dataset is streamed.

    Args:
        ring_rows: Rows of the ring; as many as one GiB holds unless given. What is in memory is the
            ring, and the episodes that are read at the moment.
        draws_per_row: How often a row is drawn before another one takes its place, on the average.
        epochs: How often the files are read; without end unless given.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> StreamOptions(ring_rows=50_000, epochs=1).draws_per_row
        1.0
    """

    ring_rows: int | None = None
    draws_per_row: float = 1.0
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.ring_rows is not None:
            check_whole("ring_rows", self.ring_rows, 16)
        check_number("draws_per_row", self.draws_per_row)
        if not 0 < self.draws_per_row < math.inf:
            raise ValueError(f"draws_per_row must be above 0, got {self.draws_per_row}.")
        if self.epochs is not None:
            check_whole("epochs", self.epochs, 1)


class StreamWriter(RoundRobinWriter):
    """Allows writes by the thread of a stream alone."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def check(self, count: int) -> None:
        """Raises in any other thread."""
        del count
        if threading.current_thread() is not self.thread:
            raise RuntimeError(
                "the rows of a stream come from its files: make another buffer to write to."
            )


class Stream:
    """Episodes of a source, written to the ring of a buffer in the background."""

    # A source that fits into the ring is read once. The first episodes are read when it is made, so
    # that files which cannot be read are an error there.
    # storage: The ring.
    # writer: The writer of its buffer.
    # report: What was found so far; an episode is counted once.
    # pace: Who waits for whom.

    def __init__(self, source: EpisodeSource, dataset: str, options: StreamOptions) -> None:
        self._source, self._epochs = source, options.epochs
        self._next_id = dataset_tag(dataset) << 32
        self.report = DatasetReport(dataset, source.format)
        self.report.assumptions, self.report.lossy = source.assumptions, source.lossy
        self.report.left_out, self.report.metadata = source.left_out, source.metadata
        self._chunks = self._read(counted=True)
        self._first = next(self._chunks, None)
        if self._first is None:
            raise ValueError(f"{dataset}: there is no step.")
        row_bytes = max(1, self._first.nbytes // len(self._first))
        fitting = min(max(_RING_BYTES // row_bytes, _FEWEST_ROWS), _MOST_ROWS)
        ring_rows = int(options.ring_rows or fitting)
        once = [as_key(key) for key in self._first.observations]
        self.storage = LazyTensorStorage(ring_rows, lossless=once or False)
        self._write_rows = max(1, min(ring_rows // 4, _WRITE_BYTES // row_bytes))
        self.pace = Pace(ring_rows, options.draws_per_row)
        self.writer = StreamWriter()

    def start(self, buffer: ReplayBuffer) -> None:
        """Begins to fill a buffer over the ring; the thread ends with it at the latest."""
        self.writer.thread = self._thread = threading.Thread(
            target=self._run, args=(weakref.ref(buffer),), name="rl-datasets stream", daemon=True
        )
        weakref.finalize(buffer, self.close)
        self._thread.start()

    def take(self, rows: int, timeout: float | None = None) -> bool:
        """Waits until so many rows may be drawn; False where the stream has ended."""
        return self.pace.take(rows, self._thread, timeout)

    def close(self) -> None:
        """Ends the thread, and waits until it has."""
        self.pace.close()
        if self._thread is not threading.current_thread():  # a buffer may be collected in it
            self._thread.join()

    def _run(self, buffer: weakref.ref[ReplayBuffer]) -> None:
        """Writes all epochs; what stops it is raised by the next sample."""
        try:
            with closing(self._chunks):
                total = self._write(chain([self._first], self._chunks), buffer)
            self._first = None
            if total <= self.storage.max_size:
                self.pace.end(math.inf if self._epochs is None else total * self._epochs)
                return
            for _ in range(1, self._epochs) if self._epochs else count():
                with closing(self._read(counted=False)) as again:
                    self._write(again, buffer)
                if self.pace.is_closed:
                    return
            self.pace.end()
        except BaseException as error:
            self.pace.fail(error)

    def _write(self, found: Iterable[Chunk | None], buffer: weakref.ref[ReplayBuffer]) -> int:
        """Writes chunks as there is room; how many rows that were."""
        total = 0
        for chunk in found:
            assert chunk is not None  # there is a first one
            rows = chunk.rows(self._next_id)
            self._next_id += int(chunk.starts.sum())
            for piece in rows.split(self._write_rows):  # episodes too, whose rows are linked later
                if not self.pace.await_room(len(piece)) or (target := buffer()) is None:
                    return total
                target.extend(piece)
                del target  # no reference while it waits, or the buffer would never be collected
                self.pace.note_written(len(piece))
                total += len(piece)
        return total

    def _read(self, *, counted: bool) -> Generator[Chunk]:
        """The episodes once, some at a time, until the stream is closed."""
        report = self.report
        for group, chunk in chunks(self._source.episodes(), size=_WRITE_BYTES):
            if counted:
                report.episodes += len(group)
            if chunk is None:
                continue
            if counted:
                chunk.take_into(report)
            yield chunk
