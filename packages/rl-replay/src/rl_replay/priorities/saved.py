"""Priorities of the rows of a window, as a checkpoint keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from rl_replay.priorities.memory import PriorityMemory
from rl_replay.priorities.row_ids import runs
from rl_slabs import Window
from rl_tensordict.types import Singles


class Saved(NamedTuple):
    """Priorities of the rows of a window."""

    window: Window
    priorities: Singles  # [rows], oldest first, lane by lane
    highest: float

    @classmethod
    def of(cls, memory: PriorityMemory, window: Window, lane_size: int) -> Self:
        """The priorities that some memory has of them."""
        found = [
            memory.priorities[place : place + stop - begin]
            for first, count in zip(window.first, window.counts, strict=True)
            for place, begin, stop in runs(first, first + count, lane_size)
        ]
        return cls(window, np.concatenate([np.zeros(0, np.float32), *found]), memory.highest)

    def parts(self, now: Window) -> Iterator[tuple[int, Singles]]:
        """Those of rows that another window has, lane by lane: the first row id, and priorities."""
        place, lanes = 0, len(self.window.first)
        if lanes != len(now.first):
            return
        for lane in range(lanes):
            first, count = self.window.first[lane], self.window.counts[lane]
            begin = max(first, now.first[lane])
            end = min(first + count, now.first[lane] + now.counts[lane])
            # `place` is where the lane begins in `priorities`; its row ids begin at `first`
            if begin < end:
                yield begin, self.priorities[place + begin - first : place + end - first]
            place += count


def went_back(seen: Window, window: Window) -> bool:
    """Whether rows were replaced by others, with smaller numbers or in another number of lanes."""
    if len(seen.first) != len(window.first):
        return True
    return any(
        now < first or now + rows < first + count
        for first, count, now, rows in zip(
            seen.first, seen.counts, window.first, window.counts, strict=True
        )
    )
