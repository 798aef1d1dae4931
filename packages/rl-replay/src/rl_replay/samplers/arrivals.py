"""Rows that were written since the last look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_slabs import Window
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage


class Arrivals:
    """The ids of new rows, lane by lane; each once."""

    def __init__(
        self, state: Mapping[Any, int] | None = None, rows_of: tuple[int, int] | None = None
    ) -> None:
        self._next: dict[int, int] = {int(lane): int(row) for lane, row in (state or {}).items()}
        self.rows_of = rows_of  # the storage whose rows are known; None for the next one

    def begin_anew(self, storage: Storage) -> bool:
        """Forget all rows if the storage changed, or another process loaded it anew."""
        here = storage.identity.number, storage.epoch
        known, self.rows_of = self.rows_of, here
        if known in (None, here):
            return False
        self._next.clear()
        return True

    def state(self) -> dict[str, int]:
        """The id that the next row of each lane will have, by lane as a name of a dump's part."""
        return {str(lane): row for lane, row in self._next.items()}

    def take(self, window: Window) -> Iterator[tuple[int, Ints]]:
        """Each lane with the ids, int64 `[n]`, of its rows that were not there before."""
        for lane, (first, count) in enumerate(zip(window.first, window.counts, strict=True)):
            begin, end = max(first, self._next.get(lane, first)), first + count
            if begin < end:
                yield lane, np.arange(begin, end)
                self._next[lane] = end  # not where the caller refuses the rows
