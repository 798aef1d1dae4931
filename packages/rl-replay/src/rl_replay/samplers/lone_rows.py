"""Trajectories of one row each, whose slices have no length."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from rl_layout import keys
from rl_replay.trajectories.index import TrajectoryIndex
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage

_ENOUGH_ROWS = 32


class LoneRows:
    """Looks once whether slices are single rows because nothing joins the rows."""

    def __init__(self) -> None:
        self._looked = False

    def look(self, storage: Storage, index: TrajectoryIndex, numbers: Ints) -> None:
        """Warns if every trajectory has one row, and most of these rows end nothing."""
        if self._looked or index.steps < _ENOUGH_ROWS:
            return
        self._looked = True
        if index.steps > len(index) or _share_of_ends(storage, numbers) > 1 / 2:
            return
        warnings.warn(
            f"each of the {len(index)} trajectories in this buffer has one row, so slices are "
            "single rows: no stored row continues another one. Are next observations, bit for bit "
            "and in the same dtype, the observations of the rows after them? Otherwise store "
            "('collector', 'traj_ids') and ('collector', 'traj_step'). buffer.explain() says what "
            "joins rows.",
            stacklevel=2,
        )


def _share_of_ends(storage: Storage, numbers: Ints) -> float:
    """The share of rows that a flag ends, 0 to 1."""
    flags = (storage.leaf_of(torch.from_numpy(numbers), key) for key in keys.NEXT_DONE_KEYS)
    ends = [flag.reshape(len(numbers), -1).any(-1) for flag in flags if flag is not None]
    return float(torch.stack(ends).any(0).float().mean()) if ends else 0.0
