"""Reference implementation of the trajectory index: a list of rows for each trajectory."""

from __future__ import annotations

from collections.abc import Sequence


class ReferenceIndex:
    """`TrajectoryIndex` for one lane, computed row by row."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # the id of the next row, and the oldest live one
        self.indexed = self.low = 0
        self._chains: list[list[int]] = []
        self._pieces: list[list[int]] = []

    def append(self, first_number: int, back: Sequence[int]) -> None:
        """Appends rows; the rows that they overwrite are dropped first."""
        # back: the distance of each row to its predecessor, 0 without one, -1 for padding
        self.drop_before(first_number + len(back) - self.capacity)
        for number, distance in enumerate(back, first_number):
            if distance >= 0:
                self._take_in(number, number - distance if distance else -1)
        self.indexed = first_number + len(back)

    def drop_before(self, number: int) -> None:
        """Drops the rows before a row id."""
        self.low = max(self.low, number)
        self.indexed = max(self.indexed, number)
        for rows in self._chains:
            rows[:] = [row for row in rows if row >= self.low]
        self._chains = [rows for rows in self._chains if rows]
        self._pieces = [rows for rows in self._pieces if rows[-1] >= self.low]

    def chains(self) -> list[tuple[int, ...]]:
        """The row ids of every live trajectory, sorted."""
        return sorted(map(tuple, self._chains))

    @property
    def one_row_pieces(self) -> int:
        """Live pieces that never had more than one row."""
        return sum(len(rows) == 1 for rows in self._pieces)

    @property
    def pieces(self) -> int:
        """Live pieces."""
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
