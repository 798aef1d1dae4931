"""How a transform reads rows alongside those of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict import NestedKey


@runtime_checkable
class RowSource(Protocol):
    """Stored rows that can be read by number, with a mask of what the markers prove.

    A buffer hands one to every transform with ``needs_rows = True``. Rows are never-reused write
    numbers, as ``("collector", "row")`` holds them in a sample; one that is not stored any more
    is masked out, not an error.

    Example:
        >>> from rl_layout.reference import ListRowSource
        >>> from rl_layout.synthetic import trajectories
        >>> isinstance(ListRowSource(trajectories([2, 3])), RowSource)
        True
    """

    def read(self, rows: Tensor, keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read keys of some rows.

        Args:
            rows: int64 ``[*R]``.
            keys: the leaves to read.

        Returns:
            A tensordict ``[*R]``, and which of its rows hold what was asked for, bool ``[*R]``.
        """
        ...

    def after(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the rows k steps later in the same trajectory.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps later, at least 1.

        Returns:
            Their numbers, int64 ``[*R]``, and where the markers prove them, bool ``[*R]``.
        """
        ...

    def before(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the rows k steps earlier in the same trajectory.

        Args:
            rows: int64 ``[*R]``.
            k: how many steps earlier, at least 1.

        Returns:
            Their numbers, int64 ``[*R]``, and where the markers prove them, bool ``[*R]``.
        """
        ...
