"""A ring with its links, and the rows that were written as a plain list."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import TensorDictBase

from rl_layout.internals import MarkedRow, continues, marked_rows
from rl_replay.linking.links import Links
from rl_replay.linking.markers import Extent, MarkerKeys
from rl_replay.storages.private_session import PrivateRing
from rl_slabs import RowSchema


class LinkedRing:
    """Writes rows as a storage does, without their bytes, and finds their links in two ways.

    Args:
        capacity: Rows of the ring.
        example: A row; its markers are those of all rows.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> ring = LinkedRing(10, trajectories([1]))
        >>> ring.extend(trajectories([3, 2]))
        [0, 1, 1, 0, 1]
        >>> ring.live_links() == ring.expected() == {1: 0, 2: 1, 4: 3}
        True
    """

    def __init__(self, capacity: int, example: TensorDictBase) -> None:
        self.ring = PrivateRing(capacity)
        self.links = Links(capacity, MarkerKeys.of(RowSchema.from_tensordict(example)))
        self.history: list[TensorDictBase | None] = []  # every row by its id; None for no row

    def extend(self, batch: TensorDictBase, dim_extend: int = 0) -> list[int]:
        """Writes a batch, and returns how far each row is from its predecessor."""
        extent = Extent.of(tuple(batch.batch_size), dim_extend)
        if dim_extend:
            batch = batch.transpose(0, dim_extend)
        cells = batch.reshape(-1)
        span = self.ring.reserve(len(cells))
        found = self.links.match(cells, extent, span.numbers)
        self.links.write(span, found)
        self.ring.publish(len(cells))
        self.history += list(cells.unbind(0))
        distances: list[int] = found.back.tolist()
        return distances

    def empty(self) -> None:
        """Drops every row."""
        self.ring.empty()
        self.links.forget()
        self.history += [None] * (self.ring.published - len(self.history))

    def live_links(self) -> dict[int, int]:
        """The row before, by row id, where both are live."""
        numbers = range(self.ring.first, self.ring.published)
        back = {n: int(self.links.back[n % self.ring.capacity]) for n in numbers}
        return {n: n - b for n, b in back.items() if b > 0 and n - b >= self.ring.first}

    def expected(self) -> dict[int, int]:
        """The same, from the markers of every pair of live rows."""
        live = [(n, self.history[n]) for n in range(self.ring.first, self.ring.published)]
        return linked([(n, marked_rows(row.unsqueeze(0))[0]) for n, row in live if row is not None])


def linked(live: Sequence[tuple[int, MarkedRow]]) -> dict[int, int]:
    """The predecessor of each live row, by ids and steps alone."""
    # live: row ids and rows, the oldest first, no step twice
    return {
        later: earlier
        for place, (later, row) in enumerate(live)
        for earlier, other in live[:place]
        if row.numbered and continues(other, row)
    }
