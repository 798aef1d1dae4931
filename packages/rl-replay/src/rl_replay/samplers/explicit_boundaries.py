"""Trajectories whose boundaries the caller gives as tensors, instead of stored markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.trajectories.index import TrajectoryIndex
from rl_slabs import Window

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class ExplicitBoundaries:
    """Ends or ids, one for each row of a storage that is not written any more."""

    # The index is built by the first sample, and again if the storage holds other rows.

    def __init__(
        self, *, ends: torch.Tensor | None = None, trajectories: torch.Tensor | None = None
    ) -> None:
        if (ends is None) == (trajectories is None):
            raise TypeError("give either ends or trajectories, as one tensor: got both or neither.")
        self._name, given = ("trajectories", trajectories) if ends is None else ("ends", ends)
        if not isinstance(given, torch.Tensor):
            raise TypeError(
                f"ends and trajectories are tensors, got {type(given).__name__}: use "
                "torch.as_tensor(...)."
            )
        values: NDArray[Any] = given.cpu().numpy()
        self._values = values if ends is None else values.astype(np.bool_)
        self._index: TrajectoryIndex | None = None
        self._window: Window | None = None

    def index(self, storage: Storage) -> TrajectoryIndex:
        """The trajectories of the rows that can be read now."""
        window = storage.ring.window()
        if self._index is None or window != self._window:
            self._window, self._index = window, self._make(storage, window)
        return self._index

    def _make(self, storage: Storage, window: Window) -> TrajectoryIndex:
        if len(window.first) > 1:
            raise ValueError(
                f"ends and trajectories describe one ring, and this storage has {len(window.first)}"
                " lanes: store markers with the rows."
            )
        if self._values.size != len(window):
            raise ValueError(
                f"{self._name} must have one entry for each of the {len(window)} rows of the "
                f"storage: got {self._values.size}. Give them anew after writing, or store markers "
                "with the rows."
            )
        stride = storage.columns.numel()
        numbers = np.arange(window.first[0], window.first[0] + len(window))
        values, arrangement = self._values, storage.arrangement
        shown = arrangement.swapped((len(window) // stride, *storage.columns))
        if values.shape[: len(shown)] == shown:  # of `buffer[:]`; else rows are by position
            values = values.reshape(shown).swapaxes(0, arrangement.dim_extend)
        ordered = values.reshape(-1)[storage.ring.positions(torch.from_numpy(numbers)).numpy()]
        before, after = ordered[:-stride], ordered[stride:]
        back = np.zeros(len(numbers), dtype=np.int64)
        back[stride:] = stride * (~before if self._name == "ends" else before == after)
        index = TrajectoryIndex(storage.ring.capacity)
        index.drop_before(window.first[0])
        index.append(window.first[0], back)
        return index
