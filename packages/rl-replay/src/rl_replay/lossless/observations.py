"""Observations of batches, rows and overflow slots: copied and compared bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_layout.keys import STEPS_TO_NEXT_OBS
from rl_replay.lossless.bitwise import same_bits_on_device, same_rows
from rl_replay.lossless.layout import LosslessLayout, ObservationPair, Path
from rl_replay.lossless.overflow import OverflowTable
from rl_slabs import Rows
from rl_slabs.internals import bits_of, carrier

RowArray = NDArray[np.int64]


class Observations:
    """The observations that are stored once, in rows and in overflow slots."""

    def __init__(
        self, layout: LosslessLayout, rows: Rows, side: OverflowTable, *, on_host: bool
    ) -> None:
        self._layout, self._side = layout, side
        self._view = rows.view()
        # as numpy sees them in rows and in slots, where it does
        self._columns = _columns(layout, rows, side) if on_host else None

    def fill(
        self, slots: RowArray, numbers: RowArray, leaves: Mapping[Path, Any], rows: RowArray
    ) -> None:
        """Copies next observations of some rows of a batch into overflow slots of their own."""
        if self._columns is None:
            pairs = self._layout.pairs
            self._side.put(slots, numbers, {p.name: gather(leaves[p.next], rows) for p in pairs})
            return
        self._copy(slots, self._layout.pairs, leaves, rows)
        # last, so that no reader takes a half written slot for whole
        self._side.owners[slots] = numbers

    def overwrite(
        self,
        slots: RowArray,
        pairs: Sequence[ObservationPair],
        leaves: Mapping[Path, Any],
        rows: RowArray,
    ) -> None:
        """Copies some of the next observations of a batch into slots that have owners."""
        if self._columns is not None:
            self._copy(slots, pairs, leaves, rows)
            return
        given = {pair.name: gather(leaves[pair.next], rows) for pair in pairs}
        source = TensorDict(given, batch_size=[len(rows)])
        index = torch.from_numpy(slots).to(source[pairs[0].name].device)
        self._side.rows.write(index, source, keys=list(given))

    def _copy(
        self,
        slots: RowArray,
        pairs: Sequence[ObservationPair],
        leaves: Mapping[Path, Any],
        rows: RowArray,
    ) -> None:
        assert self._columns is not None  # the caller looked
        for pair, (_, column) in zip(self._layout.pairs, self._columns, strict=True):
            if pair in pairs:
                column[slots] = bits(leaves[pair.next])[rows]

    def stored(self, positions: RowArray) -> dict[Path, torch.Tensor]:
        """The observations of stored rows, as next observations of a batch."""
        pairs = self._layout.pairs
        return {pair.next: gather(self._view.get(pair.root), positions) for pair in pairs}

    def equal(self, positions: RowArray, slots: RowArray) -> NDArray[np.bool_]:
        """Whether each row's observation equals the one in an overflow slot, bool `[n]`."""
        same = np.ones(len(slots), dtype=np.bool_)
        if not same.size:
            return same
        if self._columns is not None:
            for one, two in self._columns:
                same &= same_rows(one, positions, two, slots)
            return same
        slot_leaves = self._side.rows.view()
        for pair in self._layout.pairs:
            root, slot = self._view.get(pair.root), slot_leaves.get(pair.name)
            equal = same_bits_on_device(gather(root, positions), gather(slot, slots))
            same &= equal.cpu().numpy()
        return same

    def steps(self, positions: RowArray) -> RowArray:
        """How far the next observations of n-step rows are away."""
        steps = gather(self._view.get(STEPS_TO_NEXT_OBS), positions)
        found: RowArray = steps.cpu().numpy().reshape(-1)
        return found


def _columns(
    layout: LosslessLayout, rows: Rows, side: OverflowTable
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The live columns of each observation in the rows and in the overflow table."""
    ours, theirs = rows.columns(), side.rows.columns()
    names = [layout.stored[pair.root].key for pair in layout.pairs]
    slot_names = names if side.space is not None else [pair.name for pair in layout.pairs]
    return [(ours[one], theirs[two]) for one, two in zip(names, slot_names, strict=True)]


def bits(leaf: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """A leaf as a numpy array of bits."""
    return bits_of(leaf, carrier(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def gather(leaf: torch.Tensor, rows: RowArray) -> torch.Tensor:
    """Some rows of a leaf of any dtype, `[k, *shape]`."""
    found = leaf.detach().resolve_conj().view(carrier(leaf.dtype))
    return found[torch.from_numpy(rows).to(leaf.device)].view(leaf.dtype)
