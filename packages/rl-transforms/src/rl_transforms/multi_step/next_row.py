"""The row that comes after the held ones, alone: an ordinary loop adds one row a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rl_layout import keys
from rl_transforms.multi_step.checks import is_group_flag
from rl_transforms.multi_step.flat_leaves import OWN_ID, OWN_STEP, FlatRows
from rl_transforms.multi_step.observed_bytes import observed_pairs
from rl_transforms.multi_step.trajectory_order import FLAGS

# Nothing is sorted or searched here, so that a call takes a quarter of the time. Whatever is not
# plainly the next row of one open trajectory is left to the general path, which decides the same.

_ONE = torch.Size([1])
_IDS = (keys.TRAJ_IDS, keys.TRAJ_STEP)


def next_row(held: Sequence[FlatRows], fresh: FlatRows) -> FlatRows | None:
    """A copy of an open row that surely continues single held rows, with its id; None otherwise."""
    if not held or len(held[0]) != 1 or len(fresh) != 1:  # only the first block may have more rows
        return None
    last, leaves = held[-1], fresh.leaves
    if keys.MASK in leaves or fresh.device != last.device:
        return None
    if not all(leaf.is_cpu for leaf in leaves.values()):  # elsewhere each look at a value waits
        return None
    if OWN_ID in last.leaves:
        if keys.TRAJ_IDS in leaves or keys.TRAJ_STEP in leaves:
            return None
        own = {OWN_ID: last.leaves[OWN_ID], OWN_STEP: last.leaves[OWN_STEP] + 1}
        tails = fresh.tails | dict.fromkeys(own, torch.Size())
        fresh = replace(fresh, leaves=leaves | own, tails=tails)
    if not last.is_like(fresh) or any(map(is_group_flag, leaves)):
        return None
    if any(leaves[key] for key in FLAGS if key in leaves) or not _continues(last, fresh):
        return None
    copies = {key: leaf.clone() for key, leaf in fresh.leaves.items()}
    return replace(fresh, leaves=copies, shape=_ONE)


def _continues(last: FlatRows, fresh: FlatRows) -> bool:
    """Whether ids and steps, or the observations where rows came without, make it the next row."""
    if OWN_ID not in last.leaves:
        (before, step), (now, next_step) = ([r.leaves[k] for k in _IDS] for r in (last, fresh))
        return bool(before == now) and bool(step + 1 == next_step)
    missing, pairs = last.leaves.get(keys.NEXT_MISSING), observed_pairs(fresh)
    if not pairs or (missing is not None and missing):
        return False
    return all(_same_bits(last.leaves[after], fresh.leaves[key]) for key, after in pairs)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(*(leaf.detach().contiguous().view(torch.uint8) for leaf in (one, other)))
