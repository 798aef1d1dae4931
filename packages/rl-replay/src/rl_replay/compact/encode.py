"""Rows in compact form, made piece by piece: leaves of the steps, leaves kept once, exceptions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.checkpoint.parts import SMALL_BYTES
from rl_replay.data.bits import same_bits
from rl_replay.storages.row_store import RowStore
from rl_slabs.internals import Field, carrier
from rl_tensordict.types import Ints, KeyPath

_MANY = 4
"""Where more than one row in so many is an exception, a pair of leaves is kept as it is."""


class SharedPair(NamedTuple):
    """A leaf at the root and the same leaf of the next step."""

    root: Field
    next: Field


@dataclass
class CompactRows:
    """The rows of a store by trajectory."""

    # A leaf under `"next"` that equals the root's of the next row bit for bit, wherever one row
    # continues another, is kept once: a row for each step, and one more for each trajectory. The
    # rows where it does not are exceptions, whose values are kept as well.

    store: RowStore
    positions: Ints  # The position of each row, by trajectory, int64 [N]
    lengths: Ints  # Rows of each trajectory, int64 [S]
    fields: tuple[Field, ...]
    apart: Collection[str] = ()  # Leaves that are never kept once, by their last name
    exceptions: dict[KeyPath, Ints] = field(default_factory=dict)  # by pair, the rows; int64 [k]

    def __post_init__(self) -> None:
        ends = np.zeros(len(self.positions), np.bool_)  # [N], by trajectory
        ends[np.cumsum(self.lengths) - 1] = True
        self._ends = ends
        by_path = {one.path: one for one in self.fields}
        found = []
        for one in self.fields:
            other = by_path.get(keys.next_key(one.path))
            alike = other is not None and (other.dtype, other.shape) == (one.dtype, one.shape)
            if alike and one.nbytes and one.path[0] != keys.NEXT and one.path[-1] not in self.apart:
                found.append(SharedPair(one, by_path[keys.next_key(one.path)]))
        wrong = self._differences(found) if found else {}
        limit = len(self.positions) // _MANY
        self.pairs = [pair for pair in found if len(wrong[pair.root.path]) <= limit]
        self.exceptions = {pair.root.path: wrong[pair.root.path] for pair in self.pairs}
        once = {path for pair in self.pairs for path in (pair.root.path, pair.next.path)}
        self.steps = [one for one in self.fields if one.path not in once]

    def blocks(self, fields: Collection[Field]) -> Iterator[slice]:
        """Runs of rows whose leaves take a piece of memory together."""
        each = max(1, sum(one.nbytes for one in fields))
        step = max(1, SMALL_BYTES // each)
        for start in range(0, len(self.positions), step):
            yield slice(start, min(start + step, len(self.positions)))

    def read(self, rows: slice | Ints, fields: Collection[Field]) -> list[torch.Tensor]:
        """Leaves of some rows, in the order of `fields`."""
        places = torch.from_numpy(self.positions[rows]).to(self.store.device)
        cells = self.store.read(places, keys=[one.key for one in fields])
        return [cells.get(one.key) for one in fields]

    def shared(self, rows: slice, root: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """A piece of a leaf that is kept once: its values, and the next ones where rows end."""
        ends = self._ends[rows]
        places = np.arange(len(ends))
        places[1:] += np.cumsum(ends[:-1])  # an extra row comes after each end
        made = torch.empty(
            (len(ends) + int(ends.sum()), *root.shape[1:]), dtype=carrier(root.dtype), device="cpu"
        )
        array = made.numpy()
        array[places] = _moved(root)  # the gaps, one after each end, get the next values
        array[places[ends] + 1] = _moved(after)[np.flatnonzero(ends)]
        return made.view(root.dtype)

    def shared_pieces(self, pair: SharedPair) -> Iterator[torch.Tensor]:
        """All of a leaf that is kept once."""
        for rows in self.blocks(pair):
            yield self.shared(rows, *self.read(rows, pair))

    def step_pieces(self, one: Field) -> Iterator[torch.Tensor]:
        """All of another leaf."""
        for rows in self.blocks([one]):
            yield self.read(rows, [one])[0]

    def exception_pieces(self, pair: SharedPair) -> Iterator[torch.Tensor]:
        """The next values of the rows that are exceptions."""
        rows = self.exceptions[pair.root.path]
        step = max(1, SMALL_BYTES // max(1, pair.next.nbytes))
        for start in range(0, len(rows), step):
            yield self.read(rows[start : start + step], [pair.next])[0]

    def _differences(self, pairs: list[SharedPair]) -> dict[KeyPath, Ints]:
        """For each pair the rows that are continued and whose next value is another one."""
        found: dict[KeyPath, list[Ints]] = {pair.root.path: [] for pair in pairs}
        fields = [one for pair in pairs for one in pair]
        for rows in self.blocks(fields):
            # one row more: that of the next block
            more = slice(rows.start, min(rows.stop + 1, len(self.positions)))
            leaves = self.read(more, fields)
            goes_on = ~self._ends[more][:-1]  # the last row of a trajectory keeps its next value
            for pair, root, after in zip(pairs, leaves[::2], leaves[1::2], strict=True):
                same = same_bits(_moved(after)[:-1], _moved(root)[1:])
                wrong = np.flatnonzero(~same & goes_on)
                if len(wrong):
                    found[pair.root.path].append(wrong + rows.start)
        nothing = [np.zeros(0, np.int64)]
        return {path: np.concatenate(parts or nothing) for path, parts in found.items()}


def _moved(leaf: torch.Tensor) -> NDArray[Any]:
    """A leaf as an array in a dtype that numpy knows."""
    array: NDArray[Any] = leaf.view(carrier(leaf.dtype)).cpu().numpy()
    return array
