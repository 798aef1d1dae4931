"""Slices of trajectories, each trajectory once an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl_layout import keys
from rl_replay.edges import edge
from rl_replay.samplers.slice_layout import SliceShape
from rl_replay.samplers.slices import (
    USELESS,
    SliceBounds,
    SliceSampler,
    TrajectorySampler,
    end_keys_of,
    place_in,
)
from rl_replay.trajectories.index import TrajectoryIndex, random_numbers
from rl_tensordict import CPU, NestedKey, UnfitValue
from rl_tensordict.arguments import check_state, drop_useless, refuse_unknown
from rl_tensordict.types import Ints

_NOTHING = np.zeros(0, dtype=np.int64)


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
        ends: Instead of any column: bool, one for each row of a storage that is written no more, in
            the shape of `buffer[:]` or by position.
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

        Raises:
            ValueError: It lacks entries, as the state of a sampler of another kind.
        """
        check_state(type(self).__name__, state, ("slots", "born", "ran_out"))
        kept = (torch.as_tensor(state[n], device=CPU) for n in ("slots", "born"))
        self._slots, self._born = (each.numpy() for each in kept)
        self.ran_out = bool(state["ran_out"])

    def _begin(self, index: TrajectoryIndex, count: int, minimum: int) -> None:
        slots = index.slots()
        lengths = index.lengths_of(slots)
        slots = slots[lengths >= minimum]
        needed = count if self.drop_last else 1
        if not len(lengths):
            raise UnfitValue("there is no trajectory yet: write rows before drawing.")
        if len(slots) < needed:
            raise UnfitValue(
                f"{len(slots)} of {len(lengths)} trajectories have {minimum} rows, the longest "
                f"has {lengths.max(initial=0)}, and a batch takes {needed}: ask for shorter or "
                "fewer slices, or wait for more rows."
            )
        born = index.born(slots)
        if self.shuffle:
            order = torch.randperm(len(slots), generator=self.generator, device=CPU).numpy()
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


# here, because this sampler derives from the same class as the other and is imported after it
SliceSampler.without_replacement = SliceSamplerWithoutReplacement
