"""Segments laid out by time: the rows of each step, and pieces of several steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rl_layout import Segments


@dataclass(frozen=True)
class StepBlock:
    """Successive steps of a batch, each over all segments that are long enough."""

    rows: Tensor  # row of each cell, step after step, int64 [R], counted over real rows
    counts: list[int]  # how many segments take part in each step, descending
    begin: int  # cells in earlier pieces

    def steps(self, *parts: Tensor) -> Iterator[tuple[Any, ...]]:
        """Split tensors ``[R, ...]`` into views of steps; cheaper than one slice per step."""
        return zip(self.counts, *(part.split(self.counts) for part in parts), strict=True)

    def of(self, cells: Tensor) -> Tensor:
        """Slice this piece out of a tensor over all cells of the batch, ``[M, ...]``."""
        return cells[self.begin : self.begin + len(self.rows)]


class StepPlan:
    """The steps of a batch: step t holds row t of every segment longer than t."""

    # Columns are the segments from the longest to the shortest, so that the columns of a step are
    # the first ones of the step before.

    def __init__(self, segments: Segments) -> None:
        self.order = segments.order
        self.firsts = segments.offsets[:-1]
        lengths = segments.lengths[self.order]
        descending = lengths.cpu().numpy()  # the one copy to the host
        longest = int(descending[0]) if len(descending) else 0
        ends = np.searchsorted(descending[::-1], np.arange(longest), side="right")
        counts = len(descending) - ends  # segments longer than t, for each step t
        self.counts: list[int] = counts.tolist()
        device = lengths.device
        steps = torch.from_numpy(np.repeat(np.arange(longest), counts)).to(device)
        begins = np.repeat(np.cumsum(counts) - counts, counts)
        columns = torch.from_numpy(np.arange(len(begins)) - begins).to(device)
        self.rows = self.firsts[self.order][columns] + steps
        self._pieces: dict[int, list[StepBlock]] = {}

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return self.order.shape[0]

    @cached_property
    def inverse(self) -> Tensor:
        """Column of each segment, int64 ``[S]``."""
        columns = torch.arange(self.num_segments, device=self.order.device)
        return torch.empty_like(self.order).index_copy_(0, self.order, columns)

    def pieces(self, min_rows: int) -> list[StepBlock]:
        """Cut time into pieces of at least ``min_rows`` rows; the last may have fewer."""
        if min_rows not in self._pieces:
            self._pieces[min_rows] = self._cut(min_rows)
        return self._pieces[min_rows]

    def _cut(self, min_rows: int) -> list[StepBlock]:
        pieces: list[StepBlock] = []
        counts: list[int] = []
        begin = end = 0
        for step, count in enumerate(self.counts):
            counts.append(count)
            end += count
            if end - begin >= min_rows or step + 1 == len(self.counts):
                pieces.append(StepBlock(self.rows[begin:end], counts, begin))
                counts, begin = [], end
        return pieces


def step_plan(segments: Segments) -> StepPlan:
    """Lay segments out by time; cached as long as the segments live."""
    if segments not in _plans:
        _plans[segments] = StepPlan(segments)
    return _plans[segments]


_plans: WeakKeyDictionary[Segments, StepPlan] = WeakKeyDictionary()
