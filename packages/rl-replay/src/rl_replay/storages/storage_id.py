"""The number of a storage, by which a sample says whose rows it holds."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Self

import numpy as np
import torch

_POSITIVE = (1 << 63) - 1


class StorageId:
    """A number that no other storage has, as samples carry it: once for each row."""

    # Drawn apart from all seeds. It goes with a storage to other processes, and who opens the files
    # of a folder has that of the folder; a dump does not keep it.

    __slots__ = ("_last", "_rows", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._rows = np.full(0, number)
        self._last = torch.from_numpy(self._rows)  # the leaf that was made last

    @classmethod
    def drawn(cls) -> Self:
        """A new one."""
        return cls(uuid.uuid4().int & _POSITIVE)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """That of every storage whose files are in a folder."""
        found = folder.stat()
        return cls(hash((found.st_dev, found.st_ino)) & _POSITIVE)

    def __reduce__(self) -> tuple[type[StorageId], tuple[int]]:
        return type(self), (self.number,)

    def leaf(self, count: int) -> torch.Tensor:
        """It for each of some rows, int64 `[count]`, in memory of its own."""
        if len(self._rows) != count:
            self._rows = np.full(count, self.number)
        self._last = torch.from_numpy(self._rows.copy())
        return self._last

    def require(self, leaf: torch.Tensor) -> None:
        """Raises for rows of another storage."""
        if leaf is self._last:  # most often
            return
        found = leaf.cpu().numpy()
        other = found != self.number
        if other.any():
            raise ValueError(
                f"{int(other.sum())} of {len(found)} rows are of another buffer: give priorities "
                "to the buffer that the sample was drawn from."
            )
