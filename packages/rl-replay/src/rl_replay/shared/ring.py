"""The ring of a shared storage, one for each lane, and the lock of updates in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.shared.files import LEFT, UPDATING
from rl_slabs import Lane, Lanes, LaneState, LazyFile, Slab, Span, Window
from rl_slabs.internals import (
    FLOOR,
    LANE_SHIFT,
    PUBLISHED,
    RESERVED,
    SIDE,
    as_array,
    as_tensor,
    claim_lock,
    fence,
)
from rl_tensordict import UnfitValue

# values of the word: files are being left, files were left
_PERHAPS, _FOR_GOOD = 1, 2


class InPlaceUpdateLock:
    """Lets one process at a time update rows in place; writers wait meanwhile."""

    def __init__(self, board: NDArray[np.int64], file: LazyFile, timeout_s: float = 5.0) -> None:
        self.board = board
        self._words = board.data
        self._file = file
        self._timeout_s = timeout_s

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keeps the rows live at entry from being overwritten until exit."""
        with claim_lock(self._file.fileno(), self._timeout_s):
            self._words[UPDATING] = 1
            fence()
            try:
                yield
            finally:
                fence()
                self._words[UPDATING] = self._words[LEFT] == _FOR_GOOD

    def wait(self) -> None:
        """For a writer that has reserved: waits for updates of rows that it may overwrite."""
        if self._words[UPDATING]:
            with claim_lock(self._file.fileno(), self._timeout_s):
                self._undo_killed()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Retires the files for all processes, unless the block raises."""
        # A writer that publishes meanwhile is either seen from inside, or refused by look_back.
        with self.closed():
            self.require_current()
            self._words[LEFT] = _PERHAPS
            fence()
            try:
                yield
            except BaseException:
                self._words[LEFT] = 0
                raise
            self._words[LEFT] = _FOR_GOOD

    def require_still_current(self) -> None:
        """For a writer that has published: raises if the files were retired meanwhile."""
        fence()  # the rows are seen before the word is looked at
        if self._words[LEFT]:
            with claim_lock(self._file.fileno(), self._timeout_s):
                self._undo_killed()

    def require_current(self) -> None:
        """Raises if the files are retired."""
        if self._words[LEFT] == _FOR_GOOD:
            raise RuntimeError(
                "another process emptied this buffer and stores rows with other keys since: hand "
                "the buffer over again, from a process that has those, or make another one."
            )

    def _undo_killed(self) -> None:
        """Undoes what a killed process had begun; the caller holds the lock."""
        self.require_current()
        self._words[LEFT] = self._words[UPDATING] = 0


_POLL_S = 0.0002
_WAIT_S = 30.0  # for the only lane, before it is an error

# what the first word of a lane, `rl_slabs.lanes.lane.THREAD`, says where no thread holds it
_NOBODY = bytes(8)


class _OwnLane(threading.local):
    """The lane and the last reserved span of each thread."""

    lane: Lane | None = None
    attempt: range | None = None


class SharedRing:
    """`Ring` over the lanes of a slab that may not exist yet."""

    # Writing is for the thread that has claimed a lane; with one lane the claim ends with the
    # write, so that writers take turns.

    def __init__(self, rows: LazyFile, capacity: int, lanes: int) -> None:
        self.capacity = capacity
        self.lanes = lanes
        self.takes_turns = self.lanes == 1
        self.update_lock: InPlaceUpdateLock | None = None
        self._rows = rows
        self._found: Lanes | None = None
        self._own = _OwnLane()
        self._none = Window(
            tuple(lane << LANE_SHIFT for lane in range(self.lanes)), (0,) * self.lanes
        )

    @property
    def span_limit(self) -> int:
        """The most rows of one write: those of a lane."""
        return self.capacity // self.lanes

    @property
    def written(self) -> int:
        """Rows ever published, of all lanes together."""
        found = self._look()
        if found is None:
            return 0
        words = found.slab.words
        return int(words[:, PUBLISHED].sum() - words[:, SIDE].sum())

    @property
    def slab(self) -> Slab | None:
        """The rows and the words of their lanes; None before any process created them."""
        found = self._look()
        return None if found is None else found.slab

    def states(self) -> list[LaneState]:
        """The state of each lane; none before the first write."""
        found = self._look()
        return [] if found is None else found.states()

    def attach(self, slab: Slab) -> None:
        """Attaches the rows that some process created."""
        self.capacity = slab.capacity
        self._found = self._found or Lanes(slab)  # which knows the claims of this process

    def claim(self, count: int | None = None) -> Lane:
        """The lane of the calling thread, claimed now if it has none."""
        lanes = self._made()
        if not self.takes_turns:
            self._own.lane = lanes.claim(count)
            return self._own.lane
        # the only lane may be held by a process that does not wake this one: poll
        end = time.monotonic() + _WAIT_S
        while True:
            try:
                self._own.lane = lanes.claim()
                return self._own.lane
            except RuntimeError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"waited {_WAIT_S} s for the only lane: {lanes.states()}. Give the "
                        "storage one lane for each writer, lanes=..."
                    ) from None
            time.sleep(_POLL_S)

    def is_held(self) -> bool:
        """Whether the calling thread holds a lane."""
        found = self._look()
        return found is not None and found.held() is not None

    def release_lane(self) -> None:
        """Releases the lane of the calling thread, if it has one."""
        found = self._look()
        held = None if found is None else found.held()
        if held is not None:
            held.release()

    def reserve(self, count: int) -> Span:
        """Reserves rows in the lane of the calling thread."""
        lane = self._claimed()
        span = lane.reserve(count)
        self._own.attempt = span.numbers
        if self.update_lock is not None:
            try:
                self.update_lock.wait()
            except BaseException:
                lane.cancel()
                raise
        return span

    def begin_attempt(self) -> None:
        """Forgets the last span; see `attempt_stands`."""
        self._own.attempt = None

    def attempt_stands(self) -> bool:
        """Whether this thread has reserved a span since `begin_attempt` and published it."""
        numbers, found = self._own.attempt, self._look()
        if numbers is None or found is None:
            return False
        # row ids of a span are of one lane
        lane, last = divmod(numbers.stop - 1, 1 << LANE_SHIFT)
        return last < int(found.slab.words[lane][PUBLISHED])

    def publish(self, count: int) -> None:
        """Makes the rows of the span readable."""
        self._claimed().publish(count)
        if self.update_lock is not None:
            self.update_lock.require_still_current()

    def cancel(self) -> None:
        """Returns the span untouched: none of its rows was written."""
        self._claimed().cancel()

    def window(self) -> Window:
        """The row ids that can be read now."""
        found = self._look()
        return self._none if found is None else found.window()

    def floors(self) -> tuple[int, ...]:
        """For each lane the first row id since the last `empty` or `restore`."""
        found = self._look()
        if found is None:
            return self._none.first
        words = found.slab.words[:, FLOOR]
        return tuple((lane << LANE_SHIFT) + int(word) for lane, word in enumerate(words))

    def bounds(self, lane: int) -> tuple[int, int, int]:
        """The oldest readable row id of a lane, the next to be published, and the floor."""
        lanes, base = self._made(), lane << LANE_SHIFT
        window = lanes.window()
        low = window.first[lane]
        words = lanes.slab.words[lane]
        return low, base + int(words[PUBLISHED]), base + int(words[FLOOR])

    def positions(self, numbers: torch.Tensor) -> torch.Tensor:
        """The positions of row ids, also of overwritten ones; int64 of the same shape."""
        return self._made().rows(numbers)

    def numbers_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The row id at each position, -1 if none can be read."""
        window = self.window()
        found, each = as_array(positions), self.span_limit
        lanes = found // each
        low = np.array(window.first)
        base = lanes << LANE_SHIFT
        # the newest row id of each position's lane, without the lane's bits
        last = (low + np.array(window.counts) - 1).take(lanes) - base
        # the largest id up to `last` that is congruent to the position
        numbers = base + last - (last - found % each) % each
        return as_tensor(np.where(numbers >= low.take(lanes), numbers, -1), positions)

    def is_live(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which row ids are live, bool of the same shape."""
        found = self._look()
        return (
            torch.zeros_like(numbers, dtype=torch.bool) if found is None else found.accept(numbers)
        )

    def version_snapshot(self) -> bytes:
        """A snapshot of the words of all lanes, for `unchanged_since`; empty without rows."""
        found = self._look()
        return b"" if found is None else found.moment()

    def unchanged_since(self, snapshot: bytes) -> bool:
        """Whether no writer reserved, published or updated rows since a snapshot."""
        # If writers take turns, rows are written in place by the one that has the turn; then no
        # writer may have had it, since one that had it may have continued without another beat.
        # Elsewhere links, and what they lead to, are never written in place.
        found = self._look()
        if found is None or (self.takes_turns and snapshot[:8] != _NOBODY):
            return False
        return found.unmoved(snapshot)

    def empty(self) -> None:
        """Drops every published row; a single lane restarts at its first position."""
        found = self._look()
        if found is None:
            return
        if self.takes_turns:
            self.claim().restart()
        else:
            found.empty()

    def restore(self, published: int, floor: int) -> None:
        """Restores the bounds of a ring with one lane."""
        self.restore_lanes([published], [floor])

    def order(self) -> list[int]:
        """The lanes, the one written longest ago first."""
        found = self._look()
        return list(range(self.lanes)) if found is None else found.order()

    def restore_lanes(
        self,
        published: Sequence[int],
        floor: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> None:
        """Restores the bounds of all lanes."""
        self.release_lane()
        lanes = self._made()
        lanes.restore(published, floor, order=order)
        lanes.slab.words[:, SIDE] = 0
        fence()
        if self.update_lock is not None:
            self.update_lock.wait()

    def continue_from(self, former: SharedRing) -> None:
        """Continues the row ids of another ring; no other process has this ring yet."""
        lanes, each = self._made(), self.span_limit
        words = former._made().slab.words
        begin = -(-words[:, RESERVED] // each) * each  # the first row is at the start of its lane
        lanes.restore(begin.tolist(), begin.tolist())
        lanes.slab.words[:, SIDE] = begin - words[:, PUBLISHED] + words[:, SIDE]

    def require_free(self) -> None:
        """Raises if another thread or process holds a lane."""
        held = [state for state in self.states() if state.standing in ("held", "elsewhere")]
        if held:
            raise RuntimeError(
                f"{len(held)} of {self.lanes} lanes are held by writers, threads "
                f"{[state.thread for state in held]}: one that has written keeps its lane until it "
                "ends, also while it is idle, because it writes without a lock. Load rows before "
                "others write or after they ended; with lanes=1 writers hold the lane for a write "
                "only."
            )

    def _claimed(self) -> Lane:
        """The last lane of this thread, which itself refuses if the claim has ended."""
        lane = self._own.lane
        return self.claim() if lane is None else lane

    def _look(self) -> Lanes | None:
        if self._found is None and self._rows.filled:
            self.attach(Slab.over(self._rows))
        return self._found

    def _made(self) -> Lanes:
        found = self._look()
        if found is None:
            raise UnfitValue("nothing is stored yet: extend the buffer first.")
        return found
