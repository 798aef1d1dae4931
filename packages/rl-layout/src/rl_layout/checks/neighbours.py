"""Rows of a batch and the pairs of neighbours among them, for the layout checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_layout.checks.report import Finding
from rl_layout.segments.markers import Markers
from rl_tensordict import NestedKey


class MarkerRows:
    """The flat rows of a batch with their markers; neighbours are adjacent along time."""

    # A flag on pairs is stored at the later row of the two.

    def __init__(
        self,
        markers: Markers,
        slice_ids: Tensor | None = None,
        lives: Tensor | None = None,
        drawn_alone: bool = False,
    ) -> None:
        self.markers = markers
        self.drawn_alone = drawn_alone  # rows of a sample that are no neighbours
        self.slice_ids = slice_ids
        # the end of a life, which a sample shows as that of an episode, and ids do not
        self.lives = self.flags() if lives is None else lives

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.markers.batch_shape.numel()

    @cached_property
    def places(self) -> Tensor:
        """The place of each row, int64 ``[N]``; findings are made on the CPU."""
        return torch.arange(self.size, device="cpu")

    def first_of(self, numbers: Tensor, places: Tensor) -> Tensor:
        """The least place of each number of rows, int64 ``[N]``; N for one that no row has."""
        first = torch.full((self.size,), self.size, device="cpu")
        return first.scatter_reduce(0, numbers, places, "amin")

    def flags(self, *, on: bool = False) -> Tensor:
        """One flag for all rows, bool ``[N]``."""
        return torch.full((self.size,), on, device="cpu")

    @cached_property
    def real(self) -> Tensor:
        """Real rows, bool ``[N]``."""
        mask = self.markers.mask
        return self.flags(on=True) if mask is None else mask.cpu()

    @cached_property
    def boundary(self) -> Tensor:
        """Rows at which the environment, or a cut marked as a truncation, ended a trajectory."""
        found = self.markers.boundary()
        return self.flags() if found is None else found.cpu()

    @cached_property
    def paired(self) -> Tensor:
        """Rows that have a real neighbour before them and are real, bool ``[N]``."""
        if self.drawn_alone:
            return self.flags()
        # [*B, T] flattened: every T-th row begins another row of the batch
        first = self.places % self.markers.batch_shape[-1] == 0
        return self.real & self.after(self.real) & ~first

    @cached_property
    def new_slice(self) -> Tensor:
        """Rows that begin another slice of a sample, bool ``[N]``."""
        if self.slice_ids is None:
            return self.flags()
        return self.paired & self.changed(self.slice_ids)

    def after(self, flag: Tensor) -> Tensor:
        """Move a flag from each row to the one after it, bool ``[N]``."""
        moved = self.flags()
        moved[1:] = flag[:-1].cpu()
        return moved

    def changed(self, values: Tensor, step: int = 0) -> Tensor:
        """Rows whose value is not ``step`` more than the one before, bool ``[N]``."""
        moved = self.flags()
        # row 0 has no row before it: False
        moved[1:] = (values[1:] != values[:-1] + step).cpu()
        return moved

    def found(
        self, severity: Literal["error", "note"], key: NestedKey, where: Tensor, message: str
    ) -> Iterator[Finding]:
        """Report the rows of a flag as one finding, or none."""
        rows = where.cpu().nonzero()[:, 0]
        if len(rows):
            # the first row of the finding, in the shape of the batch
            place = np.unravel_index(int(rows[0]), tuple(self.markers.batch_shape))
            yield Finding(severity, key, tuple(map(int, place)), len(rows), message)
