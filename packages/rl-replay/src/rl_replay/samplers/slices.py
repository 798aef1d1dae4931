"""Slices of trajectories, drawn with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.samplers import slice_draw
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_bounds import Slices
from rl_replay.samplers.slice_draw import By, SliceBounds
from rl_replay.samplers.slice_shape import SliceShape, SliceSpan, SpanLimits
from rl_replay.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from rl_replay.samplers.trajectory_sampler import TrajectorySampler, end_keys_of
from rl_replay.trajectories.index import TrajectoryIndex
from rl_tensordict import NestedKey

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class SliceSampler(TrajectorySampler):
    """Draws slices of consecutive rows, each of one trajectory, and lays them end to end.

    Where trajectories begin and end is read from every marker that is stored: ids under
    `("collector", "traj_ids")` or else `"episode"`, steps, first-step flags and done flags under
    `"next"`. Rows that have none of these, but another flag, want `end_key` or `traj_key`.
    What a sample marks is described at `mark_slices`.

    Args:
        num_slices: Slices of a batch; the batch size is a multiple of it.
        slice_len: Rows of a slice; the batch size is a multiple of it. With `num_slices` too, the
            batch size is their product.
        end_key: A column of flags that also ends trajectories.
        end_keys: Several such columns.
        traj_key: A column of ids that also tells trajectories apart.
        ends: Instead of any column: bool, one for each row of a storage that is written no more.
        trajectories: Instead of any column: ids, one for each row of such a storage.
        cache_values: Accepted and without effect: the boundaries are always known.
        truncated_key: Where the last row of a slice is marked, with its done flag; None
            marks neither.
        strict_length: Only take trajectories at least as long as a slice. Otherwise a shorter one
            gives a shorter slice, and the sample is smaller.
        pad_output: Lay each slice out to the full length with copies of its last row, which
            `("collector", "mask")` and the id -1 tell apart. Not with `strict_length`.
        compile: Accepted and without effect.
        span: Let slices reach out of their trajectory on either or each side, where they are
            cut off: True by all rows but one, a number by so many.
        use_gpu: Accepted and without effect.
        by: "trajectory" draws every trajectory equally often, "step" every place of a slice: each
            step from which a slice can continue (a shorter trajectory: its first), and with `span`
            each place that reaches out. With `span=True` every stored step is in `slice_len`
            places, so that all of them are sampled equally often.

    Raises:
        TypeError: Neither `num_slices` nor `slice_len`, or what is no key.
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
        cache_values: bool = False,
        truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
        strict_length: bool = False,
        pad_output: bool = False,
        compile: bool | dict[str, object] = False,
        span: SliceSpan = False,
        use_gpu: bool | torch.device = False,
        by: By = "trajectory",
    ) -> None:
        del cache_values, compile, use_gpu
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
        """Choose some slices, for a batch or in place of some that were lost.

        Args:
            storage: Where the rows are.
            count: How many slices.
            length: Rows of each, at most.

        Returns:
            Row numbers, int64 `[N]`, and how the slices are in them.

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
        draw = slice_draw.by_step if self.by == "step" else slice_draw.by_trajectory
        return draw(index, count, length, minimum=minimum, reach=reach, generator=self.generator)

    def __repr__(self) -> str:
        return f"SliceSampler({self.shape}, by={self.by!r}, strict_length={self.strict_length})"
