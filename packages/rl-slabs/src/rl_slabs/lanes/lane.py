"""The writing end of a lane, and the words that it shares with everyone.

A lane is a ring of rows with 64 bytes of words in front, one cache line:

    thread, started, place      who holds it (see `owners`)
    reserved                    rows that were ever given out to be written; never goes back
    published                   rows that are completely written
    floor                       rows before this one were dropped by `empty`
    side                        one word for the layer above
    beat                        when its writer last claimed it, reserved or published, in
                                monotonic nanoseconds; never the same twice

    writer   reserved = max(reserved, published + n)  ->  rows  ->  published += n
    reader   published  ->  gather  ->  reserved;  row q is valid iff q >= reserved - capacity

A row that a reader gathered while it was overwritten was reserved before its first byte changed,
so the reader, who looks at `reserved` last, sees that and drops it. Each word has one writer and is
stored and loaded in one piece; x86-64 keeps stores among stores and loads among loads in order.
"""

from __future__ import annotations

import threading
import time
from operator import index
from typing import NamedTuple, SupportsIndex

import torch

from rl_slabs.lanes.owners import Owner
from rl_slabs.memory.slab import Slab
from rl_tensordict import CPU

THREAD, STARTED, PLACE, RESERVED, PUBLISHED, FLOOR, SIDE, BEAT = range(8)

LANE_SHIFT = 48
"""A row's number is its place in the life of its lane, with the lane's number in the bits above."""

LANE_MASK = (1 << LANE_SHIFT) - 1
"""The bits of a row's number that count within its lane."""


class Span(NamedTuple):
    """Rows given out to be written.

    Attributes:
        rows: Their positions in the slab: a slice, or `[n]` int64 where the ring closes in between.
        numbers: Their row numbers, never used again.
    """

    rows: slice | torch.Tensor
    numbers: range


