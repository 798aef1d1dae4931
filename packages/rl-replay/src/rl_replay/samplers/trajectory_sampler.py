"""What slice samplers share: whose slices, how long, and how they are in a sample."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.edges import edge
from rl_replay.samplers.explicit_boundaries import ExplicitBoundaries
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_bounds import Slices
from rl_replay.samplers.slice_draw import SliceBounds
from rl_replay.samplers.slice_shape import SliceShape
from rl_replay.trajectories.index import TrajectoryIndex
from rl_tensordict import NestedKey, as_key, as_tuple

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class TrajectorySampler(Sampler):
    """Chooses slices of trajectories. Derive from it and write `choose`.

    Args:
        shape: How a batch is cut into slices.
        traj_key: A column of ids that cuts trajectories, alongside the markers.
        end_keys: Columns of flags that cut them, alongside the markers.
        ends: Flags of last rows, one for each row of the storage, instead of all markers.
        trajectories: Ids, one for each row of the storage, instead of all markers.
        truncated_key: Where the ends of slices are marked; None for nowhere.

    Attributes:
        shape: How a batch is cut into slices.
        id_keys: The columns of ids that cut.
        end_keys: The columns of flags that cut.
        truncated_key: Where the ends of slices are marked.

    Raises:
        TypeError: A key is none, or both `ends` and `trajectories` are given.
        ValueError: Tensors and columns are given.

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
            Row numbers, int64 `[N]`, and under "slices" how the slices are in them.

        Raises:
            ValueError: Slices do not divide the batch, or no trajectory is long enough.
            TypeError: The storage has no markers.
        """
        numbers, slices = self.sample_slices(storage, *self.shape.of(batch_size))
        return torch.from_numpy(numbers), {"slices": slices}

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
            KeyError: Nothing is known to mark boundaries, and some flag looks as if it did.
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
