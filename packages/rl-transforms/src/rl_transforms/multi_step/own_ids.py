"""Ids and steps for rows that lack them, told from their neighbours and from equal observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout import contradictions, is_observed, keys
from rl_transforms.multi_step.flat_leaves import OWN_ID, OWN_STEP, FlatRows, Path
from rl_transforms.multi_step.trajectory_order import Array, cuts_before

Pair = tuple[Path, Path]
_OWN = (OWN_ID, OWN_STEP)


def observed_pairs(rows: FlatRows) -> list[Pair]:
    """The observations of rows that are stored both ways: root key and next key."""
    found = []
    for key, leaf in rows.leaves.items():
        after = (keys.NEXT, *key)
        if key[0] in (keys.NEXT, keys.COLLECTOR) or after not in rows.leaves:
            continue
        alike = rows.leaves[after].dtype == leaf.dtype and rows.tails[after] == rows.tails[key]
        if alike and is_observed(key):
            found.append((key, after))
    return found


def numbered(
    batch: TensorDictBase, fresh: FlatRows, held: FlatRows | None, *, columns: bool
) -> FlatRows:
    """Give rows ids and steps of their own, those of held rows where they continue one."""
    # Inside a call neighbours along its last dimension continue each other unless a marker or their
    # observations contradict it. The first of them continues a held row that waits, if its
    # observation has the bits that the held row says come next; where several held rows say so, or
    # several rows continue one, none does.
    width, count = fresh.shape[-1], len(fresh)
    starts = cuts_before(fresh)  # [N]
    starts[::width] = True
    wrong = contradictions(batch)
    if wrong is not None:
        starts[1:] |= wrong.reshape(-1).cpu().numpy()[:-1]
    heads = np.flatnonzero(starts)
    segment = starts.cumsum() - 1
    ids = np.arange(len(heads)) + (0 if held is None else int(held.leaves[OWN_ID].max()) + 1)
    begin = np.zeros(len(heads), dtype=np.int64)
    # rows unlike those held are refused where the two are laid one after another
    if held is not None and held.tails == fresh.tails | dict.fromkeys(_OWN, torch.Size()):
        match = _columns_joined if columns else _joined
        for head, tail in zip(*match(held, fresh, heads), strict=True):
            ids[head] = held.leaves[OWN_ID][tail]
            begin[head] = held.leaves[OWN_STEP][tail] + 1
    own = {OWN_ID: ids[segment], OWN_STEP: np.arange(count) - heads[segment] + begin[segment]}
    leaves = fresh.leaves | {key: fresh.index(numbers) for key, numbers in own.items()}
    tails = fresh.tails | dict.fromkeys(own, torch.Size())
    return replace(fresh, leaves=leaves, tails=tails)


def _joined(held: FlatRows, fresh: FlatRows, heads: Array) -> tuple[Array, Array]:
    """Which heads continue which held rows, by their places: ``[J]`` and ``[J]``."""
    ids, steps = (held.leaves[key].cpu().numpy() for key in (OWN_ID, OWN_STEP))
    order = np.lexsort((steps, ids))
    lasts = order[np.append(ids[order][1:] != ids[order][:-1], True)]
    tails = lasts[_waits(held)[lasts]]
    firsts = np.flatnonzero(_may_continue(fresh)[heads])
    both = np.concatenate([_words(held, tails, 1), _words(fresh, heads[firsts], 0)])
    _, group = np.unique(both.view(f"V{both.shape[1]}")[:, 0], return_inverse=True)
    tail_of, head_of = group[: len(tails)], group[len(tails) :]
    groups = int(group.max(initial=-1)) + 1
    single = (np.bincount(tail_of, minlength=groups) == 1) & (
        np.bincount(head_of, minlength=groups) == 1
    )
    place = np.zeros(groups, dtype=np.int64)
    place[tail_of] = tails
    chosen = single[head_of]
    return firsts[chosen], place[head_of[chosen]]


def _columns_joined(held: FlatRows, fresh: FlatRows, heads: Array) -> tuple[Array, Array]:
    """The same where row b continues row b alone."""
    wide, width = held.shape[-1], fresh.shape[-1]
    rows = np.arange(len(fresh) // width)
    tails, firsts = rows * wide + wide - 1, rows * width
    goes_on = _waits(held)[tails] & _may_continue(fresh)[firsts]
    goes_on &= (_words(held, tails, 1) == _words(fresh, firsts, 0)).all(1)
    return np.searchsorted(heads, firsts[goes_on]), tails[goes_on]


def _waits(rows: FlatRows) -> Array:
    """Rows that another may continue: bool ``[N]``."""
    found = np.ones(len(rows), dtype=bool)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED, keys.NEXT_MISSING):
        if key in rows.leaves:
            found &= ~rows.leaves[key].cpu().numpy().reshape(-1)
    return found


def _may_continue(rows: FlatRows) -> Array:
    """Rows that may continue another: real, and no first step, bool ``[N]``."""
    found = np.ones(len(rows), dtype=bool)
    if (keys.IS_INIT,) in rows.leaves:
        found &= ~rows.leaves[(keys.IS_INIT,)].cpu().numpy().reshape(-1)
    if keys.MASK in rows.leaves:
        found &= rows.leaves[keys.MASK].cpu().numpy().reshape(-1)
    return found


def _words(rows: FlatRows, chosen: Array, side: int) -> np.ndarray[Any, Any]:
    """What must be equal in a row (side 0) and in the one it continues (side 1): ``[K, bytes]``."""
    # Observations bit for bit, and the id or the step where one of them is stored.
    index = rows.index(chosen)
    found = [rows.leaves[pair[side]].index_select(0, index) for pair in observed_pairs(rows)]
    if keys.TRAJ_IDS in rows.leaves:
        found.append(rows.leaves[keys.TRAJ_IDS].index_select(0, index))
    if keys.TRAJ_STEP in rows.leaves:
        found.append(rows.leaves[keys.TRAJ_STEP].index_select(0, index) + side)
    flat = [
        leaf.detach().reshape(len(chosen), leaf.shape[1:].numel()).contiguous().view(torch.uint8)
        for leaf in found
    ]
    return np.ascontiguousarray(torch.cat(flat, 1).cpu().numpy())
