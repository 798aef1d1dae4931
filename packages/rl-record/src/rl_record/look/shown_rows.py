"""The rows that a page shows, whatever holds them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict import CPU

SMALL_BYTES = 256  # of a leaf of one row; larger ones are read for some rows only


class LeafType(NamedTuple):
    """What is known of a leaf before it is read."""

    key: tuple[str, ...]
    dtype: torch.dtype | None  # None for what is no dense tensor
    shape: tuple[int, ...]  # of one row
    note: str = ""  # why there are no numbers

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        size = 0 if self.dtype is None else self.dtype.itemsize
        return size * torch.Size(self.shape).numel()

    @property
    def is_small(self) -> bool:
        """Whether it is read for all rows."""
        return self.dtype is not None and self.row_bytes <= SMALL_BYTES


class SampledRows(NamedTuple):
    """What one `sample()` of a buffer drew."""

    rows: Tensor  # int64 [n], the flat rows in the order of the sample; -1 if there is none
    slice_ids: Tensor | None  # int64 [n]
    title: str  # of the sampler
    problem: str = ""  # why nothing could be drawn


class ShownRows(Protocol):
    """Rows that can be read leaf by leaf; a flat row is counted with time running fastest."""

    title: str
    batch: TensorDictBase
    """The small leaves of all rows, ``[N]`` or ``[*B, T]``, on the CPU."""
    leaves: list[LeafType]
    sample: SampledRows | None

    def read(self, key: tuple[str, ...], rows: Tensor | None = None) -> Tensor:
        """A leaf of some flat rows, int64 ``[R]``, or of all; ``[R, ...]`` on the CPU."""
        ...


def spread_rows(count: int, most: int) -> Tensor:
    """At most so many of `count` rows, evenly spaced, the first and the last among them."""
    if count <= most:
        return torch.arange(count, device=CPU)
    # in whole numbers: float64 does not tell rows of huge counts apart
    return torch.arange(most, device=CPU) * (count - 1) // max(1, most - 1)
