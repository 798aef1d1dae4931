"""Samplers of slices: runs of consecutive rows, each of one trajectory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.edges import edge
from rl_replay.samplers.draw import (
    By,
    SliceBounds,
    by_step,
    by_trajectory,
    place_in,
    random_numbers,
)
from rl_replay.samplers.explicit_boundaries import ExplicitBoundaries
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_layout import Slices, SliceShape, SliceSpan, SpanLimits
from rl_replay.trajectories.index import TrajectoryIndex
from rl_tensordict import NestedKey, as_key, as_tuple
from rl_tensordict.arguments import drop_useless, refuse_unknown
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage

_NOTHING = np.zeros(0, dtype=np.int64)
USELESS = {
    "cache_values": "the boundaries are always known",
    "compile": "slices are drawn by numpy, in time that the batch alone decides",
    "use_gpu": "slices are drawn on the CPU, and one copy takes a sample to the storage's device",
}


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
        ...         return Places(slots, np.zeros_like(slots), lengths)
        >>> Oldest(SliceShape(num_slices=2)).end_keys
        []
    """

    proven: ClassVar[bool] = True
    draws_slices: ClassVar[bool] = True

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
        if ends is not None or trajectories is not None:
            self._given = ExplicitBoundaries(ends=ends, trajectories=trajectories)
            if self.id_keys or self.end_keys:
                raise ValueError(
                    "ends and trajectories say where trajectories end, instead of any column: "
                    "leave out traj_key, end_key and end_keys, or leave out the tensors."
                )

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
        return index.rows(*places), Slices(places.lengths)

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


class SliceSamplerWithoutReplacement(TrajectorySampler):
    """Draws one slice of each trajectory in an epoch, in a random order.

    Rows may be written in mid-epoch. The epoch continues over the trajectories that were there when
    it began: one that grew is taken as it is now, one that was overwritten is passed over, and
    newer ones wait for the next epoch.

    The last batch of an epoch has as many slices as are left.

    Args:
        num_slices: Slices of a batch; the batch size is a multiple of it.
        slice_len: Rows of a slice; the batch size is a multiple of it. With `num_slices` too, the
            batch size is their product.
        drop_last: Leave out the last batch of an epoch where slices are missing.
        end_key: A column of flags that also ends trajectories.
        end_keys: Several such columns.
        traj_key: A column of ids that also tells trajectories apart.
        ends: Instead of any column: bool, one for each row of a storage that is written no more.
        trajectories: Instead of any column: ids, one for each row of such a storage.
        truncated_key: Where the last row of a slice is marked, with its done flag; None
            marks neither.
        strict_length: Only take trajectories at least as long as a slice. Otherwise a shorter one
            gives a shorter slice, and the sample is smaller.
        shuffle: Take trajectories in a random order, rather than by their oldest rows.
        legacy: `compile` and `use_gpu`, which have no effect and are deprecated.

    Raises:
        TypeError: Neither `num_slices` nor `slice_len`, or a key of a wrong type.
        ValueError: Arguments that exclude each other, or out of range.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = SliceSamplerWithoutReplacement(slice_len=2, shuffle=False)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(9), sampler=sampler, batch_size=4
        ... )
        >>> _ = buffer.extend(trajectories([2, 2, 2]))
        >>> [batch["collector", "traj_ids"].tolist() for batch in buffer]
        [[7, 7, 8, 8], [9, 9]]
    """

    def __init__(  # noqa: PLR0913 - the arguments that the seed names
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: torch.Tensor | None = None,
        trajectories: torch.Tensor | None = None,
        truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
        strict_length: bool = False,
        shuffle: bool = True,
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
        self.drop_last = drop_last
        self.strict_length = strict_length
        self.shuffle = shuffle
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch with the next batch."""
        self.ran_out = False
        self._slots = self._born = _NOTHING

    def choose(self, index: TrajectoryIndex, count: int, length: int) -> SliceBounds:
        """Take the next trajectories of the epoch.

        Args:
            index: The trajectories.
            count: How many slices.
            length: Rows of each, at most.

        Raises:
            ValueError: No trajectory is long enough, or with `drop_last` too few are.
        """
        minimum = length if self.strict_length else 1
        slots, left = self._next(index, count, minimum)
        if len(slots) < (count if self.drop_last else 1):
            self._begin(index, count, minimum)
            slots, left = self._next(index, count, minimum)
        self._slots, self._born = self._slots[left:], self._born[left:]
        self.ran_out = len(self._slots) < (count if self.drop_last else 1)
        if self.ran_out:
            self._slots = self._born = _NOTHING
        random = random_numbers((len(slots),), self.generator)
        return SliceBounds(slots, *place_in(index.lengths_of(slots), length, random))

    def state_dict(self) -> dict[str, Any]:
        """The remaining trajectories of the epoch."""
        rest = {"slots": self._slots, "born": self._born}
        return {name: torch.from_numpy(array) for name, array in rest.items()} | {
            "ran_out": self.ran_out
        }

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the epoch of another sampler.

        Args:
            state: What its `state_dict` returned.
        """
        self._slots, self._born = (torch.as_tensor(state[n]).numpy() for n in ("slots", "born"))
        self.ran_out = bool(state["ran_out"])

    def _begin(self, index: TrajectoryIndex, count: int, minimum: int) -> None:
        slots = index.slots()
        lengths = index.lengths_of(slots)
        slots = slots[lengths >= minimum]
        needed = count if self.drop_last else 1
        if len(slots) < needed:
            raise ValueError(
                f"{len(slots)} of {len(lengths)} trajectories have {minimum} rows, the longest "
                f"has {lengths.max(initial=0)}, and a batch takes {needed}: ask for shorter or "
                "fewer slices, or wait for more rows."
            )
        born = index.born(slots)
        if self.shuffle:
            order = torch.randperm(len(slots), generator=self.generator).numpy()
        else:
            order = np.argsort(born)
        self._slots, self._born = slots[order], born[order]

    def _next(self, index: TrajectoryIndex, count: int, minimum: int) -> tuple[Ints, int]:
        """The next trajectories that are still there, and how far that goes in the epoch."""
        found: list[Ints] = []
        place = missing = 0
        while (missing := count - sum(map(len, found))) and place < len(self._slots):
            part = slice(place, place + missing)
            slots = self._slots[part]
            good = index.alive(slots, self._born[part])
            good &= index.lengths_of(slots) >= minimum
            found.append(slots[good])
            place += len(slots)
        return np.concatenate(found) if found else _NOTHING, place

    def __repr__(self) -> str:
        return (
            f"SliceSamplerWithoutReplacement({self.shape}, strict_length={self.strict_length}, "
            f"drop_last={self.drop_last}, shuffle={self.shuffle})"
        )


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
        ends: Instead of any column: bool, one for each row of a storage that is written no more.
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

    without_replacement: ClassVar[type[Sampler] | None] = SliceSamplerWithoutReplacement

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
        """
        numbers, slices = super().sample_slices(storage, count, length)
        return slices.pad(numbers, length) if self.pad_output else (numbers, slices)

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
        return f"SliceSampler({self.shape}, by={self.by!r}, strict_length={self.strict_length})"
