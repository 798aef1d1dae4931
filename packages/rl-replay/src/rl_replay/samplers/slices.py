"""Samplers of slices: runs of consecutive rows, each of one trajectory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.edges import edge
from rl_replay.samplers.explicit_boundaries import ExplicitBoundaries
from rl_replay.samplers.lone_rows import LoneRows
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_layout import Slices, SliceShape, SliceSpan, SpanLimits
from rl_replay.trajectories.index import TrajectoryIndex, random_numbers
from rl_slabs import Window
from rl_tensordict import CPU, NestedKey, UnfitValue, as_key, as_tuple
from rl_tensordict.arguments import drop_useless, refuse_unknown
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage

By = Literal["trajectory", "step"]
USELESS = {
    "cache_values": "the boundaries are always known",
    "compile": "slices are drawn by numpy, in time that the batch alone decides",
    "use_gpu": "slices are drawn on the CPU, and one copy takes a sample to the storage's device",
}


class SliceBounds(NamedTuple):
    """Slices of trajectories."""

    slots: Ints  # int64 [n], the trajectories
    offsets: Ints  # int64 [n], first row of the slice, counted from the oldest of its trajectory
    lengths: Ints  # int64 [n], rows of each slice


class TrajectorySampler(Sampler):
    """Chooses slices of trajectories. Derive from it and write `choose`.

    Args:
        shape: How a batch is cut into slices.
        traj_key: A column of ids that cuts trajectories, alongside the markers.
        end_keys: Columns of flags that cut them, alongside the markers.
        ends: Flags of last rows, one for each row of the storage, instead of all markers.
        trajectories: Ids, one for each row of the storage, instead of all markers.
        truncated_key: The flag that marks the ends of slices; None for no flag.

    Attributes:
        shape: How a batch is cut into slices.
        id_keys: The columns of ids that cut.
        end_keys: The columns of flags that cut.
        truncated_key: The flag that marks the ends of slices.

    Raises:
        TypeError: A key of a wrong type, or both `ends` and `trajectories`.
        ValueError: Both tensors and columns.

    Example:
        >>> class Oldest(TrajectorySampler):
        ...     def choose(self, index, count, length):
        ...         slots = index.slots()[:count]
        ...         lengths = np.minimum(index.lengths_of(slots), length)
        ...         return SliceBounds(slots, np.zeros_like(slots), lengths)
        >>> Oldest(SliceShape(num_slices=2)).end_keys
        []
    """

    proven: ClassVar[bool] = True
    draws_slices: ClassVar[bool] = True
    pad_output: bool = False

    def __init__(
        self,
        shape: SliceShape,
        *,
        traj_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] = (),
        ends: torch.Tensor | None = None,
        trajectories: torch.Tensor | None = None,
        truncated_key: NestedKey | None = ("next", "truncated"),
    ) -> None:
        self.shape = shape
        self.id_keys = [] if traj_key is None else [as_key(as_tuple(traj_key))]
        self.end_keys = [as_key(as_tuple(key)) for key in end_keys]
        self.truncated_key = None if truncated_key is None else as_key(as_tuple(truncated_key))
        self._given: ExplicitBoundaries | None = None
        self._lone_rows = LoneRows()
        if ends is not None or trajectories is not None:
            self._given = ExplicitBoundaries(ends=ends, trajectories=trajectories)
            if self.id_keys or self.end_keys:
                raise UnfitValue(
                    "ends and trajectories say where trajectories end, instead of any column: "
                    "leave out traj_key, end_key and end_keys, or leave out the tensors."
                )

    @property
    def slice_len(self) -> int | None:
        """Rows of a slice, if they were given."""
        return self.shape.slice_len

    @property
    def num_slices(self) -> int | None:
        """Slices of a batch, if they were given."""
        return self.shape.num_slices

    @property
    def traj_key(self) -> NestedKey | None:
        """The column of ids that cuts, alongside the markers; None for the markers alone."""
        return self.id_keys[0] if self.id_keys else None

    @property
    def reads_markers(self) -> bool:
        """Whether markers say where trajectories end, rather than tensors of the caller's."""
        return self._given is None

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Choose the slices of a batch.

        Args:
            storage: Where the rows are.
            batch_size: Rows of all slices together; fewer come where trajectories are shorter.

        Returns:
            Row ids, int64 `[N]`, and under "slices" where each slice is among them.

        Raises:
            ValueError: Slices do not divide the batch, or no trajectory is long enough.
            TypeError: The storage has no markers.
        """
        numbers, slices = self.sample_slices(storage, *self.shape.of(batch_size))
        return torch.from_numpy(numbers), {"slices": slices}

    def sample_slices(
        self, storage: Storage, count: int, length: int
    ) -> tuple[NDArray[np.int64], Slices]:
        """Choose slices, for a batch or in place of overwritten ones.

        Args:
            storage: Where the rows are.
            count: How many slices.
            length: Rows of each, at most.

        Returns:
            Row ids, int64 `[N]`, and where each slice is among them.

        Raises:
            ValueError: No trajectory is long enough.
            TypeError: The storage has no markers.
            KeyError: No known marker is stored, but a flag that may be one.
        """
        if self._given is None:
            index = storage.trajectories()
            storage.require_boundaries()
        else:
            index = self._given.index(storage)
        places = self.choose(index, count, length)
        numbers, slices = index.rows(*places), Slices(places.lengths)
        if length > 1 and self._given is None and len(numbers) == len(places.lengths):
            self._lone_rows.look(storage, index, numbers)
        return slices.pad(numbers, length) if self.pad_output else (numbers, slices)

    @abstractmethod
    def choose(self, index: TrajectoryIndex, count: int, length: int) -> SliceBounds:
        """Choose slices of some trajectories.

        Args:
            index: The trajectories.
            count: How many slices.
            length: Rows of each, at most.
        """


def end_keys_of(
    end_key: NestedKey | None, end_keys: Sequence[NestedKey] | None
) -> Sequence[NestedKey]:
    """The columns that two arguments name, of which one may be given."""
    if end_key is not None and end_keys is not None:
        raise ValueError("give end_key or end_keys, not both: end_keys=[...] holds any number.")
    if isinstance(end_keys, str | tuple):
        raise TypeError(f"end_keys is a list of keys, got {end_keys!r}: write [{end_keys!r}].")
    return [end_key] if end_key is not None else list(end_keys or ())


class SliceSampler(TrajectorySampler):
    """Draws slices of consecutive rows, each of one trajectory, and lays them end to end.

    Trajectories are told apart by every marker that is stored: ids under
    `("collector", "traj_ids")` or else `"episode"`, steps, first-step flags and done flags under
    `"next"`. Rows that have none of these, but another flag, need `end_key` or `traj_key`.
    `mark_slices` describes the markers of a sample.

    Args:
        num_slices: Slices of a batch; the batch size is a multiple of it.
        slice_len: Rows of a slice; the batch size is a multiple of it. With `num_slices` too, the
            batch size is their product.
        end_key: A column of flags that also ends trajectories.
        end_keys: Several such columns.
        traj_key: A column of ids that also tells trajectories apart.
        ends: Instead of any column: bool, one for each row of a storage that is written no more, in
            the shape of `buffer[:]` or by position.
        trajectories: Instead of any column: ids, one for each row of such a storage.
        truncated_key: Where the last row of a slice is marked, with its done flag; None
            marks neither.
        strict_length: Only take trajectories at least as long as a slice. Otherwise a shorter one
            gives a shorter slice, and the sample is smaller.
        pad_output: Lay each slice out to the full length with copies of its last row, which
            `("collector", "mask")` and the id -1 tell apart. Not with `strict_length`.
        span: Draw slices that begin before their trajectory or end after it as well, and cut them
            off there: True by up to all rows but one, a number by up to so many; a pair for the two
            sides.
        by: "trajectory" draws every trajectory equally often, "step" every place of a slice: each
            step from which a slice can continue (a shorter trajectory: its first), and with `span`
            each place that reaches out. With `span=True` every stored step is in `slice_len`
            places, so that all of them are sampled equally often.
        legacy: `cache_values`, `compile` and `use_gpu`, which have no effect and are deprecated.

    Raises:
        TypeError: Neither `num_slices` nor `slice_len`, or a key of a wrong type.
        ValueError: Arguments that exclude each other, or out of range.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = SliceSampler(num_slices=4, slice_len=3)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=sampler, batch_size=12
        ... )
        >>> _ = buffer.extend(trajectories([5, 9, 7]))
        >>> buffer.sample()["is_init"].flatten().tolist()[:6]
        [True, False, False, True, False, False]
    """

    def __init__(  # noqa: PLR0913 - the arguments that the seed names, and `by`
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: torch.Tensor | None = None,
        trajectories: torch.Tensor | None = None,
        truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
        strict_length: bool = False,
        pad_output: bool = False,
        span: SliceSpan = False,
        by: By = "trajectory",
        **legacy: object,
    ) -> None:
        refuse_unknown(drop_useless(legacy, USELESS))
        super().__init__(
            SliceShape(num_slices, slice_len),
            traj_key=traj_key,
            end_keys=end_keys_of(end_key, end_keys),
            ends=ends,
            trajectories=trajectories,
            truncated_key=truncated_key,
        )
        if pad_output and strict_length:
            raise ValueError("strict_length leaves nothing to pad: leave out pad_output.")
        if by not in get_args(By):
            raise ValueError(f"by must be 'trajectory' or 'step': got {by!r}.")
        self.strict_length = strict_length
        self.pad_output = pad_output
        self.span = span
        self.by = by
        if slice_len is not None:
            SpanLimits.of(span, slice_len)

    def choose(self, index: TrajectoryIndex, count: int, length: int) -> SliceBounds:
        """Draw slices of some trajectories.

        Args:
            index: The trajectories.
            count: How many slices.
            length: Rows of each, at most.

        Raises:
            ValueError: No trajectory is long enough.
        """
        minimum = length if self.strict_length else 1
        reach = SpanLimits.of(self.span, length) if self.span else None
        draw = by_step if self.by == "step" else by_trajectory
        return draw(index, count, length, minimum=minimum, reach=reach, generator=self.generator)

    def __repr__(self) -> str:
        span = f", span={self.span}" if self.span else ""
        return (
            f"SliceSampler({self.shape}, by={self.by!r}, strict_length={self.strict_length}{span})"
        )


def by_trajectory(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    reach: SpanLimits | None = None,
    generator: torch.Generator | None = None,
) -> SliceBounds:
    """Draws trajectories uniformly, then a place in each."""
    random = random_numbers((2, count), generator)
    slots = index.draw_by(random[0], minimum, generator)
    return SliceBounds(slots, *place_in(index.lengths_of(slots), length, random[1], reach))


def by_step(
    index: TrajectoryIndex,
    count: int,
    length: int,
    *,
    minimum: int = 1,
    reach: SpanLimits | None = None,
    generator: torch.Generator | None = None,
) -> SliceBounds:
    """Draws uniformly among all places that a slice of this length can have."""
    # A trajectory of n rows has one at each step from which the slice continues: n
    # - length + 1; a shorter one has one, its first. With reach there are left more before these
    # and up to right after, of which the last is the last row. So where left and right are length
    # - 1 every row is in length places: all are drawn equally often.
    reach = reach or SpanLimits()
    parts: list[tuple[Ints, Ints, Ints]] = []
    missing, tries = count, 2 * count  # mostly one round is enough
    while missing > 0 and tries <= 2 * max(len(index), count):
        window = index.window()
        total = candidates(index, window, reach)
        drawn = torch.randint(total, (tries,), generator=generator, device=CPU)
        slots, begins, totals = begins_among(index, window, drawn.numpy(), length, minimum, reach)
        parts.append((slots[:missing], begins[:missing], totals[:missing]))
        missing -= len(parts[-1][0])
        tries *= 2
    if missing > 0:
        slots, totals, ends = begins_of_all(index, length, minimum, reach)
        drawn = torch.randint(int(ends[-1]), (missing,), generator=generator, device=CPU)
        which, begins = begin_at(ends, drawn.numpy(), reach)
        parts.append((slots[which], begins, totals[which]))
    slots, begins, totals = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SliceBounds(slots, *inside(begins, totals, length))


def place_in(
    totals: Ints, length: int, random: Ints, reach: SpanLimits | None = None
) -> tuple[Ints, Ints]:
    """Choose where a slice begins in each of some trajectories, every place equally likely."""
    # A slice that exceeds its trajectory is cut off there; at least one row is left.
    room = np.maximum(totals - length, 0)
    if reach is None or not (reach.left or reach.right):
        return random % (room + 1), np.minimum(totals, length)
    last = _last_begin(totals, length, reach)
    return inside(random % (last + reach.left + 1) - reach.left, totals, length)


def candidates(index: TrajectoryIndex, window: Window, reach: SpanLimits) -> int:
    """Size of the range of `begins_among`: one per row and per position before a trajectory."""
    if not len(window):
        raise ValueError("there is no trajectory yet: write rows before drawing.")
    return len(window) + reach.left * len(index)


def begins_among(
    index: TrajectoryIndex,
    window: Window,
    numbers: Ints,
    length: int,
    minimum: int,
    reach: SpanLimits,
) -> tuple[Ints, Ints, Ints]:
    """The beginnings of slices by number, one number for each place; other numbers are skipped."""
    rows = len(window)
    places = torch.from_numpy(np.minimum(numbers, rows - 1) if reach.left else numbers)
    slots, begins = index.locate(window.numbers(places).numpy())
    before = np.flatnonzero(numbers >= rows)
    if before.size:
        which, far = np.divmod(numbers[before] - rows, reach.left)
        slots[before], begins[before] = index.draw_by(which), -1 - far
    totals = index.lengths_of(slots)
    good = (slots >= 0) & (totals >= minimum)
    # a torn entry of a shared table may begin anywhere
    good &= (begins >= -reach.left) & (begins <= _last_begin(totals, length, reach))
    return slots[good], begins[good], totals[good]


def begins_of_all(
    index: TrajectoryIndex, length: int, minimum: int, reach: SpanLimits
) -> tuple[Ints, Ints, Ints]:
    """All trajectories, their lengths, and the cumulated number of places in them."""
    slots = index.slots()
    totals = index.lengths_of(slots)
    places = _last_begin(totals, length, reach) + reach.left + 1
    ends = np.where(totals >= minimum, places, 0).cumsum()
    if not len(slots) or not ends[-1]:
        raise UnfitValue(
            f"no trajectory has {minimum} rows: the longest of {len(slots)} has "
            f"{totals.max(initial=0)}. Ask for shorter ones, or wait for more rows."
        )
    return slots, totals, ends


def begin_at(ends: Ints, numbers: Ints, reach: SpanLimits) -> tuple[Ints, Ints]:
    """The trajectory of each place, and the beginning of the slice in it."""
    which = ends.searchsorted(numbers, "right")
    return which, numbers - np.append(0, ends)[which] - reach.left


def inside(begins: Ints, totals: Ints, length: int) -> tuple[Ints, Ints]:
    """Slices without the rows outside of their trajectories."""
    ends = np.minimum(begins + length, totals)
    begins = np.maximum(begins, 0)
    return begins, ends - begins


def _last_begin(totals: Ints, length: int, reach: SpanLimits) -> Ints:
    """The beginning of the last place in trajectories of so many rows."""
    room: Ints = np.maximum(totals - length, 0)
    return np.minimum(room + reach.right, totals - 1) if reach.right else room
