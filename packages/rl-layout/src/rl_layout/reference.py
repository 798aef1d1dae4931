"""Slow, plain twins: one Python loop over rows each, to check the fast ones against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.segments.contradiction import LEAST_PROOF, is_observed
from rl_layout.segments.flat_views import bits
from rl_tensordict import NestedKey


def segments(batch: TensorDictBase) -> list[tuple[int, int, int]]:
    """List the segments of a batch, one row after another."""
    # batch: a TED tensordict ``[N]`` or ``[*B, T]``.
    flat, num_steps = batch.reshape(-1), batch.batch_size[-1]
    marked = marked_rows(flat)
    contradicted = contradictions(batch) or [False] * len(flat)
    found: list[tuple[int, int, int]] = []
    start = None
    for row in range(len(flat)):
        if not marked[row].real:
            continue
        start = row if start is None else start
        if contradicted[row] or not _joins(marked, row, num_steps):
            found.append((start, row + 1 - start, _kind(flat, row) if marked[row].boundary else 0))
            start = None
    return found


class MarkedRow(NamedTuple):
    """The markers of one row; None for an id or a step that rows do not have."""

    traj_id: int | None
    step: int | None
    init: bool  # a first step
    boundary: bool  # a last step; of n-step rows only one whose end is one step away
    real: bool  # no padding

    @property
    def numbered(self) -> bool:
        """Whether it has an id and a step, which determine the row before it."""
        return self.traj_id is not None and self.step is not None


def marked_rows(rows: TensorDictBase) -> list[MarkedRow]:
    """The markers of TED rows ``[N]``, one by one."""

    def column(key: NestedKey, absent: Any) -> list[Any]:
        leaf = rows.get(key, None)
        if leaf is None:
            return [absent] * len(rows)
        return [one.any().item() if isinstance(absent, bool) else one.item() for one in leaf]

    flags = zip(*(column(key, False) for key in keys.NEXT_DONE_KEYS), strict=True)
    far = column(keys.STEPS_TO_NEXT_OBS, 1)
    boundary = [any(ends) and steps == 1 for ends, steps in zip(flags, far, strict=True)]
    columns = (
        column(keys.TRAJ_IDS, None),
        column(keys.TRAJ_STEP, None),
        column(keys.IS_INIT, False),
        boundary,
        column(keys.MASK, True),
    )
    return [MarkedRow(*row) for row in zip(*columns, strict=True)]


def continues(earlier: MarkedRow, later: MarkedRow) -> bool:
    """Say whether one row continues another, by every marker that there is."""
    return (
        earlier.real
        and later.real
        and earlier.traj_id == later.traj_id
        and (earlier.step is None or later.step == earlier.step + 1)
        and not later.init
        and not earlier.boundary
    )


def contradictions(batch: TensorDictBase) -> list[bool] | None:
    """List the rows whose neighbour along the last dimension observations contradict.

    Args:
        batch: a TED tensordict ``[N]`` or ``[*B, T]``.

    Returns:
        One for each row of the flattened batch, or None if nothing can be told.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> contradictions(trajectories([2, 3]).exclude("collector")) is None  # time is named
        True
    """
    numbered = all(batch.get(key, None) is not None for key in (keys.TRAJ_IDS, keys.TRAJ_STEP))
    told = numbered or batch.names[-1] == keys.TIME or batch.get(keys.SLICE_IDS, None) is not None
    flat, num_steps = batch.reshape(-1), batch.batch_size[-1]
    leaves = [] if told or num_steps < 2 else _observations(flat)
    if not leaves:
        return None
    marked = marked_rows(flat)
    followed = ((i, _successor(flat, marked, i, num_steps)) for i in range(len(flat)))
    pairs = {i: j for i, j in followed if j is not None}
    wrong = {
        number: [i for i, j in pairs.items() if not torch.equal(after[i], root[j])]
        for number, (root, after) in enumerate(leaves)
    }
    often = [number for number, rows in wrong.items() if 2 * len(rows) > len(pairs)]
    for number, (root, after) in enumerate(leaves):
        # a leaf proves an axis if its next value is found once, moves, and is in the right row
        values = [tuple(row) for row in root.tolist()]
        proved = [
            i
            for i, j in pairs.items()
            if i not in wrong[number]
            and not torch.equal(after[i], root[i])
            and values.count(values[j]) == 1
        ]
        telling = number not in often and root.shape[1] > 1
        if telling and len(proved) >= LEAST_PROOF and 2 * len(proved) > len(pairs):
            wrong = {other: rows for other, rows in wrong.items() if other not in often}
            break
    twins = {i: j for i in range(len(flat)) if (j := _twin(flat, marked, i, num_steps)) is not None}
    cut = [False] * len(flat)
    for i, j in twins.items():
        # both reach the same row, and say another observation of it
        cut[i] = any(not torch.equal(leaves[n][1][i], leaves[n][1][j]) for n in wrong)
    parted = list(cut)
    for i in set().union(*wrong.values()):
        if any(parted[i : pairs[i]]):
            continue  # cut off from the row that it reaches
        # the cut is before the row that should have been the successor
        cut[pairs[i] - 1] = True
        if i not in twins:
            cut[i] = True
    return [cut[i] and _joins(marked, i, num_steps) for i in range(len(flat))]


def _twin(flat: TensorDictBase, marked: list[MarkedRow], i: int, num_steps: int) -> int | None:
    """The next row that reaches the same row as row i, where no marker cuts between."""
    j = i + 1
    while flat.get(keys.STEPS_TO_NEXT_OBS, None) is not None and _joins(marked, j - 1, num_steps):
        if _reaches(flat, i) is not None and _reaches(flat, i) == _reaches(flat, j):
            return j
        j += 1
    return None


def _reaches(flat: TensorDictBase, i: int) -> int | None:
    """The row that row i says its next observation belongs to, in the batch or after it."""
    lost = _flag(flat, keys.NEXT_MISSING, i)
    return None if lost or _far(flat, i) < 1 else i + _far(flat, i)


def _observations(flat: TensorDictBase) -> list[tuple[Tensor, Tensor]]:
    """Observations and next ones as bits ``[N, F]``."""
    found = []
    for parts, root in keys.leaves(flat):
        after = flat.get(keys.next_key(parts), None)
        named = parts[0] not in (keys.NEXT, keys.COLLECTOR) and is_observed(parts)
        if named and after is not None and (root.dtype, root.shape) == (after.dtype, after.shape):
            found.append((bits(root).reshape(len(flat), -1), bits(after).reshape(len(flat), -1)))
    return found


def _successor(flat: TensorDictBase, marked: list[MarkedRow], i: int, num_steps: int) -> int | None:
    """The row that the next observation of row i belongs to, where no marker cuts between."""
    j = i + _far(flat, i)
    lost = _flag(flat, keys.NEXT_MISSING, i)
    done = any(_flag(flat, key, i) for key in keys.NEXT_DONE_KEYS)
    # every step in between must continue the one before it
    near = j > i and all(_joins(marked, row, num_steps) for row in range(i, j))
    return None if lost or done or not near else j


def _joins(marked: list[MarkedRow], i: int, num_steps: int) -> bool:
    """Whether no marker cuts after row i, and its row of the batch continues."""
    return (i + 1) % num_steps != 0 and continues(marked[i], marked[i + 1])


def _far(flat: TensorDictBase, i: int) -> int:
    far = flat.get(keys.STEPS_TO_NEXT_OBS, None)
    return 1 if far is None or i >= len(flat) else int(far[i])


class ListRowSource:
    """The rows of one batch as a row source, numbered from 0."""

    # rows: TED rows ``[N]``.

    def __init__(self, rows: TensorDictBase) -> None:
        self._rows, self._marked = rows, marked_rows(rows)

    def read(self, rows: Tensor, keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read keys of some rows; rows outside the batch read row 0 and are masked out."""
        known = (rows >= 0) & (rows < len(self._rows))
        return self._rows.select(*keys)[torch.where(known, rows, 0)], known

    def after(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Walk k steps on, as far as each step continues the one before."""
        return self._walk(rows, k, lambda i: (i, i + 1), 1)

    def before(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Walk k steps back, as far as each step continues the one before."""
        return self._walk(rows, k, lambda i: (i - 1, i), -1)

    def _walk(
        self, rows: Tensor, k: int, pair: Callable[[int], tuple[int, int]], step: int
    ) -> tuple[Tensor, Tensor]:
        places, proved = [], []
        for row in rows.reshape(-1).tolist():
            reached, steps = row, 0
            # one step at a time: a gap anywhere ends the walk
            while steps < k and self._continues(*pair(reached)):
                reached, steps = reached + step, steps + 1
            places.append(reached)
            proved.append(steps == k)
        found = (torch.tensor(each, device=rows.device) for each in (places, proved))
        there, is_proved = (each.reshape(rows.shape) for each in found)
        return there, is_proved

    def _continues(self, i: int, j: int) -> bool:
        there = min(i, j) >= 0 and max(i, j) < len(self._marked)
        return there and continues(self._marked[i], self._marked[j])


def _kind(rows: TensorDictBase, i: int) -> int:
    """How a row that ends a trajectory does."""
    truncated = _flag(rows, keys.NEXT_TRUNCATED, i)
    return 2 if _flag(rows, keys.NEXT_TERMINATED, i, absent=not truncated) else 1


def _flag(rows: TensorDictBase, key: NestedKey, i: int, *, absent: bool = False) -> bool:
    value = rows.get(key, None)
    return absent if value is None else bool(value[i])
