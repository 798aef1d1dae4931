"""Slices that are drawn in proportion to the priorities of their first rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.priorities.reduction import PriorityReduction
from rl_replay.samplers.prioritized import (
    PROBABILITY,
    Normalize,
    PrioritizedSampler,
    at_least_zero,
)
from rl_replay.samplers.slice_layout import Slices, SliceShape
from rl_replay.samplers.slices import USELESS, SliceBounds, TrajectorySampler, end_keys_of
from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs.internals import positive
from rl_tensordict import NestedKey
from rl_tensordict.arguments import drop_useless, refuse_unknown
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


_ROUNDS = 64


class PrioritizedSliceSampler(TrajectorySampler, PrioritizedSampler):
    """Draws slices of trajectories in proportion to the priorities of their first rows.

    Every row from which a slice of full length continues can be the first one, and has a priority
    as with `PrioritizedSampler`. The weight of a slice is on each of its rows.

    `update_tensordict_priority(sample)` takes an error for each row of the slices. Each row keeps
    its own one as its priority, or with `eta` the first row of each slice has the priority
    ``eta * max(abs(td_error)) + (1 - eta) * mean(abs(td_error))`` of the slice.

    Args:
        max_capacity: The capacity of the storage, in rows.
        alpha: How much priorities matter: 0 draws uniformly.
        beta: How far weights make up for it: 1 makes means over samples unbiased.
        eps: What is added to each priority, so that no slice is left out.
        dtype: The dtype of weights.
        reduction: How priorities with more dimensions than rows become one a row: "max", "min",
            "median" or "mean".
        num_slices: Slices of a batch; the batch size is a multiple of it.
        slice_len: Rows of a slice; the batch size is a multiple of it. With `num_slices` too, the
            batch size is their product.
        end_key: A column of flags that also ends trajectories.
        end_keys: Several such columns.
        traj_key: A column of ids that also tells trajectories apart.
        ends: Instead of any column: bool, one for each row of a storage that is written no more, in
            the shape of `buffer[:]` or by position.
        trajectories: Instead of any column: ids, one for each row of such a storage.
        truncated_key: Where the last row of a slice is marked, with its done flag; None marks
            neither.
        strict_length: Only take slices of full length. Otherwise the first row of a trajectory that
            is shorter, or whose older rows were overwritten up to there, can be drawn as well, and
            the sample is smaller.
        period: Only begin slices where `("collector", "traj_step")` is a multiple of it.
        eta: The share of the largest error of a slice in its priority, the rest is the mean; None
            gives each row its own.
        max_priority_within_buffer: As for `PrioritizedSampler`.
        stratified: As for `PrioritizedSampler`.
        normalize: As for `PrioritizedSampler`.
        private_priorities: As for `PrioritizedSampler`.
        legacy: `cache_values` and `compile`, which have no effect and are deprecated.

    Raises:
        TypeError: Neither `num_slices` nor `slice_len`, or a key of a wrong type.
        ValueError: Arguments that exclude each other, or out of range.

    Source:
        Kapturowski et al., Recurrent experience replay in distributed reinforcement learning,
        ICLR 2019 (R2D2), https://openreview.net/forum?id=r1lyTjAqYX

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = PrioritizedSliceSampler(9, alpha=1.0, beta=1.0, slice_len=3)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(9), sampler=sampler, batch_size=6
        ... )
        >>> index = buffer.extend(trajectories([5, 4]))
        >>> buffer.update_priority(index, torch.tensor([0, 0, 0, 9, 9, 0, 1, 9, 9.0]))
        >>> buffer.sample()["index"].tolist()
        [6, 7, 8, 6, 7, 8]
    """

    def __init__(  # noqa: PLR0913 - the arguments that the seed names
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: PriorityReduction = "max",
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: torch.Tensor | None = None,
        trajectories: torch.Tensor | None = None,
        truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
        strict_length: bool = True,
        period: int | None = None,
        eta: float | None = None,
        max_priority_within_buffer: bool = False,
        stratified: bool = True,
        normalize: Normalize | None = "batch",
        private_priorities: bool = False,
        **legacy: object,
    ) -> None:
        refuse_unknown(drop_useless(legacy, USELESS))
        common = (max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer)
        PrioritizedSampler.__init__(self, *common, stratified=stratified, normalize=normalize)
        self.private_priorities = private_priorities
        TrajectorySampler.__init__(
            self,
            SliceShape(num_slices, slice_len),
            traj_key=traj_key,
            end_keys=end_keys_of(end_key, end_keys),
            ends=ends,
            trajectories=trajectories,
            truncated_key=truncated_key,
        )
        self.strict_length = strict_length
        self.period = None if period is None else positive(period, "period")
        self.eta = None if eta is None else at_least_zero(eta, "eta", 1)
        self._relinked = 0  # how often the rows' links had been computed when starts were found

    def sample_slices(
        self, storage: Storage, count: int, length: int
    ) -> tuple[NDArray[np.int64], Slices]:
        """Draw slices, for a batch or in place of overwritten ones.

        Args:
            storage: Where the rows are.
            count: How many slices.
            length: Rows of each, at most.

        Raises:
            ValueError: No slice can be drawn.
            KeyError: There are no steps that `period` asks for.
        """
        self._rows.of_slices(length)  # of other lengths other rows are the first ones
        self._rows.candidates.keeps_heads = not self.strict_length
        rows = self._caught_up(storage)
        self._storage = storage
        if self._relinked != storage.session.relinked:
            rows.find_starts_anew()
            self._relinked = storage.session.relinked
        numbers, slices = super().sample_slices(storage, count, length)
        return numbers, Slices(slices.lengths, slices.padded_to, self._drawn)

    def _epoch_of(self, storage: Storage) -> int:
        # rows that are linked anew may be the first ones of other slices
        return storage.epoch

    def choose(self, index: TrajectoryIndex, count: int, length: int) -> SliceBounds:
        """Draw the first rows of some slices.

        Args:
            index: The trajectories.
            count: How many slices.
            length: Rows of each, at most.

        Raises:
            ValueError: No slice can be drawn.
        """
        rows, ring = self._rows, self._storage.ring
        self._find_starts(index, length)
        row_ids, probabilities = rows.draw(ring, count, self._uniform, strata=self.stratified)
        for _ in range(_ROUNDS):
            slots, offsets = index.locate(row_ids)
            lengths = np.minimum(index.lengths_of(slots) - offsets, length)
            least = length if self.strict_length else 1
            if np.minimum.reduce(slots) >= 0 and np.minimum.reduce(lengths) >= least:
                self._drawn = probabilities
                return SliceBounds(slots, offsets, lengths)
            # another process writes rows, or the index of them
            bad = np.flatnonzero((slots < 0) | (lengths < least))
            rows.start_at(ring, row_ids[bad], allowed=False)
            again = rows.draw(ring, len(bad), self._uniform, strata=False)
            row_ids[bad], probabilities[bad] = again
        raise ValueError(f"no slices of {length} rows stand long enough to be drawn.")

    def complete(self, storage: Storage, info: dict[str, Any]) -> dict[str, Any]:
        """Adds the weights of the rows of a batch, each that of its slice.

        Args:
            storage: Where the rows are.
            info: What `sample` said of them.

        Returns:
            The same, `"priority_weight"` `[N]`, and whose rows they are, `[N]`.
        """
        slices: Slices = info["slices"]
        assert slices.probabilities is not None  # `sample_slices` draws them
        weights = self._weights(storage, slices.probabilities).take(slices.ids)
        found: dict[Any, Any] = info | {keys.PRIORITY_WEIGHT: self._leaf(weights)}
        found[keys.STORAGE_ID] = storage.identity.leaf(len(weights))
        if self.probabilities:
            found[PROBABILITY] = torch.from_numpy(slices.probabilities[slices.ids])
        return found

    def by_slice(
        self, row_ids: torch.Tensor, priority: torch.Tensor, slice_ids: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that have the priorities of a sample: the first one of each slice with `eta`.

        Args:
            row_ids: int64 `[N]`.
            priority: One for each, `[N]`.
            slice_ids: The slice of each, int64 `[N]`.

        Raises:
            KeyError: Rows of no slices, with `eta`.
        """
        if self.eta is None or not len(row_ids):
            return row_ids, priority
        if slice_ids is None:
            raise KeyError(
                f"{keys.SLICE_IDS} is missing, which tells the slices of a sample apart: keep it in"
                " the sample, or leave eta out."
            )
        starts = np.flatnonzero(np.diff(slice_ids.cpu().numpy(), prepend=-1))
        errors = priority.detach().abs().double().cpu().numpy()
        lengths = np.diff(starts, append=len(errors))
        means = np.add.reduceat(errors, starts) / lengths
        mixed = self.eta * np.maximum.reduceat(errors, starts) + (1 - self.eta) * means
        return row_ids[torch.from_numpy(starts)], torch.from_numpy(mixed)

    def _find_starts(self, index: TrajectoryIndex, length: int) -> None:
        """Gives weight to the rows that can be the first ones of slices by now."""
        rows, ring, found = self._rows, self._storage.ring, self._rows.candidates
        while found.new:
            begin, end = found.new[-1]
            rows.start_at(ring, self._starts(index, np.arange(begin, end), length))
            found.new.pop()
        if found.mended:
            mended = np.array(found.mended)
            good = index.after(mended, length - 1)[1]
            if not self.strict_length:
                good |= index.locate(mended)[1] == 0
            rows.start_at(ring, self._of_period(mended[good]))
            found.mended.clear()
        if found.heads:
            heads = np.array(found.heads)
            offsets = index.locate(heads)[1]
            if not self.strict_length:
                rows.start_at(ring, self._of_period(heads[offsets == 0]))
            # where the index is not up to date with the ring
            found.heads[:] = heads[offsets > 0].tolist()

    def _starts(self, index: TrajectoryIndex, written: Ints, length: int) -> Ints:
        """The rows that can begin a slice since some rows were written."""
        starts, there = index.before(written, length - 1)
        found = starts[there]
        if not self.strict_length:
            former, there = index.before(written, 1)
            self._rows.note_successors(self._storage.ring, former[there], written[there])
            first = written[index.locate(written)[1] == 0]
            found = np.unique(np.concatenate((found, first)))
        return self._of_period(found)

    def _of_period(self, found: Ints) -> Ints:
        """The rows among some whose step is a multiple of the period."""
        if self.period is None or not len(found):
            return found
        steps = self._storage.leaf_of(torch.from_numpy(found), keys.TRAJ_STEP)
        if steps is None:
            raise KeyError(
                f"period={self.period} needs {keys.TRAJ_STEP} in the rows: a collector stores it; "
                "leave period out to begin slices anywhere."
            )
        kept: Ints = found[steps.cpu().numpy().reshape(-1) % self.period == 0]
        return kept

    def __repr__(self) -> str:
        return (
            f"PrioritizedSliceSampler({self.max_capacity}, alpha={self.alpha}, beta={self.beta}, "
            f"{self.shape}, strict_length={self.strict_length})"
        )
