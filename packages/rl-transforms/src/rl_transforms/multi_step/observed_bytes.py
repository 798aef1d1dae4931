"""Observations of rows as bytes, which are equal where one row continues another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_layout import is_observed, keys
from rl_tensordict.types import Array
from rl_transforms.multi_step.flat_leaves import FlatRows, LeafPath

ObservedPair = tuple[LeafPath, LeafPath]


def observed_pairs(rows: FlatRows) -> list[ObservedPair]:
    """Keys of the observations stored both at the root and under ``"next"``, as pairs."""
    pairs = []
    for key, leaf in rows.leaves.items():
        after = (keys.NEXT, *key)
        if key[0] in (keys.NEXT, keys.COLLECTOR) or after not in rows.leaves:
            continue
        alike = rows.leaves[after].dtype == leaf.dtype and rows.tails[after] == rows.tails[key]
        if alike and is_observed(key):
            pairs.append((key, after))
    return pairs


def compared_bytes(rows: FlatRows, chosen: Array, side: int) -> np.ndarray[Any, Any]:
    """The bytes to compare, ``[K, bytes]``: of a row (side 0) or its predecessor (side 1)."""
    # observations, and the id or the step if one of them is stored; a predecessor's step counts one
    # more
    index = rows.index(chosen)
    leaves = [rows.leaves[pair[side]].index_select(0, index) for pair in observed_pairs(rows)]
    if keys.TRAJ_IDS in rows.leaves:
        leaves.append(rows.leaves[keys.TRAJ_IDS].index_select(0, index))
    if keys.TRAJ_STEP in rows.leaves:
        leaves.append(rows.leaves[keys.TRAJ_STEP].index_select(0, index) + side)
    flat = [
        leaf.detach().reshape(len(chosen), leaf.shape[1:].numel()).contiguous().view(torch.uint8)
        for leaf in leaves
    ]
    return np.ascontiguousarray(torch.cat(flat, 1).cpu().numpy())


def listed_bytes(rows: FlatRows, chosen: Array, side: int) -> list[bytes]:
    """The same, a `bytes` for each row."""
    found = compared_bytes(rows, chosen, side)
    listed: list[bytes] = found.view(f"V{found.shape[1]}")[:, 0].tolist()
    return listed
