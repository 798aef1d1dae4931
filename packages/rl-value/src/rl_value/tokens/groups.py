"""Groups of sequences, given as numbers of their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout import Segments
from rl_tensordict import UnfitValue
from rl_value.arguments import check_tensor
from rl_value.scan.block_scan import is_transformed


def check_groups(name: str, groups: Tensor) -> None:
    """Raise for anything but a tensor of whole numbers."""
    check_tensor(name, groups)
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        msg = f"{name}: expected whole numbers, got {groups.dtype}."
        raise TypeError(msg)


def group_of(name: str, groups: Tensor, segments: Segments) -> Tensor:
    """The group of each sequence ``[S]``, given that of each token, ``[*B, T]``."""
    check_groups(name, groups)
    rows = segments.gather(groups)
    if rows.numel() != len(rows):
        msg = f"{name}: expected one number a token, got {[*groups.shape]}."
        raise UnfitValue(msg)
    rows = rows.reshape(-1)
    found = rows[segments.offsets[:-1]]
    if rows.is_cpu and not is_transformed():  # a look would wait for another device
        other = (rows != segments.spread(found)).nonzero()
        if len(other):
            row = other[0]
            number = int(torch.searchsorted(segments.offsets, row, right=True)) - 1
            msg = f"{name}: expected one group in each sequence, number {number} has "
            raise UnfitValue(msg + f"{int(found[number])} and {int(rows[row])}.")
    return found


def groups_line(group: Tensor) -> str:
    """How many groups there are of these numbers, one a sequence, and how many of one."""
    numbers, sizes = group.unique(return_counts=True)
    return f"groups: {len(numbers)}, {int((sizes == 1).sum())} of one sequence"
