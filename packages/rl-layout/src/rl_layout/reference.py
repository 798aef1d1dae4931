"""Slow, plain twins: one Python loop over rows each, to check the fast ones against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    contradicted = contradictions(batch) or [False] * len(flat)
    found: list[tuple[int, int, int]] = []
    start = None
    for row in range(len(flat)):
        if not _is_real(flat, row):
            continue
        start = row if start is None else start
        in_batch = row + 1 < len(flat) and (row + 1) % num_steps != 0
        if contradicted[row] or not (in_batch and continues(flat, row, row + 1)):
            found.append((start, row + 1 - start, _kind(flat, row)))
            start = None
    return found


def continues(rows: TensorDictBase, i: int, j: int) -> bool:
    """Say whether row j continues row i, by every marker that there is."""
    # rows: TED rows ``[N]``.
    same = _read(rows, keys.TRAJ_IDS, lambda ids: bool(ids[i] == ids[j]), True)
    step = _read(rows, keys.TRAJ_STEP, lambda steps: bool(steps[j] == steps[i] + 1), True)
    fresh = _read(rows, keys.IS_INIT, lambda flag: bool(flag[j]), False)
    return (
        _is_real(rows, i)
        and _is_real(rows, j)
        and same
        and step
        and not fresh
        and not (_is_boundary(rows, i))
    )


def contradictions(batch: TensorDictBase) -> list[bool] | None:
    """List the rows whose neighbour along the last dimension observations contradict.

    Args:
        batch: a TED tensordict ``[N]`` or ``[*B, T]``.

    Returns:
        One for each row of the flattened batch, or None where nothing can be told.

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
    pairs = {i: j for i in range(len(flat)) if (j := _successor(flat, i, num_steps)) is not None}
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
    cut = [False] * len(flat)
    for i in set().union(*wrong.values()):
        # the cut is before the row that should have been the successor
        cut[pairs[i] - 1] = True
        if i + 1 + _far(flat, i + 1) != pairs[i]:
            cut[i] = True
    return [cut[i] and _joins(flat, i, num_steps) for i in range(len(flat))]


def _observations(flat: TensorDictBase) -> list[tuple[Tensor, Tensor]]:
    """Observations and next ones as bits ``[N, F]``."""
    found = []
    for parts, root in keys.leaves(flat):
        after = flat.get(keys.next_key(parts), None)
        named = parts[0] not in (keys.NEXT, keys.COLLECTOR) and is_observed(parts)
        if named and after is not None and (root.dtype, root.shape) == (after.dtype, after.shape):
            found.append((bits(root).reshape(len(flat), -1), bits(after).reshape(len(flat), -1)))
    return found


def _successor(flat: TensorDictBase, i: int, num_steps: int) -> int | None:
    """The row that the next observation of row i belongs to, where no marker cuts between."""
    j = i + _far(flat, i)
    lost = _read(flat, keys.NEXT_MISSING, lambda flag: bool(flag[i]), False)
    done = any(_read(flat, key, lambda flag: bool(flag[i]), False) for key in keys.NEXT_DONE_KEYS)
    # every step in between must continue the one before it
    near = j > i and all(_joins(flat, row, num_steps) for row in range(i, j))
    return None if lost or done or not near else j


def _joins(flat: TensorDictBase, i: int, num_steps: int) -> bool:
    """Whether no marker cuts after row i, and its row of the batch continues."""
    return (i + 1) % num_steps != 0 and continues(flat, i, i + 1)


def _far(flat: TensorDictBase, i: int) -> int:
    far = flat.get(keys.STEPS_TO_NEXT_OBS, None)
    return 1 if far is None or i >= len(flat) else int(far[i])


class ListRowSource:
    """The rows of one batch as a row source, numbered from 0."""

    # rows: TED rows ``[N]``.

    def __init__(self, rows: TensorDictBase) -> None:
        self._rows = rows

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
        return torch.tensor(places).reshape(rows.shape), torch.tensor(proved).reshape(rows.shape)

    def _continues(self, i: int, j: int) -> bool:
        return min(i, j) >= 0 and max(i, j) < len(self._rows) and continues(self._rows, i, j)


def _is_real(rows: TensorDictBase, i: int) -> bool:
    return _read(rows, keys.MASK, lambda mask: bool(mask[i]), True)


def _is_boundary(rows: TensorDictBase, i: int) -> bool:
    near = _read(rows, keys.STEPS_TO_NEXT_OBS, lambda steps: bool(steps[i] == 1), True)
    return near and any(
        _read(rows, key, lambda flag: bool(flag[i]), False) for key in keys.NEXT_DONE_KEYS
    )


def _kind(rows: TensorDictBase, i: int) -> int:
    if not _is_boundary(rows, i):
        return 0
    truncated = _read(rows, keys.NEXT_TRUNCATED, lambda flag: bool(flag[i]), False)
    terminated = _read(rows, keys.NEXT_TERMINATED, lambda flag: bool(flag[i]), not truncated)
    return 2 if terminated else 1


def _read(rows: TensorDictBase, key: NestedKey, ask: Callable[..., bool], absent: bool) -> bool:
    value = rows.get(key, None)
    return absent if value is None else ask(value)
