"""The writer that keeps the best."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.ranking.best_rows import BestRows
from rl_replay.ranking.best_trajectories import BestTrajectories
from rl_replay.ranking.ranks import RankKey, RankReduction
from rl_replay.samplers import ConsumingSampler, PrioritizedSampler, Sampler
from rl_replay.storages import Storage, TensorStorage
from rl_replay.writers import Writer
from rl_tensordict import NestedKey


class TensorDictMaxValueWriter(Writer):
    """Keeps the rows, or the trajectories, with the highest values of a leaf.

    Of equal ones the older is kept. What is refused has index -1, or None from `add`. When rows are
    replaced, all rows get new row ids, so that a sample from before writes to none of them; those
    that stay keep their priorities. A `SamplerWithoutReplacement` begins an epoch anew.

    With `by="trajectory"` rows wait in memory until the last step of their trajectory has come, as
    done flags say; then the trajectory is stored whole, in place of worse ones, the worst first, or
    dropped if those have too little room. One whose first steps never came is dropped, and so is
    the one that waits longest where unfinished ones have more steps than the buffer holds. To
    replace trajectories all rows are laid out anew; in a file, or in shared memory with one lane,
    other processes find none meanwhile. One process stores, the others may sample.

    Args:
        rank_key: The leaf; `("next", "reward")` unless given.
        reduction: What makes one number of the leaf's values in an element: in a row, a whole
            trajectory that was added as one element, or with `by="trajectory"` all its steps.
            "sum", "mean", "max", "min" or "median".
        by: "row" or "trajectory".

    Raises:
        ValueError: Another reduction, or another `by`.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> writer = TensorDictMaxValueWriter(rank_key="score")
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=writer)
        >>> buffer.extend(TensorDict({"score": torch.tensor([5.0, 1.0, 4.0, 2.0])}, [4])).tolist()
        [0, -1, 1, 2]
        >>> buffer.extend(TensorDict({"score": torch.tensor([2.0, 3.0])}, [2])).tolist()
        [-1, 2]
        >>> sorted(buffer[:]["score"].tolist())
        [3.0, 4.0, 5.0]
    """

    stores_index = True
    places_rows = True

    def __init__(
        self,
        rank_key: NestedKey | None = None,
        reduction: RankReduction = "sum",
        *,
        by: Literal["row", "trajectory"] = "row",
    ) -> None:
        if by not in ("row", "trajectory"):
            raise ValueError(f'by is "row" or "trajectory": got {by!r}.')
        rank = RankKey(keys.NEXT_REWARD if rank_key is None else rank_key, reduction)
        self.by = by
        self.overwrites_oldest = by == "trajectory"  # which are laid out anew, one after the other
        self._process = 0  # that stores; 0 before the first rows
        self._best = BestRows(rank) if by == "row" else BestTrajectories(rank)

    @property
    def rank_key(self) -> NestedKey:
        """The leaf that ranks rows."""
        return self._best.rank.key

    @property
    def reduction(self) -> RankReduction:
        """What makes one number of its values."""
        return self._best.rank.reduction

    def require_parts(self, storage: Storage, sampler: Sampler) -> None:
        """Raises unless the rows of a storage can be replaced out of order.

        Args:
            storage: The storage of the buffer.
            sampler: Its sampler.

        Raises:
            TypeError: A storage that holds no leaves by key.
            ValueError: A `ConsumingSampler`, a storage of several dimensions, or one or a sampler
                that single rows, or several processes, do not go with.
        """
        if not isinstance(storage, TensorStorage):
            raise TypeError(
                f"the best are kept in a storage of tensordicts, not in a "
                f"{type(storage).__name__}: use LazyTensorStorage."
            )
        if storage.ndim > 1:
            raise ValueError(
                f"in a storage with ndim={storage.ndim} a row has its place in a column, and the "
                "best rows, or trajectories of several lengths, fill no columns: use ndim=1, which "
                "takes [B, T] batches too."
            )
        if isinstance(sampler, ConsumingSampler):
            raise ValueError(
                "rows that stay get other row ids when some are replaced, so a ConsumingSampler "
                "would draw them again: use SamplerWithoutReplacement, or another writer."
            )
        if self.by == "row":
            _require_single_rows(storage, sampler)
        elif storage.is_shared:
            _require_one_writer(storage, sampler)

    def store(self, storage: Storage, rows: Any, *, elements: bool) -> torch.Tensor:
        """Stores what is among the best.

        Args:
            storage: Where.
            rows: A tensordict of rows, or of elements along its first dimension.
            elements: Whether each is what `add` takes, perhaps a whole trajectory.

        Returns:
            The position of each, int64 `[n]`; -1 if it is not stored.

        Raises:
            TypeError: Something else than a tensordict.
            KeyError: The leaf that ranks rows is missing.
            ValueError: A rank is NaN.
            RuntimeError: Another process has stored rows.
        """
        if not isinstance(rows, TensorDictBase):
            raise TypeError(
                f"the best are kept of tensordicts, got {type(rows).__name__}: wrap it, "
                "TensorDict(leaves, batch_size=[rows])."
            )
        assert isinstance(storage, TensorStorage)  # of the parts that fit
        here, self._process = os.getpid(), self._process or os.getpid()
        if here != self._process:
            raise RuntimeError(
                f"process {self._process} chooses the best rows of this buffer, and knows their "
                f"ranks: let it store what process {here} has, which may sample."
            )
        return self._best.store(storage, rows, elements=elements)

    def tell(self, storage: Storage, sampler: Sampler) -> None:
        """Tells a sampler which stored rows the last `store` replaced or moved.

        Args:
            storage: Where the rows are.
            sampler: The sampler of the buffer.
        """
        assert isinstance(storage, TensorStorage)  # of the parts that fit
        self._best.tell(storage, sampler)

    def note_changes(self, changed: TensorDictBase | None = None) -> None:
        """Ranks the stored rows anew before the next write, if what ranks them is changed.

        Args:
            changed: The leaves that are; any of them unless given.
        """
        if changed is None or changed.get(self.rank_key, None) is not None:
            self._best.is_changed = True

    def reset(self) -> None:
        """Ranks the stored rows anew before the next write, because there are other rows."""
        self._best.forget()

    def state_dict(self) -> dict[str, Any]:
        """Ranks and ages of what is stored, and the rows of unfinished trajectories."""
        return self._best.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of another writer, whose rows are loaded too.

        Args:
            state: What its `state_dict` returned.
        """
        self._best.load_state_dict(state)

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter({self.rank_key!r}, {self.reduction!r}, by={self.by!r})"


