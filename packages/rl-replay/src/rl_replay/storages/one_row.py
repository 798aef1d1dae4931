"""The quick way to write one row: numpy columns, no tensordict operation."""

from __future__ import annotations

from rl_slabs import Rows
from rl_slabs.plain_leaves import Known


class OneRow:
    """Writes single rows whose leaves are known to fit.

    Args:
        rows: On the CPU.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl_slabs import RowSchema
        >>> from rl_slabs.plain_leaves import PlainLeaves
        >>> rows = Rows.zeros(RowSchema({"reward": (torch.float32, (1,))}), 5)
        >>> leaves = PlainLeaves(rows.schema).of(TensorDict({"reward": torch.ones(1)}), 0)
        >>> OneRow(rows).write(2, leaves)
        >>> rows.read(2)["reward"]
        tensor([1.])
    """

    def __init__(self, rows: Rows) -> None:
        self._columns = rows.columns()

    def write(self, position: int, leaves: Known) -> None:
        """Write a row.

        Args:
            position: Where.
            leaves: What `PlainLeaves.of` returned.
        """
        columns = self._columns
        for key, array in leaves.items():
            columns[key][position] = array
