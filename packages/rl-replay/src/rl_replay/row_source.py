"""Rows beside those of a sample, for transforms that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from rl_layout.keys import NestedKey
from rl_replay.storages.tensors import TensorStorage


class StoredRows:
    """The rows of a storage by number, each with a mask of what the markers prove.

    Args:
        storage: Where they are.

    Example:
        >>> from rl_layout import RowSource
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage
        >>> storage = LazyTensorStorage(9)
        >>> _ = storage.extend(trajectories([3, 2]))
        >>> source = StoredRows(storage)
        >>> source.after(torch.tensor([0, 2]), 1), isinstance(source, RowSource)
        ((tensor([1, 2]), tensor([ True, False])), True)
    """

    def __init__(self, storage: TensorStorage) -> None:
        self._storage = storage

    def read(
        self, rows: torch.Tensor, keys: Sequence[NestedKey]
    ) -> tuple[TensorDictBase, torch.Tensor]:
        """Read keys of some rows.

        Args:
            rows: Row numbers, int64 `[*R]`.
            keys: The leaves to read.

        Returns:
            A tensordict `[*R]`, and which of its rows stood while it was read, bool `[*R]`.
        """
        ring = self._storage.ring
        standing = ring.accept(rows)
        spare = ring.window().first[0]
        numbers = torch.where(standing, rows, spare)
        found = self._storage.read_keys(ring.positions(numbers), list(keys))
        return found, standing & ring.accept(rows)

    def after(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps later in the same trajectories.

        Args:
            rows: Row numbers, int64 `[*R]`.
            k: How many steps later.

        Returns:
            Their numbers, int64 `[*R]`, and where the markers prove them, bool `[*R]`.
        """
        index = self._storage.trajectories()
        found, proved = index.after(rows.reshape(-1).cpu().numpy(), k)
        return (
            torch.from_numpy(found).reshape(rows.shape),
            torch.from_numpy(proved).reshape(rows.shape),
        )

    def before(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows k steps earlier in the same trajectories; see `after`."""
        return self.after(rows, -k)
