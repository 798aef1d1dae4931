"""What a ring of rows holds, as a plain dict: the model that storages are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ListModel:
    """A ring of rows in plain Python, to compare a storage or a buffer with.

    Row n of its life is at position n modulo the capacity, as in every storage.

    Args:
        capacity: How many rows it holds.

    Attributes:
        rows: The row at each position that holds one.
        row_ids: The row id at each of these positions.
        written: The row id of the next row.

    Example:
        >>> model = ListModel(3)
        >>> model.extend("abcd")
        [0, 1, 2, 0]
        >>> model.rows, model.row_ids
        ({0: 'd', 1: 'b', 2: 'c'}, {0: 3, 1: 1, 2: 2})
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: dict[int, Any] = {}
        self.row_ids: dict[int, int] = {}
        self.written = 0

    def __len__(self) -> int:
        return len(self.rows)

    def extend(self, rows: Iterable[Any]) -> list[int]:
        """Write rows over the oldest ones.

        Args:
            rows: The rows, which the model keeps as they are.

        Returns:
            Their positions.
        """
        positions = []
        for row in rows:
            position = self.written % self.capacity
            self.rows[position], self.row_ids[position] = row, self.written
            positions.append(position)
            self.written += 1
        return positions

    def replace(self, position: int, row: Any) -> None:
        """Replace the row at a position, which keeps its row id.

        Args:
            position: One that holds a row.
            row: The other row.

        Raises:
            KeyError: The position holds no row.
        """
        if position not in self.rows:
            raise KeyError(f"no row at {position}: there are rows at {sorted(self.rows)}.")
        self.rows[position] = row

    def empty(self) -> None:
        """Drop every row; the next one is at position 0, and row ids continue."""
        self.rows, self.row_ids = {}, {}
        self.written = -(-self.written // self.capacity) * self.capacity

    def contents(self) -> list[Any]:
        """List the rows in the order of their positions, as `buffer[:]` has them."""
        return [self.rows[position] for position in sorted(self.rows)]
