"""How far the reader of a stream and its samples may get ahead of each other."""

from __future__ import annotations

import math
import threading
import time

_LOOK_S = 1.0  # a dead thread notifies no waiter, so look for it


class Pace:
    """Counts rows that are written to a ring and drawn of it, and lets either side wait."""

    # Each row is drawn `draws` times on average before another one takes its place:
    #   written - capacity <= drawn / draws      as the writer sees it
    #   drawn <= draws * written                 as samples see it
    # waited_s: Seconds that samples waited.

    def __init__(self, capacity: int, draws: float) -> None:
        self.capacity, self.draws = capacity, draws
        self.waited_s = 0.0
        self._changed = threading.Condition()
        self._written = self._drawn = 0
        self._supply: float | None = None  # rows to draw of in all, once every row is written
        self._error: BaseException | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the stream was closed."""
        return self._is_closed

    def await_room(self, rows: int) -> bool:
        """Waits until so many rows may be written; False where the stream is closed."""
        with self._changed:
            while not self._is_closed:
                if self._written + rows <= self.capacity + self._drawn / self.draws:
                    return True
                self._changed.wait()
        return False

    def note_written(self, rows: int) -> None:
        """Counts rows that can be drawn now."""
        with self._changed:
            self._written += rows
            self._changed.notify_all()

    def end(self, supply: float | None = None) -> None:
        """Says that nothing more is written: so many rows can be drawn of, all unless given."""
        with self._changed:
            self._supply = self._written if supply is None else supply
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Hands an error of the reader to every sample from now on."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Ends both sides' waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def take(self, rows: int, writer: threading.Thread, timeout: float | None = None) -> bool:
        """Waits until so many rows may be drawn; False where the stream has ended."""
        if 2 * rows > self.capacity * self.draws:  # else both sides could wait for each other
            raise ValueError(
                f"{rows} rows at {self.draws:g} draws per row need a ring of "
                f"{math.ceil(2 * rows / self.draws)} rows, and it has {self.capacity}: give "
                "StreamOptions(ring_rows=...)."
            )
        begin = time.perf_counter()
        with self._changed:
            while not self._may_draw(rows):
                if self._supply is not None:
                    return False
                left = math.inf if timeout is None else begin + timeout - time.perf_counter()
                if left <= 0:
                    raise TimeoutError(f"waited {timeout:g} s for {rows} rows of the stream.")
                if not writer.is_alive():
                    raise RuntimeError(
                        "the thread that reads the stream is gone, as in a forked process: make "
                        "the buffer there."
                    )
                self._changed.wait(min(left, _LOOK_S))
            self.waited_s += time.perf_counter() - begin
            self._drawn += rows
            self._changed.notify_all()
        return True

    def _may_draw(self, rows: int) -> bool:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise RuntimeError("the stream was closed: make the buffer again.")
        if self._supply is None and self._written < self.capacity / 10:
            return False  # too few to mix
        supply = self._written if self._supply is None else self._supply
        return self._drawn + rows <= self.draws * supply
