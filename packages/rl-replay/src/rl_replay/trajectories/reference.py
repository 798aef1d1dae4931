"""The trajectory index in its plainest form: a list of rows for each trajectory."""

from __future__ import annotations

from collections.abc import Sequence


class ReferenceIndex:
    """What `TrajectoryIndex` says, worked out row by row. One lane.

    Attributes:
        capacity: Rows that stand at the same time.
        indexed: The number of the next row.
        low: The oldest number that stands.

    Example:
        >>> index = ReferenceIndex(5)
        >>> index.append(0, [0, 1, 0, 1])
        >>> index.chains()
        [(0, 1), (2, 3)]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.indexed = self.low = 0
        self._chains: list[list[int]] = []
        self._pieces: list[list[int]] = []

    def append(self, first_number: int, back: Sequence[int]) -> None:
        """Take in new rows; those that they overwrite are dropped before.

        Args:
            first_number: The number of the first, the one after the last that was taken in.
            back: For each how many numbers before it the row lies that it continues; 0 where it
                continues none, -1 where it is not real.

        Example:
            >>> ReferenceIndex(5).append(0, [0, 1])
        """
        self.drop_before(first_number + len(back) - self.capacity)
        for number, distance in enumerate(back, first_number):
            if distance >= 0:
                self._take_in(number, number - distance if distance else -1)
        self.indexed = first_number + len(back)

    def drop_before(self, number: int) -> None:
        """Drop the rows before a number.

        Example:
            >>> index = ReferenceIndex(5)
            >>> index.append(0, [0, 1, 1]), index.drop_before(2), index.chains()
            (None, None, [(2,)])
        """
        self.low = max(self.low, number)
        self.indexed = max(self.indexed, number)
        for rows in self._chains:
            rows[:] = [row for row in rows if row >= self.low]
        self._chains = [rows for rows in self._chains if rows]
        self._pieces = [rows for rows in self._pieces if rows[-1] >= self.low]

    def chains(self) -> list[tuple[int, ...]]:
        """The numbers of every trajectory that stands, sorted.

        Example:
            >>> ReferenceIndex(5).chains()
            []
        """
        return sorted(map(tuple, self._chains))

    @property
    def one_row_pieces(self) -> int:
        """Pieces that stand and never had more than one row."""
        return sum(len(rows) == 1 for rows in self._pieces)

    @property
    def pieces(self) -> int:
        """Pieces that stand."""
        return len(self._pieces)

    def _take_in(self, number: int, before: int) -> None:
        chain = next((rows for rows in self._chains if rows[-1] == before), None)
        if chain is None:
            self._chains.append([number])
            self._pieces.append([number])
            return
        chain.append(number)
        piece = next(rows for rows in self._pieces if rows[-1] == before)
        if len(piece) == 1 or piece[1] - piece[0] == number - before:
            piece.append(number)
        else:
            self._pieces.append([number])
