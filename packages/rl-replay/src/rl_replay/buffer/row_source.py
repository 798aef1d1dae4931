"""Rows alongside those of a sample, for transforms that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_replay.shared.storage import SharableStorage
from rl_replay.storages.tensor import TensorStorage
from rl_tensordict import NestedKey

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


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
        if isinstance(storage, SharableStorage) and storage.common:
            found, whole = storage.read_standing(numbers.reshape(-1), list(keys))
            return found.reshape(rows.shape), standing & whole.reshape(rows.shape)
        found = storage.read_keys(ring.positions(numbers), list(keys))
        return found, standing & ring.is_live(rows)

    def after(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps later in the same trajectories."""
        numbers = rows.reshape(-1).cpu().numpy()
        if self._storage.common:
            found, proved = self._linked(numbers, k)
        else:
            found, proved = self._storage.trajectories().after(numbers, k)
        return (
            torch.from_numpy(found).reshape(rows.shape),
            torch.from_numpy(proved).reshape(rows.shape),
        )

    def before(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps earlier in the same trajectories; see `after`."""
        return self.after(rows, -k)

    def _linked(self, numbers: Ints, k: int) -> tuple[Ints, Flags]:
        """`after` where others write: what the index says counts where links lead there too."""
        if k < 0:
            return self._earlier(numbers, -k)
        found, there = self._storage.trajectories().after(numbers, k)
        found = np.where(there, found, numbers)
        begun, proved = self._earlier(found, k)
        # rows are older than those that continue them: the first one is valid as long as any
        return found, there & proved & (begun == numbers)

    def _earlier(self, numbers: Ints, k: int) -> tuple[Ints, Flags]:
        """Go k links back, and see afterwards whether the rows on the way still stand."""
        ring, back = self._storage.ring, self._storage.back
        there = ring.is_live(torch.from_numpy(numbers)).numpy()
        found = np.where(there, numbers, ring.window().first[0])
        for _ in range(k):
            distance = back[ring.positions(torch.from_numpy(found)).numpy()]
            there = there & (distance > 0)
            found = np.where(there, found - distance, found)
        stands = ring.is_live(torch.from_numpy(found)).numpy()
        return np.where(stands, found, numbers), there & stands
