"""Observations of batches, rows and overflow slots: gathered and compared bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout.keys import STEPS_TO_NEXT_OBS
from rl_replay.data.bits import same_bits, same_rows
from rl_replay.lossless.layout import LosslessLayout, ObservationPair
from rl_replay.lossless.overflow import OverflowTable
from rl_slabs import Rows
from rl_slabs.internals import bits_of, carrier
from rl_tensordict.types import Ints, KeyPath, NestedKey


class Observations:
    """The observations that are stored once, in rows and in overflow slots, bit for bit."""

    def __init__(
        self, layout: LosslessLayout, rows: Rows, side: OverflowTable, *, on_host: bool
    ) -> None:
        self._layout, self._side = layout, side
        self._view = rows.view()
        # as numpy sees them in rows and in slots, where it does
        self.keys = layout.slot_keys(joined=side.space is not None)
        self._columns: list[tuple[NDArray[Any], NDArray[Any]]] | None = None
        if on_host:
            ours, theirs = rows.columns(), side.rows.columns()
            roots = [layout.stored[pair.root].key for pair in layout.pairs]
            sides = zip(roots, self.keys, strict=True)
            self._columns = [(ours[one], theirs[two]) for one, two in sides]

    def stored(self, positions: Ints) -> dict[NestedKey, Any]:
        """The observations of stored rows, as overflow slots take them."""
        if self._columns is not None:
            found = zip(self.keys, self._columns, strict=True)
            return {key: rows[positions] for key, (rows, _) in found}
        pairs = zip(self.keys, self._layout.pairs, strict=True)
        return {key: gather(self._view.get(pair.root), positions) for key, pair in pairs}

    def given(
        self, pairs: Sequence[ObservationPair], leaves: Mapping[KeyPath, Any], rows: Ints
    ) -> dict[NestedKey, Any]:
        """Next observations of some rows of a batch, as overflow slots take them."""
        keys = zip(self.keys, self._layout.pairs, strict=True)
        found = {key: gather(leaves[pair.next], rows) for key, pair in keys if pair in pairs}
        return found if self._columns is None else {key: bits(leaf) for key, leaf in found.items()}

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


def bits(leaf: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """A leaf as a numpy array of bits."""
    return bits_of(leaf, carrier(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def gather(leaf: torch.Tensor, rows: Ints) -> torch.Tensor:
    """Some rows of a leaf of any dtype, `[k, *shape]`."""
    found = leaf.detach().resolve_conj().view(carrier(leaf.dtype))
    return found[torch.from_numpy(rows).to(leaf.device)].view(leaf.dtype)


def most_below(steps: Ints, bound: int) -> int:
    """The largest number of steps below a bound, at least 1."""
    most = int(steps.max(initial=1))
    return most if most < bound else int(steps[steps < bound].max(initial=1))


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
    for step in range(1, most_below(steps, count) + 1):
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
