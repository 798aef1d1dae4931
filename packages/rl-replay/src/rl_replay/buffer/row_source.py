"""Rows alongside those of a sample, for transforms that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from rl_replay.storages.tensor import TensorStorage
from rl_tensordict import NestedKey


class StoredRows:
    """The rows of a storage by number, each with a mask of what the markers prove."""

    def __init__(self, storage: TensorStorage) -> None:
        self._storage = storage

    def read(
        self, rows: torch.Tensor, keys: Sequence[NestedKey]
    ) -> tuple[TensorDictBase, torch.Tensor]:
        """Read keys of some rows."""
        storage, ring = self._storage, self._storage.ring
        standing = ring.is_live(rows)
        spare = ring.window().first[0]
        numbers = torch.where(standing, rows, spare)
        found, whole = storage.read_standing(numbers, list(keys))
        return found, standing & whole

    def after(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps later in the same trajectories."""
        found, proved = self._storage.after(rows.reshape(-1).cpu().numpy(), k)
        return (
            torch.from_numpy(found).reshape(rows.shape),
            torch.from_numpy(proved).reshape(rows.shape),
        )

    def before(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps earlier in the same trajectories; see `after`."""
        return self.after(rows, -k)
