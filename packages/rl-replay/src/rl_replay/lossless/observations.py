"""Observations of batches, rows and overflow slots: copied and compared bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rl_layout.keys import STEPS_TO_NEXT_OBS
from rl_replay.data.bits import same_bits, same_rows
from rl_replay.lossless.layout import LosslessLayout, ObservationPair
from rl_replay.lossless.overflow import OverflowTable
from rl_slabs import Rows
from rl_slabs.internals import bits_of, carrier
from rl_tensordict.types import Ints, KeyPath


class Observations:
    """The observations that are stored once, in rows and in overflow slots."""

    def __init__(
        self, layout: LosslessLayout, rows: Rows, side: OverflowTable, *, on_host: bool
    ) -> None:
        self._layout, self._side = layout, side
        self._view = rows.view()
        # as numpy sees them in rows and in slots, where it does
        self._columns = _columns(layout, rows, side) if on_host else None

    def fill(self, slots: Ints, numbers: Ints, leaves: Mapping[KeyPath, Any], rows: Ints) -> None:
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
        slots: Ints,
        pairs: Sequence[ObservationPair],
        leaves: Mapping[KeyPath, Any],
        rows: Ints,
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
        slots: Ints,
        pairs: Sequence[ObservationPair],
        leaves: Mapping[KeyPath, Any],
        rows: Ints,
    ) -> None:
        assert self._columns is not None  # the caller looked
        for pair, (_, column) in zip(self._layout.pairs, self._columns, strict=True):
            if pair in pairs:
                column[slots] = bits(leaves[pair.next])[rows]

    def stored(self, positions: Ints) -> dict[KeyPath, torch.Tensor]:
        """The observations of stored rows, as next observations of a batch."""
        pairs = self._layout.pairs
        return {pair.next: gather(self._view.get(pair.root), positions) for pair in pairs}

    def equal(self, positions: Ints, slots: Ints) -> NDArray[np.bool_]:
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

    def is_equal(self, position: int, slot: int) -> bool:
        """`equal` for one row on the host."""
        assert self._columns is not None  # the caller looked
        pairs = self._columns
        return all(one[position].tobytes() == two[slot].tobytes() for one, two in pairs)

    def steps(self, positions: Ints) -> Ints:
        """How far the next observations of n-step rows are away."""
        steps = gather(self._view.get(STEPS_TO_NEXT_OBS), positions)
        found: Ints = steps.cpu().numpy().reshape(-1)
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


def gather(leaf: torch.Tensor, rows: Ints) -> torch.Tensor:
    """Some rows of a leaf of any dtype, `[k, *shape]`."""
    found = leaf.detach().resolve_conj().view(carrier(leaf.dtype))
    return found[torch.from_numpy(rows).to(leaf.device)].view(leaf.dtype)


def successors(back: NDArray[np.integer[Any]], steps: Ints | None = None) -> Ints:
    """The row of a batch whose observation each row's next one should equal; -1 for none."""
    # That is the row that continues it, and on n-step rows the one so many steps further on.
    count = len(back)
    following = np.full(count, -1, dtype=np.int64)
    if count < 2:
        return following
    # `back` is the distance to the predecessor: row `later - back` is followed by row `later`
    later = np.arange(count)
    earlier = later - back
    inside = (back > 0) & (earlier >= 0)
    following[earlier[inside]] = later[inside]
    if steps is None:
        return following
    reached, found = following, np.full(count, -1, dtype=np.int64)
    for step in range(1, min(int(steps.max()), count) + 1):
        # `reached[i]` is the row `step` steps after row i; each round moves one further
        here = steps == step
        found[here] = reached[here]
        if step < count:
            reached = np.where(reached >= 0, following[reached], -1)
        if not (reached >= 0).any():
            break
    return found


def equal_within(
    roots: list[NDArray[Any]], nexts: list[NDArray[Any]], target: Ints
) -> NDArray[np.bool_]:
    """Which rows have a next observation equal, bit for bit, to the observation of row `target`."""
    rows = np.flatnonzero(target >= 0)
    equal = np.zeros(len(target), dtype=np.bool_)
    if not rows.size:
        return equal
    equal[rows] = True
    apart = target[rows] - rows
    shift = int(apart[0])
    # neighbours mostly lie equally far apart: then nothing needs to be gathered
    if 2 * rows.size >= len(target) - shift and (apart == shift).all():
        for root, following in zip(roots, nexts, strict=True):
            equal[: len(target) - shift] &= same_bits(following[:-shift], root[shift:])
        return equal
    for root, following in zip(roots, nexts, strict=True):
        equal[rows] &= same_rows(following, rows, root, target[rows])
    return equal


def equal_within_on_device(
    roots: list[torch.Tensor], nexts: list[torch.Tensor], target: Ints
) -> NDArray[np.bool_]:
    """`equal_within` for tensors on any device; one copy of `[k]` flags to the host."""
    rows = np.flatnonzero(target >= 0)
    equal = np.zeros(len(target), dtype=np.bool_)
    device = roots[0].device
    ours, others = (torch.from_numpy(found).to(device) for found in (rows, target[rows]))
    same = torch.ones(len(rows), dtype=torch.bool, device=device)
    for root, following in zip(roots, nexts, strict=True):
        same &= same_bits_on_device(following[ours], root[others])
    equal[rows] = same.cpu().numpy()
    return equal


def same_bits_on_device(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`same_bits` for tensors on any device, without a copy to the host."""
    one, two = (
        side.detach().reshape(len(side), prod(side.shape[1:])).contiguous().view(torch.uint8)
        for side in (left, right)
    )
    return (one == two).all(1)
