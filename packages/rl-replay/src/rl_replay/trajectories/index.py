"""The index of trajectories: updated as rows are written and overwritten, and asked for slices.

Tables in shared memory may be read while their writer changes them. Then what is found may be
wrong, which the caller must prove, but every search ends and every slot is in its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.internals import load_compiled
from rl_replay.edges import edge
from rl_replay.trajectories.invariants import check_invariants
from rl_replay.trajectories.tables import (
    BEGIN,
    BORN,
    BROKEN,
    END,
    INDEXED,
    JUMP,
    JUMP_START,
    LIVE,
    LONE,
    LOW,
    ORIGIN,
    PIECES,
    PLACE,
    PREVIOUS,
    START,
    STEPS,
    STOP,
    STRIDE,
    TAIL,
    TRAJECTORY,
    TrajectoryTables,
    positions_of,
)
from rl_replay.trajectories.writer import TrajectoryWriter
from rl_slabs import Window
from rl_slabs.internals import LANE_MASK, LANE_SHIFT
from rl_tensordict import CPU, UnfitValue
from rl_tensordict.types import Flags, Ints

PENDING_ROWS = 4096
"""So many rows are written before they are taken in, which costs less together than one by one."""

# More than a sound table can need, which is two for each doubling of the pieces of a trajectory,
# and again for each time that its oldest piece went while it grew.
_MOST_JUMPS = 500

_MANY = 256

_NUMBA = "rl_replay.trajectories.numba_steps"


class TrajectoryIndex:
    """Index of trajectories, built from each row's offset to its predecessor.

    A *piece* is a run of rows at a constant distance, each continuing the one before; a
    *trajectory* is a chain of pieces. Taking rows in costs what the rows cost, a query what its
    own size costs; nothing depends on the capacity.

    A trajectory is named by its slot, which stays the same while it grows and while its oldest
    rows are overwritten, and is used again after its last one was. Rows are named by number, as
    the ring gives them, the lane in the bits above 48.

    Args:
        capacity: Rows of each lane.
        lanes: How many lanes.
        tables: Arrays to live in, for instance in shared memory; private ones unless given. One
            process at a time may change a lane; what others read meanwhile may be wrong, and is
            proved afterwards by `proved`.

    Attributes:
        capacity: Rows of each lane.
        lanes: How many lanes.
        tables: The arrays.
        shared: Whether they were given, so that another process may be changing them.
        writers: What appends to each lane.

    Example:
        >>> index = TrajectoryIndex(9)
        >>> index.append(0, np.array([0, 1, 1, 0, 2, 1]))  # row 3 is another trajectory
        >>> len(index), index.lengths()
        (2, array([5, 1]))
        >>> index.rows(np.array([0]), np.array([1]), np.array([3]))
        array([1, 2, 4])
    """

    def __init__(
        self, capacity: int, *, lanes: int = 1, tables: TrajectoryTables | None = None
    ) -> None:
        made = TrajectoryTables.zeros(capacity, lanes) if tables is None else tables
        self.capacity, self.lanes, self.tables = capacity, lanes, made
        self.shared = tables is not None
        self._words = made.words[0].data
        self.writers = [TrajectoryWriter(made, capacity, lane) for lane in range(lanes)]

    def __len__(self) -> int:
        """Trajectories with at least one live row."""
        return self._total(LIVE)

    @property
    def steps(self) -> int:
        """Live real rows."""
        return self._total(STEPS)

    @property
    def pieces(self) -> int:
        """Pieces of all trajectories."""
        return self._total(PIECES)

    @property
    def one_row_pieces(self) -> int:
        """Pieces that never had more than one row; many of them make slices slow."""
        return self._total(LONE)

    def slots(self) -> Ints:
        """Every trajectory, int64 `[len(index)]`, in no order.

        Example:
            >>> TrajectoryIndex(3).slots()
            array([], dtype=int64)
        """
        counts = self.tables.words[:, LIVE].tolist()
        # [live trajectories] of each lane, end to end
        parts = [
            self.tables.live[lane * self.capacity : lane * self.capacity + count]
            for lane, count in enumerate(counts)
        ]
        return np.concatenate(parts)

    def lengths(self) -> Ints:
        """Rows of every trajectory, int64 `[len(index)]`, in the order of `slots`.

        Example:
            >>> TrajectoryIndex(3).lengths()
            array([], dtype=int64)
        """
        return self.lengths_of(self.slots())

    def lengths_of(self, slots: Ints) -> Ints:
        """Rows of some trajectories.

        Args:
            slots: int64 `[n]`.

        Returns:
            int64 `[n]`.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 0]))
            >>> index.lengths_of(np.array([1, 0]))
            array([1, 2])
        """
        found = self.tables.trajectories.take(slots, axis=0, mode="clip")
        lengths: Ints = found[:, STOP] - found[:, BEGIN]
        # a trajectory may end between two looks at shared tables, and a slice has one row at least
        return np.maximum(lengths, 1) if self.shared else lengths

    def born(self, slots: Ints) -> Ints:
        """The id of the first row that each of some trajectories ever had, int64 `[n]`.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 0]))
            >>> index.born(np.array([1, 0]))
            array([1, 0])
        """
        found: Ints = self.tables.trajectories.take(slots, axis=0, mode="clip")
        return found[:, BORN]

    def alive(self, slots: Ints, born: Ints) -> Flags:
        """Which trajectories still have live rows.

        Args:
            slots: int64 `[n]`.
            born: int64 `[n]`, what `born` said of them: slots are used again.

        Returns:
            bool `[n]`.

        Example:
            >>> index = TrajectoryIndex(2)
            >>> index.append(0, np.array([0, 0]))
            >>> index.append(2, np.array([0]))
            >>> index.alive(np.array([0, 1]), np.array([0, 1]))
            array([False,  True])
        """
        found = self.tables.trajectories.take(slots, axis=0, mode="clip")
        places, lanes = found[:, PLACE], slots // self.capacity
        counts = self.tables.words[:, LIVE].take(lanes, mode="clip")
        # a slot is in use if `live` lists it at the place that it names
        listed = places - lanes * self.capacity < counts
        listed &= self.tables.live.take(places, mode="clip") == slots
        alive: Flags = listed & (found[:, BORN] == born)
        return alive

    def draw(self, count: int, minimum: int = 1, generator: torch.Generator | None = None) -> Ints:
        """Draw trajectories uniformly, with replacement.

        Args:
            count: How many.
            minimum: Only those of at least so many rows.
            generator: Where the randomness comes from; torch's own unless given.

        Returns:
            Slots, int64 `[count]`.

        Raises:
            ValueError: There is no such trajectory; the longest one is named.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 1, 1, 0, 0]))
            >>> index.draw(2, minimum=3)
            array([0, 0])
        """
        return self.draw_by(random_numbers((count,), generator), minimum, generator)

    def draw_by(
        self, random: Ints, minimum: int = 1, generator: torch.Generator | None = None
    ) -> Ints:
        """`draw` from given random numbers; draws more where too few trajectories are long enough.

        Args:
            random: int64 `[count]`, uniform over a range of at least 2^62 numbers from 0 on.
            minimum: Only trajectories of at least so many rows.
            generator: Where further numbers come from.

        Raises:
            ValueError: There is no such trajectory; the longest one is named.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 0, 0]))
            >>> index.draw_by(np.array([5, 7]))
            array([2, 1])
        """
        slots = self._at(random)
        if minimum <= 1:
            return slots
        count = tries = len(random)
        slots = slots[self.lengths_of(slots) >= minimum]
        while len(slots) < count:
            if tries > len(self):
                rest = self._draw_long(count - len(slots), minimum, generator)
                return np.concatenate((slots, rest))
            # rejection sampling: twice as many each round, up to one try for each trajectory
            tries *= 2
            more = self._at(random_numbers((tries,), generator))
            more = more[self.lengths_of(more) >= minimum]
            slots = np.concatenate((slots, more))[:count]
        return slots

    def window(self) -> Window:
        """The indexed live rows, padding included.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, -1]))
            >>> index.window()
            Window(first=(0,), counts=(2,))
        """
        words = self.tables.words[:, [LOW, INDEXED]].tolist()
        low = tuple((lane << LANE_SHIFT) + first for lane, (first, _) in enumerate(words))
        return Window(low, tuple(max(end - first, 0) for first, end in words))

    def rows(self, slots: Ints, offsets: Ints, lengths: Ints) -> Ints:
        """The row ids of slices.

        Args:
            slots: int64 `[n]`, trajectories.
            offsets: int64 `[n]`, the first row of each, counted from the oldest valid one.
            lengths: int64 `[n]`, how many rows from there on, at least 1 each.

        Returns:
            int64 `[sum(lengths)]`, one slice after the other; each the number of some position.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 0, 2, 2, 2]))
            >>> index.rows(np.array([1, 0]), np.array([0, 1]), np.array([2, 2]))
            array([1, 3, 2, 4])
        """
        found = self.tables.trajectories.take(slots, axis=0, mode="clip")
        first = found[:, BEGIN] + offsets
        numbers = numbers_of(self.tables.pieces, found[:, TAIL], first, lengths)
        if self.shared:
            # what was torn may name no lane, and is to be gathered before it is refused
            lanes = numbers >> LANE_SHIFT
            numbers[(lanes < 0) | (lanes >= self.lanes)] = 0
        return numbers

    @edge
    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The trajectory of each row, and the row's offset in it.

        Args:
            numbers: int64 `[n]`, any.

        Returns:
            Slots and offsets, int64 `[n]` each; both -1 for a row that does not stand or is not
            real.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 0, 2, 2, 2]))
            >>> index.locate(np.array([4, 1, 5]))
            (array([ 0,  1, -1]), array([ 2,  0, -1]))
        """
        if (walked := self._walked(numbers, 0)) is not None:
            return walked[0], walked[1]
        pieces, steps, real = self._steps(numbers)
        slots = pieces[:, TRAJECTORY]
        # whole rows: taking from a single column would copy all of it before
        begins = self.tables.trajectories.take(slots, axis=0, mode="clip")[:, BEGIN]
        return np.where(real, slots, -1), np.where(real, steps - begins, -1)

    @edge
    def after(self, numbers: Ints, k: int) -> tuple[Ints, Flags]:
        """The rows k steps later in their trajectories.

        Args:
            numbers: int64 `[n]`, any.
            k: How many steps later; earlier where negative.

        Returns:
            Numbers, int64 `[n]`, and which of the rows are there, bool `[n]`. Where one is not,
            the last row on the way to it.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 0, 2, 2, 2]))
            >>> index.after(np.array([1, 3]), 1)
            (array([3, 3]), array([ True, False]))
        """
        if (walked := self._walked(numbers, k)) is not None and walked[4]:
            return walked[2], walked[3]
        pieces, steps, real = self._steps(numbers)
        found = self.tables.trajectories.take(pieces[:, TRAJECTORY], axis=0, mode="clip")
        # clipped to the trajectory: an absent row gives the last one on the way
        wanted = steps + k
        steps = np.clip(wanted, found[:, BEGIN], np.maximum(found[:, STOP] - 1, found[:, BEGIN]))
        # most steps stay in their piece; only the others search
        elsewhere = real & ((steps < pieces[:, START]) | (steps >= pieces[:, END]))
        if elsewhere.any():
            pieces[elsewhere] = pieces_with(
                self.tables.pieces, found[elsewhere, TAIL], steps[elsewhere]
            )
        reached = pieces[:, ORIGIN] + pieces[:, STRIDE] * steps
        return np.where(real, reached, numbers), real & (steps == wanted)

    @edge
    def before(self, numbers: Ints, k: int) -> tuple[Ints, Flags]:
        """The rows k steps earlier in their trajectories; see `after`.

        Example:
            >>> index = TrajectoryIndex(5)
            >>> index.append(0, np.array([0, 0, 2, 2, 2]))
            >>> index.before(np.array([4, 3]), 2)
            (array([0, 1]), array([ True, False]))
        """
        return self.after(numbers, -k)

    def _walked(self, numbers: Ints, far: int) -> tuple[Ints, Ints, Ints, Flags, bool] | None:
        """What a compiled loop finds of some rows; None without numba, or for other arrays."""
        loops = load_compiled(_NUMBA)
        if loops is None or type(numbers) is not np.ndarray or numbers.dtype != np.int64:
            return None
        tables = self.tables
        found: tuple[Ints, Ints, Ints, Flags, bool] = loops.walk(
            tables.words,
            tables.piece_of,
            tables.pieces,
            tables.trajectories,
            self.capacity,
            np.ascontiguousarray(numbers),
            int(far),
        )
        return found

    def _total(self, column: int) -> int:
        if self.lanes == 1:
            return int(self._words[column])
        return int(self.tables.words[:, column].sum())

    def _at(self, random: Ints) -> Ints:
        """The trajectories that large random numbers select from the `live` lists of all lanes."""
        total = self._total(LIVE)
        if total == 0:
            raise ValueError("there is no trajectory yet: write rows before drawing.")
        places = random % total
        if self.lanes > 1:
            counts = self.tables.words[:, LIVE]
            ends = counts.cumsum()
            # from a rank among all trajectories to a place in its lane's part of `live`
            shifts = np.arange(self.lanes) * self.capacity - ends + counts
            places += shifts.take(ends.searchsorted(places, "right"), mode="clip")
        return self.tables.live.take(places, mode="clip")

    def _draw_long(self, count: int, minimum: int, generator: torch.Generator | None) -> Ints:
        slots = self.slots()
        lengths = self.lengths_of(slots)
        slots = slots[lengths >= minimum]
        if not len(slots):
            raise UnfitValue(
                f"no trajectory has {minimum} rows: the longest of {len(lengths)} has "
                f"{lengths.max(initial=0)}. Ask for shorter ones, or wait for more rows."
            )
        places = torch.randint(len(slots), (count,), generator=generator, device=CPU)
        drawn: Ints = slots[places.numpy()]
        return drawn

    def _steps(self, numbers: Ints) -> tuple[Ints, Ints, Flags]:
        """The piece of each row, its step, and whether the row is live and real."""
        # the lane is in the bits above 48; a torn id may name none, so gathers clip and `real`
        # refuses
        lanes = numbers >> LANE_SHIFT
        words = self.tables.words.take(lanes, axis=0, mode="clip")
        within = numbers & LANE_MASK
        real = (lanes >= 0) & (lanes < self.lanes)
        real &= (within >= words[:, LOW]) & (within < words[:, INDEXED])
        slots = self.tables.piece_of.take(positions_of(numbers, self.capacity, self.lanes))
        real &= slots >= 0
        pieces = self.tables.pieces.take(slots, axis=0, mode="clip")
        strides = pieces[:, STRIDE]
        steps = (numbers - pieces[:, ORIGIN]) // np.maximum(strides, 1)
        return pieces, np.where(strides, steps, pieces[:, START]), real

    def indexed(self, lane: int = 0) -> int:
        """The id of the next row of a lane.

        Example:
            >>> TrajectoryIndex(5).indexed()
            0
        """
        return self.writers[lane].indexed

    def low(self, lane: int = 0) -> int:
        """The oldest live row id of a lane.

        Example:
            >>> TrajectoryIndex(5).low()
            0
        """
        return self.writers[lane].low

    def append(self, first_number: int, back: NDArray[np.integer]) -> None:
        """Appends rows of one lane; the rows that they overwrite are dropped first.

        Args:
            first_number: The number of the first, the one after the last that was taken in.
            back: Integers `[rows]`: distance to the row that each continues, in row numbers.
                0 if it continues none, -1 if it is not real and so in no trajectory. No two
                rows may continue the same one.

        Raises:
            ValueError: Rows are missing in between, or there are more than the lane has.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.append(3, np.array([1, 1]))
            >>> index.low(), index.lengths()
            (2, array([3]))
        """
        self.writers[first_number >> LANE_SHIFT].append(first_number, back)

    def reaches(self, number: int) -> bool:
        """Whether this is the next row of its lane, and no change of the lane was interrupted."""
        writer = self.writers[number >> LANE_SHIFT]
        return writer.indexed == number and not writer.broken

    def drop_before(self, number: int) -> None:
        """Drops the rows of a lane before a row id; an id not indexed yet empties the lane.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.drop_before(2), index.lengths()
            (None, array([1]))
        """
        self.writers[number >> LANE_SHIFT].drop_before(number)

    def catch_up(self, back: NDArray[np.integer], window: Window) -> None:
        """Appends and drops rows until the index holds exactly those of a window.

        Args:
            back: Integers `[lanes * capacity]`, as for `append`, by position.
            window: The rows that can be read.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.catch_up(np.array([1, 1, 1]), Window((2,), (3,))), index.lengths()
            (None, array([3]))
        """
        if self.covers(window):
            return
        for lane, (low, count) in enumerate(zip(window.first, window.counts, strict=True)):
            self.catch_up_lane(lane, back, low, low + count)

    def catch_up_lane(self, lane: int, back: NDArray[np.integer], low: int, end: int) -> None:
        """`catch_up` for one lane, by its writer.

        Args:
            lane: Which lane.
            back: Integers `[lanes * capacity]`, as for `append`, by position.
            low: The number of the oldest row that can be read.
            end: The number of the next row.

        Example:
            >>> index = TrajectoryIndex(3, lanes=2)
            >>> index.catch_up_lane(0, np.array([0, 1, 1, 0, 0, 0]), 0, 3), index.lengths()
            (None, array([3]))
        """
        writer = self.writers[lane]
        if writer.broken or writer.indexed > end:
            writer.clear(low)
        writer.drop_before(low)
        if (first := writer.indexed) < end:
            writer.append(first, writer.rows_of(back, first, end - first))

    def covers(self, window: Window) -> bool:
        """Whether it holds exactly the rows of a window, with no update in progress.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.covers(Window((0,), (0,))), index.covers(Window((0,), (2,)))
            (True, False)
        """
        # asked for every sample of slices: no property is called
        for writer, first, count in zip(self.writers, window.first, window.counts, strict=True):
            words = writer.words
            low, end = words[LOW], words[INDEXED]
            if words[BROKEN] or writer.first_number + low != first or end - low != count:
                return False
        return True

    def clear(self) -> None:
        """Drops every row; `catch_up` indexes them again.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 1]))
            >>> index.clear(), index.indexed()
            (None, 0)
        """
        for lane, writer in enumerate(self.writers):
            writer.clear(lane << LANE_SHIFT)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """A copy of the used parts of all tables, for a checkpoint.

        Example:
            >>> TrajectoryIndex(3).state()["words"].shape
            (1, 16)
        """
        return self.tables.state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restores the `state` of another index of the same size; equal seeds then draw the same.

        Args:
            state: What its `state` returned.

        Raises:
            ValueError: It was of another size, or its arrays do not fit each other.

        Example:
            >>> index, other = TrajectoryIndex(3), TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1, 0]))
            >>> other.restore(index.state()), len(other)
            (None, 2)
        """
        self.tables.restore(state)

    def check(self, back: NDArray[np.integer]) -> None:
        """Compares all tables with a row-by-row reading. Slow: for tests.

        Args:
            back: Integers `[lanes * capacity]`, as for `append`, by position.

        Raises:
            AssertionError: Something differs; the message says what.

        Example:
            >>> index = TrajectoryIndex(3)
            >>> index.append(0, np.array([0, 1]))
            >>> index.check(np.array([0, 1, 0]))
        """
        check_invariants(self, back)


def random_numbers(shape: tuple[int, ...], generator: torch.Generator | None) -> Ints:
    """Random numbers so large that their remainders are uniform but for 2**-40 or so."""
    numbers: Ints = torch.randint(1 << 62, shape, generator=generator, device=CPU).numpy()
    return numbers


def pieces_with(pieces: Ints, newest: Ints, steps: Ints) -> Ints:
    """The pieces that hold some steps, searched from a newer piece of the same trajectory."""
    slots, found = newest, pieces.take(newest, axis=0, mode="clip")
    for _ in range(_MOST_JUMPS):
        early = found[:, START] > steps
        if not np.count_nonzero(early):  # a third of the time of any()
            break
        onward = np.where(found[:, JUMP_START] >= steps, found[:, JUMP], found[:, PREVIOUS])
        # all of them again: cheaper than selecting the unfinished ones
        slots = np.where(early, onward, slots)
        found = pieces.take(slots, axis=0, mode="clip")
    return found


def numbers_of(pieces: Ints, newest: Ints, first: Ints, counts: Ints) -> Ints:
    """The row ids of slices: `counts` rows from step `first` on of each trajectory."""
    found: Ints = pieces.take(newest, axis=0, mode="clip")
    whole = not np.count_nonzero(found[:, START] > first)
    if not whole:
        found = pieces_with(pieces, newest, first + counts - 1)
        whole = not np.count_nonzero(found[:, START] > first)
    length = even_length(counts)
    if whole and length is not None:
        # as most slices are: all of one length, each inside one piece
        steps = first[:, None] + _count_to(length)
        even: Ints = found[:, ORIGIN, None] + found[:, STRIDE, None] * steps
        return even.reshape(-1)
    which = np.arange(len(counts)).repeat(counts)
    steps = np.arange(len(which)) + (first + counts - counts.cumsum()).take(which)
    numbers: Ints = found[:, ORIGIN].take(which) + found[:, STRIDE].take(which) * steps
    for _ in range(int(counts.max(initial=0))):
        begins = found[:, START].copy()
        short = begins > first
        if not np.count_nonzero(short):
            break
        found[short] = pieces.take(found[short, PREVIOUS], axis=0, mode="clip")
        earlier = found[:, ORIGIN].take(which) + found[:, STRIDE].take(which) * steps
        numbers = np.where(steps < begins.take(which), earlier, numbers)
    return numbers


def even_length(counts: Ints) -> int | None:
    """The common value of all counts; None if they differ, or are many or none."""
    if not 0 < len(counts) <= _MANY:
        return None
    plain = counts.tolist()  # quicker than numpy on the few slices of a sample
    return plain[0] if plain.count(plain[0]) == len(plain) else None


@cache
def _count_to(length: int) -> Ints:
    return np.arange(length)
