"""The rank of rows and of trajectories, read from a leaf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.storages import TensorStorage
from rl_slabs import Window
from rl_tensordict import NestedKey, as_key, leaves

RankReduction = Literal["sum", "mean", "max", "min", "median"]
RankArray = NDArray[np.float64]

SeenRows = tuple[int, int, Window]
"""Which rows are ranked: their storage, how often other processes loaded them, and their ids."""


def rows_of(storage: TensorStorage) -> SeenRows:
    """The rows that a storage has now."""
    return storage.identity.number, storage.epoch, storage.ring.window()


@dataclass(frozen=True)
class RankKey:
    """Where ranks are read, and what makes one number of several."""

    key: NestedKey = keys.NEXT_REWARD
    reduction: RankReduction = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in get_args(RankReduction):
            raise ValueError(
                f"reduction is one of {', '.join(get_args(RankReduction))}: got {self.reduction!r}."
            )

    def of(self, rows: TensorDictBase, count: int) -> RankArray:
        """The ranks of so many elements, each of which has as many of the values."""
        leaf = rows.get(self.key, None)
        if not isinstance(leaf, torch.Tensor):
            found = [as_key(key) for key, _ in leaves(rows)]
            raise KeyError(
                f"rows are ranked by {self.key!r}, which is not among their leaves {found}: give "
                "rank_key to the writer."
            )
        if leaf.is_complex():
            raise TypeError(f"{self.key!r} is complex, and ranks are real numbers.")
        values = leaf.detach().reshape(count, -1).double().cpu()
        if not values.shape[1]:
            raise ValueError(f"{self.key!r} has no value in a row, so nothing ranks it.")
        ranks = cast("RankArray", self._reduced(values).numpy())
        if np.isnan(ranks).any():
            raise ValueError(
                f"the rank of element {int(np.flatnonzero(np.isnan(ranks))[0])} is NaN, which is "
                f"neither better nor worse than another: mend {self.key!r}."
            )
        return ranks

    def _reduced(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[1] == 1:
            return values[:, 0].clone()
        reduced: torch.Tensor = _REDUCTIONS[self.reduction](values, 1)
        return reduced


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "median": lambda values, dim: values.median(dim).values,
}
