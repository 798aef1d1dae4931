"""Finds, inside one batch, the row that holds another row's next observation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_replay.lossless.bitwise import same_bits, same_bits_on_device, same_rows

RowArray = NDArray[np.int64]


def successors(back: NDArray[np.integer[Any]], steps: RowArray | None = None) -> RowArray:
    """The row of a batch whose observation each row's next one should equal; -1 for none."""
    # That is the row that continues it, and on n-step rows the one so many steps further on.
    count = len(back)
    following = np.full(count, -1, dtype=np.int64)
    if count < 2:
        return following
    later = np.arange(count)
    earlier = later - back
    inside = (back > 0) & (earlier >= 0)
    following[earlier[inside]] = later[inside]
    if steps is None:
        return following
    reached, found = following, np.full(count, -1, dtype=np.int64)
    for step in range(1, min(int(steps.max()), count) + 1):
        here = steps == step
        found[here] = reached[here]
        if step < count:
            reached = np.where(reached >= 0, following[reached], -1)
        if not (reached >= 0).any():
            break
    return found


def equal_within(
    roots: list[NDArray[Any]], nexts: list[NDArray[Any]], target: RowArray
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
    roots: list[torch.Tensor], nexts: list[torch.Tensor], target: RowArray
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