def _require_single_rows(storage: TensorStorage, sampler: Sampler) -> None:
    """Raises for what rows do not go with that are kept each for itself."""
    if storage.is_shared:
        raise ValueError(
            f"the best rows are replaced out of order, which other processes that read this "
            f"{type(storage).__name__} would see half done: use a LazyTensorStorage without "
            'shared=True and keep it by dumps(), or by="trajectory".'
        )
    if storage.lossless is not False:
        raise ValueError(
            "the best rows continue no other row, so a lossless storage would hold every next "
            'observation anyway: use lossless=False, or by="trajectory".'
        )
    if sampler.draws_slices:
        raise ValueError(
            "the best rows are no trajectories, so there are no slices of them: use "
            'by="trajectory".'
        )


def _require_one_writer(storage: TensorStorage, sampler: Sampler) -> None:
    """Raises unless one process lays rows out anew in a storage of several."""
    if not storage.session.takes_turns:
        raise ValueError(
            f"the best are chosen by one process, and {storage.session.lanes} may write to this "
            f"{type(storage).__name__} at a time: give it lanes=1."
        )
    if isinstance(sampler, PrioritizedSampler) and not sampler.private_priorities:
        raise ValueError(
            "rows are laid out anew where trajectories are replaced, and so would be priorities "
            "that other processes draw by: use private_priorities=True."
        )
