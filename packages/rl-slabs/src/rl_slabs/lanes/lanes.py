"""All lanes of a slab: one writer each, any number of readers, no waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from rl_slabs.arguments import seconds, whole
from rl_slabs.lanes.claim_lock import claim_lock
from rl_slabs.lanes.lane import (
    BEAT,
    FLOOR,
    LANE_MASK,
    LANE_SHIFT,
    PLACE,
    PUBLISHED,
    RESERVED,
    STARTED,
    THREAD,
    Lane,
    fence,
    next_heartbeat,
)
from rl_slabs.lanes.owners import OWN_THREADS, PROCESSES, Owner, OwnerState
from rl_slabs.lanes.window import Window, as_array, as_tensor
from rl_slabs.memory.slab import Slab


class LaneState(NamedTuple):
    """What the words of one lane say.

    Attributes:
        number: Which lane.
        standing: "free", "held", "gone" (its writer ended) or "elsewhere" (in another container,
            so that it cannot be known).
        thread: The thread that holds or held it.
        published: Rows published in its life.
        floor: The first of them that `empty` did not drop.
        lost: Old rows that cannot be read, because a span over them was reserved.
        silent_s: Seconds since its writer last wrote.
    """

    number: int
    standing: OwnerState
    thread: int
    published: int
    floor: int
    lost: int
    silent_s: float


class Lanes:
    """Every lane of a slab: claims them for writers, shows them to readers.

    Make one in each process, from the slab that the process was given; passing a `Lanes` to a
    process does that. Readers:

        window = lanes.window()                 # what is published now
        numbers = window.draw(256)              # or window.numbers(places)
        batch = slab.read(lanes.rows(numbers))
        good = lanes.accept(numbers)            # after the gather; redraw the others

    Attributes:
        slab: The slab.
        capacity: Rows of each lane: the slab's, divided by the number of lanes. A writer that asks
            for room (`claim(count)`) uses lane after lane.

    Example:
        >>> from rl_slabs.schema import RowSchema
        >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 6, lanes=2))
        >>> _ = lanes.claim().reserve(2)
        >>> lanes.claim().publish(2)
        >>> len(lanes.window()), lanes.capacity
        (2, 3)
    """

    def __init__(self, slab: Slab) -> None:
        if not isinstance(slab, Slab):
            raise TypeError(f"expected a Slab, got {type(slab).__name__}. Use Slab.shared(...).")
        self.slab = slab
        self.capacity = slab.capacity // slab.lanes
        self._claimed = threading.local()

    def claim(
        self,
        count: int | None = None,
        *,
        timeout_s: float = 5.0,
        stale_after_s: float | None = None,
    ) -> Lane:
        """The lane of the calling thread, claimed on the first call.

        Lanes with room for the rows come first, used ones before unused ones; where none has, the
        one that was written longest ago. With a `count` a thread whose lane has gone round since it
        was claimed moves on to such a lane, if there is one, and gives its own back: so a writer
        that is alone uses every lane in turn, and each newcomer finds one as long as any is free.

        Args:
            count: Rows about to be reserved; the thread keeps its lane unless given.
            timeout_s: How long to wait while others claim, which takes them microseconds.
            stale_after_s: Take the lane of a writer in another container after so many silent
                seconds. Only for writers that are never stopped that long: it would write on.

        Raises:
            RuntimeError: Every lane is held.
            TimeoutError: A process that was stopped in the middle of a claim blocks the others.
            ValueError: The slab is closed.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.claim() is lanes.claim()
            True
        """
        _ = self.slab.words  # refuses a slab that is closed
        if count is not None:
            count = whole(count, "count")
        held = self.held()
        if held is not None and held.floor > held.published:
            held.restart()  # again: it was interrupted
        if held is not None and (count is None or held.published + count <= held.until):
            return held
        with self._alone(timeout_s):
            number = self._choose(held, count or 1, stale_after_s)
            if held is not None and number == held.number:
                held.until = held.published + self.capacity
                return held
            lane = self._take(number, held)
        if lane.floor > lane.published:
            lane.restart()  # again: the last restart was interrupted
        return lane

    def _take(self, number: int, held: Lane | None) -> Lane:
        """Claim a lane, then release the one held; no other thread can claim either meanwhile.

        Who is killed in between leaves two lanes of a writer that ended, which others claim.
        """
        words, owner = self.slab.words, Owner.of_this_thread()
        lane = Lane(self.slab, number, owner)
        try:
            # the thread last: if killed in between, the lane still counts as free
            words[number, STARTED] = owner.started
            here = words[number, PLACE] == owner.place
            words[number, PLACE] = owner.place
            # the clock of another place, or before a reboot, may be ahead of this one
            words[number, BEAT] = (
                next_heartbeat(int(words[number, BEAT])) if here else next_heartbeat(0)
            )
            words[number, THREAD] = owner.thread
            lane.until = self._end_of_turn(lane)
            self._claimed.lane = lane
            if held is not None:
                words[held.number, THREAD] = 0
        except BaseException:
            self._claimed.lane = held
            words[number, THREAD] = 0
            if held is not None:
                words[held.number, THREAD] = owner.thread
            raise
        return lane

    def held(self) -> Lane | None:
        """The lane that the calling thread has claimed here and not given back.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)).held()
        """
        held: Lane | None = getattr(self._claimed, "lane", None)
        return held if held is not None and held.owned_by_this_thread() else None

    def window(self, *, guard: int = 0) -> Window:
        """The rows that can be read now.

        Args:
            guard: Leave out so many of the oldest rows of each lane, which are overwritten next
                and would be refused by `accept` most often.

        Raises:
            ValueError: The slab is closed.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> len(Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)).window())
            0
        """
        lows, highs = self._readable(whole(guard, "guard"))
        counts = [max(high - low, 0) for low, high in zip(lows, highs, strict=True)]
        return Window(tuple(lows), tuple(counts))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Slots of the rows with the given numbers, also of rows overwritten since.

        Args:
            numbers: From a window or a span, int64, any shape.

        Returns:
            Rows of the slab, the shape of `numbers`.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.rows(torch.tensor([4, 5, 6]))
            tensor([4, 0, 1])
        """
        found = as_array(numbers)
        if self.slab.lanes == 1:
            return as_tensor(found % self.capacity, numbers)
        rows = (found & LANE_MASK) % self.capacity + (found >> LANE_SHIFT) * self.capacity
        return as_tensor(rows, numbers)

    def accept(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which rows still held their numbers' data at this moment; call it after the gather.

        Args:
            numbers: Row numbers, int64, any shape.

        Returns:
            A mask of the shape of `numbers`: True where the row is published, was not dropped by
            `empty`, and has not been given out to be overwritten.

        Raises:
            ValueError: The slab is closed.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> _ = lanes.claim().reserve(3)
            >>> lanes.claim().publish(3)
            >>> lanes.accept(torch.tensor([2, 3]))
            tensor([ True, False])
        """
        fence()  # the gather is over before the words are looked at
        lows, highs = self._readable()
        found = as_array(numbers)
        if len(lows) == 1:
            return as_tensor((found >= lows[0]) & (found < highs[0]), numbers)
        # a number of no lane is outside the bounds of the nearest one
        lane = found >> LANE_SHIFT
        good = found >= np.array(lows).take(lane, mode="clip")
        return as_tensor(good & (found < np.array(highs).take(lane, mode="clip")), numbers)

    def moment(self) -> bytes:
        """All words of all lanes, for `unmoved`; look before anything is gathered.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 6, lanes=2))
            >>> len(lanes.moment())
            128
        """
        words = self.slab.words.tobytes()
        fence()  # what is gathered later is not looked at before
        return words

    def unmoved(self, moment: bytes) -> bool:
        """Whether no lane was claimed, and no span reserved or published, since a moment.

        Each of these raises the lane's `beat`, and nothing ever lowers it, so that words which are
        equal at two moments were equal all the time between. The counters alone would not say so:
        a span over rows that a killed writer had reserved leaves `reserved` as it was, and so does
        one that was given back. A writer may continue in a span that it reserved before the moment.

        Args:
            moment: What `moment` returned before the gather.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 6))
            >>> before = lanes.moment()
            >>> lanes.unmoved(before), lanes.claim().reserve(1).rows, lanes.unmoved(before)
            (True, slice(0, 1, None), False)
        """
        fence()  # the gather is over before the words are looked at
        return self.slab.words.tobytes() == moment

    def empty(self, *, timeout_s: float = 5.0) -> None:
        """Drop every row published so far, for all processes; writers continue undisturbed.

        Raises:
            TimeoutError: As in `claim`.
            ValueError: The slab is closed.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5)).empty()
        """
        words = self.slab.words
        with self._alone(timeout_s):
            for number in range(len(words)):
                words[number, FLOOR] = max(words[number, FLOOR], words[number, PUBLISHED])

    def restore(
        self,
        published: Sequence[int],
        floor: Sequence[int],
        *,
        order: Sequence[int] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """Set the counters of lanes whose rows were loaded, before anyone writes.

        Args:
            published: Rows published in the life of each lane.
            floor: The first row of each lane that can be read.
            order: The lanes by age, as `order` said it; by number unless given.
            timeout_s: As in `claim`.

        Raises:
            ValueError: Not one pair for each lane, or not `0 <= floor <= published`.
            RuntimeError: A lane is held.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.restore(published=[8], floor=[5])
            >>> lanes.window().first, len(lanes.window())
            ((5,), 3)
        """
        words = self.slab.words
        if not all(isinstance(each, Sequence) for each in (published, floor)):
            raise TypeError(
                f"expected a list of counters, one a lane: got {published!r} and {floor!r}."
            )
        if not len(published) == len(floor) == len(words):
            raise ValueError(
                f"{len(words)} lanes need as many counters, got {len(published)} and {len(floor)}."
            )
        if not all(0 <= low <= high for low, high in zip(floor, published, strict=True)):
            raise ValueError(f"0 <= floor <= published must hold, got {floor} and {published}.")
        with self._alone(timeout_s):
            held = [state for state in self.states() if state.standing in ("held", "elsewhere")]
            if held:
                raise RuntimeError(f"writers hold lanes: {held}. Restore before they claim.")
            latest = int(words[:, BEAT].max())
            lanes = list(range(len(words)))
            for lane in lanes if order is None or sorted(order) != lanes else order:
                latest = words[lane, BEAT] = next_heartbeat(latest)
            # no reader reads a row until all words are set, also where that is interrupted: a floor
            # above what is published is one that the next claim begins anew from
            newest = np.maximum(words[:, [RESERVED, PUBLISHED, FLOOR]].max(1), published)
            words[:, FLOOR] = newest + 1
            fence()
            words[:, RESERVED] = words[:, PUBLISHED] = published
            fence()
            words[:, FLOOR] = floor

    def states(self, *, stale_after_s: float | None = None) -> list[LaneState]:
        """What the words of each lane say, for people and for statistics.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> lanes = Lanes(Slab.private(RowSchema({"done": (torch.bool, (1,))}), 5))
            >>> lanes.states()[0].standing
            'free'
        """
        threads = OWN_THREADS if self.slab.kind == "private" else PROCESSES
        states = []
        for number, row in enumerate(self.slab.words.tolist()):
            standing = Owner(*row[:3]).standing(
                beat_ns=row[BEAT], stale_after_s=stale_after_s, threads=threads
            )
            silent_s = (time.monotonic_ns() - row[BEAT]) / 1e9
            lost = row[RESERVED] - row[PUBLISHED]
            states.append(
                LaneState(number, standing, row[THREAD], row[PUBLISHED], row[FLOOR], lost, silent_s)
            )
        return states

    def __reduce__(self) -> tuple[type[Lanes], tuple[Slab]]:
        return type(self), (self.slab,)

    def _readable(self, guard: int = 0) -> tuple[list[int], list[int]]:
        """For each lane the number of the first row that may be read, and of the first not yet."""
        lows, highs = [], []
        for lane, row in enumerate(self.slab.words.tolist()):
            base = lane << LANE_SHIFT
            # a file that was altered may say anything, but never that more rows stand than fit
            newest = max(row[RESERVED], row[PUBLISHED])
            lows.append(base + max(newest - self.capacity + guard, row[FLOOR], 0))
            highs.append(base + row[PUBLISHED])
        return lows, highs

    def order(self) -> list[int]:
        """The lanes, the one that was written longest ago first.

        Example:
            >>> from rl_slabs.schema import RowSchema
            >>> schema = RowSchema({"done": (torch.bool, (1,))})
            >>> Lanes(Slab.private(schema, 6, lanes=3)).order()
            [0, 1, 2]
        """
        beats = self.slab.words[:, BEAT].tolist()
        return sorted(range(len(beats)), key=beats.__getitem__)

    def _end_of_turn(self, lane: Lane) -> int:
        """Up to where a thread that claims a lane writes before it looks for another one."""
        room = lane.floor + self.capacity
        return room if lane.published < room else lane.published + self.capacity

    def _choose(self, held: Lane | None, count: int, stale_after_s: float | None) -> int:
        """The lane to write `count` rows to; the one that is held where no other can be had."""
        states = self.states(stale_after_s=stale_after_s)
        usable = [state for state in states if state.standing in ("free", "gone")]
        if not usable and held is not None:
            return held.number
        if not usable:
            raise RuntimeError(
                f"all {len(states)} lanes are held: {states}. Make the slab, or the storage of the "
                "buffer, with more lanes (lanes=), one for each thread that writes, or release one."
            )
        age = self.order()

        def rank(state: LaneState) -> tuple[bool, bool, bool, int]:
            full = state.published + state.lost + count > state.floor + self.capacity
            unused = state.published + state.lost == 0
            if full:
                return True, False, False, age.index(state.number)
            return False, unused, state.standing == "gone", state.number

        return min(usable, key=rank).number

    @contextmanager
    def _alone(self, timeout_s: float) -> Iterator[None]:
        timeout_s = seconds(timeout_s, "timeout_s")
        descriptor = None if self.slab.kind == "private" else self.slab.fileno()
        with claim_lock(descriptor, timeout_s):
            yield
