"""Where the memory of rows comes from, for storages of one process."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.layout import StorageLayout
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_slabs import Rows, Slab

Back = NDArray[np.int32]


class Allocator(Protocol):
    """Allocates rows for a session; `rl_replay.shared.files` has those that processes share."""

    def rows(
        self, layout: StorageLayout, capacity: int, back: Back, device: torch.device
    ) -> RowStore:
        """Memory for rows whose links are in `back`."""
        ...


class GivenTensors:
    """Refuses to allocate: the rows are tensors of the caller's."""

    def rows(
        self, layout: StorageLayout, capacity: int, back: Back, device: torch.device
    ) -> RowStore:
        """Raises: there is no other memory."""
        raise RuntimeError(
            f"the tensors of this storage hold other rows, not {list(layout.schema)} of which "
            f"there would be {capacity}: make another storage."
        )


class FirstWrite:
    """Allocates memory on a device for rows like the first that are written."""

    def rows(
        self, layout: StorageLayout, capacity: int, back: Back, device: torch.device
    ) -> RowStore:
        """Rows with every leaf as it came, or with observations once."""
        if layout.lossless is not None:
            return LosslessRows.allocate(layout.lossless, capacity, back=back, device=device)
        if device.type == "cpu":
            return PlainRows(Slab.private(layout.schema, capacity).rows)
        return PlainRows(Rows.zeros(layout.schema, capacity, device=device))