class Lane:
    """The writing end of one lane; it belongs to the thread that claimed it.

    Get one from `Lanes.claim`. A writer that ends between `reserve` and `publish`, however it
    ends, loses that span and the old rows under it, nothing else.

    Attributes:
        number: Which lane.
        capacity: Rows in its ring.
        until: Up to which row its writer keeps it before it looks for another; see `Lanes.claim`.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl_slabs import Lanes, RowSchema
        >>> slab = Slab.private(RowSchema({"reward": (torch.float32, (1,))}), 5)
        >>> lane = Lanes(slab).claim()
        >>> slab.write(lane.reserve(3).rows, TensorDict({"reward": torch.ones(3, 1)}))
        >>> lane.publish(3)
    """

    def __init__(self, slab: Slab, number: int, owner: Owner) -> None:
        self.number = number
        self.capacity = slab.capacity // slab.lanes
        self._slab = slab
        self._owner = owner
        self._words = memoryview(slab.words[number])
        self.until = 0
        self._open = 0
        self._before = 0

    @property
    def published(self) -> int:
        """Rows published in the life of the lane."""
        return self._words[PUBLISHED]

    @property
    def floor(self) -> int:
        """The first row that `empty` did not drop, counted in the life of the lane."""
        return self._words[FLOOR]

    @property
    def side(self) -> int:
        """One word for the layer above; only the lane's writer may set it."""
        return self._words[SIDE]

    @side.setter
    def side(self, value: int) -> None:
        self._require_mine()
        self._words[SIDE] = value

    def reserve(self, count: SupportsIndex) -> Span:
        """Rows to write next. They, and what was in them, cannot be read from now on.

        The span begins after the last published row, so reserving again, before publishing,
        gives the same rows, more or fewer of them.

        Raises:
            ValueError: More rows than the lane has, or fewer than one; or the slab is closed.
            RuntimeError: The lane is not this thread's.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> slab = Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)
            >>> Lanes(slab).claim().reserve(3)
            Span(rows=slice(0, 3, None), numbers=range(0, 3))
        """
        self._require_mine()
        count = _whole(count)
        if not 0 < count <= self.capacity:
            raise ValueError(
                f"a span must have 1 to {self.capacity} rows, the capacity of a lane: got {count}. "
                "Write it in pieces, or make a slab with more rows or fewer lanes."
            )
        words = self._words
        first, self._before = words[PUBLISHED], words[RESERVED]
        # Never back: rows that a killed writer half overwrote are older than this span and would
        # look whole again.
        words[RESERVED] = max(words[RESERVED], first + count)
        words[BEAT] = next_heartbeat(words[BEAT])
        self._open = count
        fence()  # the reservation is seen before any byte of the rows changes
        base = self.number << LANE_SHIFT
        return Span(self._place(first, count), range(base + first, base + first + count))

    def publish(self, count: SupportsIndex) -> None:
        """Let the first `count` rows of the span be read; the rest of it stays open.

        Raises:
            ValueError: More rows than are reserved; or the slab is closed.
            RuntimeError: The lane is not this thread's.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> slab = Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)
            >>> lane = Lanes(slab).claim()
            >>> _ = lane.reserve(3)
            >>> lane.publish(2)
            >>> lane.published
            2
        """
        self._require_mine()
        count = _whole(count)
        if not 0 <= count <= self._open:
            raise ValueError(
                f"{self._open} rows are reserved and not yet published: cannot publish {count}. "
                "Call reserve first."
            )
        self._open -= count
        fence()  # the rows are seen before they are published
        self._words[PUBLISHED] += count
        self._words[BEAT] = next_heartbeat(self._words[BEAT])

    def cancel(self) -> None:
        """Give the span back untouched: no byte of its rows was written, so they can be read again.

        Raises:
            ValueError: The slab is closed.
            RuntimeError: The lane is not this thread's, or part of the span is published.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> lane = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)).claim()
            >>> for _ in range(5):
            ...     _ = lane.reserve(1), lane.publish(1)
            >>> _ = lane.reserve(3)
            >>> lane.cancel(), lane.lost
            (None, 0)
        """
        self._require_mine()
        words = self._words
        if words[PUBLISHED] > self._before:
            raise RuntimeError("part of the span is published already: there is nothing to cancel.")
        # what a killed writer had reserved before stays reserved
        words[RESERVED] = self._before
        self._open = 0

    def restart(self) -> None:
        """Drop every row; the next one is stored at the start of the lane under a new number.

        The numbers that are passed over are counted in `side`.

        Raises:
            ValueError: The slab is closed.
            RuntimeError: The lane is not this thread's.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> lane = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)).claim()
            >>> lane.reserve(3), lane.publish(3), lane.restart()
            (Span(rows=slice(0, 3, None), numbers=range(0, 3)), None, None)
            >>> lane.reserve(1), lane.side
            (Span(rows=slice(0, 1, None), numbers=range(5, 6)), 2)
        """
        self._require_mine()
        words, capacity = self._words, self.capacity
        begin = -(-max(words[PUBLISHED], words[FLOOR]) // capacity) * capacity
        words[FLOOR] = begin  # first, so that no reader reads past it
        fence()
        self._open, words[RESERVED] = 0, max(words[RESERVED], begin)
        # one line, so that no interrupt leaves one without the other
        words[SIDE], words[PUBLISHED] = words[SIDE] + begin - words[PUBLISHED], begin

    @property
    def lost(self) -> int:
        """Old rows that cannot be read, because a span over them was reserved."""
        return self._words[RESERVED] - self._words[PUBLISHED]

    def release(self) -> None:
        """Give the lane back; its rows stay readable. A thread that ends need not do this.

        Raises:
            ValueError: The slab is closed.
            RuntimeError: The lane is not this thread's.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.claim().release()
            >>> lanes.states()[0].standing
            'free'
        """
        self._require_mine()
        self._words[THREAD] = 0
        self._open = 0

    def owned_by_this_thread(self) -> bool:
        """Whether the calling thread holds the lane; a forked child's first thread does not.

        Example:
            >>> from rl_slabs import Lanes, RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.claim().owned_by_this_thread()
            True
        """
        mine, words = self._owner, self._words
        return (
            threading.get_native_id() == mine.thread == words[THREAD]
            and words[STARTED] == mine.started
        )

    def _require_mine(self) -> None:
        if self._slab.closed:
            raise ValueError("this slab is closed: open it again, or keep it open while in use.")
        if not self.owned_by_this_thread():
            raise RuntimeError(
                f"lane {self.number} was claimed by thread {self._owner.thread} and is now held "
                f"by {self._words[THREAD] or 'no thread'}, this is thread "
                f"{threading.get_native_id()}: every thread and every forked process claims its "
                "own with lanes.claim()."
            )

    def _place(self, first: int, count: int) -> slice | torch.Tensor:
        base, start = self.number * self.capacity, first % self.capacity
        if start + count <= self.capacity:
            return slice(base + start, base + start + count)
        return torch.arange(start, start + count, device=CPU) % self.capacity + base


def next_heartbeat(before: int) -> int:
    """A heartbeat after `before`: the time, or one more if the clock has not advanced."""
    return max(time.monotonic_ns(), before + 1)


def fence() -> None:
    """Orders all loads and stores before the call before all after it (full memory fence)."""
    # Taking a lock is an atomic read-modify-write, which on x86-64 orders everything before it
    # against everything after. Plain stores need no such thing there, but the non-temporal ones
    # and the string instructions of a large memcpy do. A new lock each time, because one that
    # is shared could be held at a fork.
    threading.Lock().acquire(blocking=False)


def _whole(count: SupportsIndex) -> int:
    try:
        return index(count)
    except (TypeError, RuntimeError):
        raise TypeError(f"a number of rows must be an integer: got {count!r}.") from None
