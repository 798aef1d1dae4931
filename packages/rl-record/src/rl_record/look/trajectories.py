"""The trajectories of rows, joined from pieces where ids and steps prove it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout import EndKind, Segments, keys

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Trajectories:
    """Which rows are one trajectory, and how each ends."""

    # A piece is a run of neighbouring rows (`rl_layout.Segments`). Pieces of one id whose steps
    # follow each other are one trajectory, wherever they are stored.

    starts: Whole  # int64 [P], the first flat row of each piece, trajectory by trajectory
    piece_lengths: Whole  # int64 [P]
    offsets: Whole  # int64 [P], the rows of the trajectory before the piece
    owners: Whole  # int64 [P], the trajectory of each piece
    lengths: Whole  # int64 [S], rows of each trajectory, which are in the order of first rows
    kinds: NDArray[np.uint8]  # uint8 [S], `EndKind` of each
    begins: NDArray[np.bool_]  # bool [S], whether the first row is the first step of its trajectory
    ids: Whole | None  # int64 [S]; None if no ids are stored
    # float64 [S], sums of rewards; None unless each row has exactly one reward
    returns: NDArray[np.float64] | None
    num_contradicted: int  # how many cuts only contradicting observations made

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Which trajectories are stored from their first step to an end, bool ``[S]``."""
        whole: NDArray[np.bool_] = self.begins & (self.kinds != EndKind.CUT)
        return whole

    def locate(self, rows: Whole) -> tuple[Whole, Whole]:
        """Find the trajectory of each flat row, and the rows of it before; -1 for padding."""
        order = np.argsort(self.starts)
        starts = self.starts[order]
        if not len(starts):
            return np.full(len(rows), -1), np.full(len(rows), -1)
        pieces = order[np.maximum(np.searchsorted(starts, rows, "right") - 1, 0)]
        ahead = rows - self.starts[pieces]
        inside = (ahead >= 0) & (ahead < self.piece_lengths[pieces])
        places = np.where(inside, self.offsets[pieces] + ahead, -1)
        return np.where(inside, self.owners[pieces], -1), places

    @classmethod
    def of(cls, batch: TensorDictBase) -> Trajectories:
        """Find the trajectories of markers, and sum rewards, of rows ``[N]`` or ``[*B, T]``."""
        segments = Segments.of(batch)
        starts, lengths = segments.starts.numpy(), segments.lengths.numpy()
        kinds = segments.kinds.numpy()
        size = segments.num_rows
        ids, steps = (_column(batch, key, size) for key in (keys.TRAJ_IDS, keys.TRAJ_STEP))
        init = _column(batch, keys.IS_INIT, size)
        if not len(starts):
            order, leads = np.zeros(0, np.int64), np.zeros(0, bool)
        elif ids is None or steps is None:
            order, leads = np.arange(len(starts)), np.ones(len(starts), bool)
        else:
            order, leads = _joined(starts, lengths, kinds, ids, steps, init)
        starts, lengths, kinds = starts[order], lengths[order], kinds[order]
        heads = leads.nonzero()[0]
        owners = np.cumsum(leads) - 1
        sums = np.add.reduceat(lengths, heads) if len(heads) else lengths
        before = np.cumsum(lengths) - lengths
        lasts = np.append(heads[1:], len(starts)) - 1 if len(heads) else heads
        first = starts[heads]
        begins = np.ones(len(heads), bool)
        if init is not None:
            begins &= init[first].astype(bool)
        if steps is not None:
            begins &= steps[first] == 0
        rewards = _column(batch, keys.NEXT_REWARD, size)
        return cls(
            starts,
            lengths,
            before - before[heads][owners] if len(heads) else before,
            owners,
            sums,
            kinds[lasts],
            begins,
            None if ids is None else ids[first],
            None if rewards is None else _sums(rewards, segments, order, heads),
            segments.num_contradicted,
        )


def _joined(
    starts: Whole,
    lengths: Whole,
    kinds: NDArray[np.uint8],
    ids: Whole,
    steps: Whole,
    init: NDArray[np.bool_] | None,
) -> tuple[Whole, NDArray[np.bool_]]:
    """An order of the pieces in which those of a trajectory follow each other, and its heads."""
    first, last = starts, starts + lengths - 1
    order = np.lexsort((steps[first], ids[first]))
    here, before = order[1:], order[:-1]
    joins = (ids[first[here]] == ids[last[before]]) & (kinds[before] == EndKind.CUT)
    joins &= steps[first[here]] == steps[last[before]] + 1
    if init is not None:
        joins &= ~init[first[here]].astype(bool)
    leads = np.append(True, ~joins)
    # trajectories by their first rows, and pieces within them as they are
    owner = np.cumsum(leads) - 1
    head_rows = first[order[leads]]
    places = np.lexsort((np.arange(len(order)), head_rows[owner]))
    return order[places], leads[places]


def _sums(
    rewards: NDArray[np.float64], segments: Segments, order: Whole, heads: Whole
) -> NDArray[np.float64]:
    """The sum of the rewards of each trajectory."""
    if not len(heads):
        return np.zeros(0)
    # real rows in the order of pieces, then a sum for each piece, then for each trajectory
    real = rewards[segments.rows.numpy()].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = np.add.reduceat(real, segments.offsets.numpy()[:-1])[order]
        found: NDArray[np.float64] = np.add.reduceat(pieces, heads)
    return found


def _column(batch: TensorDictBase, key: object, size: int) -> NDArray[Any] | None:
    """One number for each row, ``[N]``; None if there is not one."""
    value = batch.get(key, None)
    if value is None or value.numel() != size or value.is_complex():
        return None
    flat = value.reshape(-1)
    array: NDArray[Any] = (flat.double() if flat.is_floating_point() else flat).numpy()
    return array
