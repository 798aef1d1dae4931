"""Room for copies of rows that come from several places and become one TensorDict."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict

from rl_slabs.dtypes import carrier
from rl_slabs.rows.unpack import Plan
from rl_slabs.schema import RowSchema
from rl_tensordict import CPU


class RowBlock:
    """Memory for copies of rows of one schema on the CPU; `Rows.gather_into` fills it.

    Attributes:
        words: The packed leaves, `[rows, schema.row_bytes / 8]`; None if no leaf is packed.
        arrays: The large leaves, each `[rows, *shape]`, in the order of the schema.
    """

    def __init__(self, schema: RowSchema, plan: Plan, count: int) -> None:
        self._plan = plan
        self.words = np.empty((count, schema.row_bytes // 8), np.int64) if plan.packed else None
        self.arrays = [
            torch.empty(count, *field.shape, dtype=carrier(field.dtype), device=CPU)
            for field in schema.large
        ]

    def tensordict(self, shape: torch.Size) -> TensorDict:
        """All of its rows, as views.

        Args:
            shape: The batch size; as many rows as the block has.
        """
        words = self.words
        packed = None if words is None else words.reshape(*shape, words.shape[1])
        arrays = [
            array.view(dtype).view(*shape, *array.shape[1:])
            for array, (_, dtype) in zip(self.arrays, self._plan.large, strict=True)
        ]
        return self._plan.unpack[packed is not None, False](packed, arrays, shape)
