"""Which transforms can wait for finished rows, and what they continue there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_tensordict import build
from rl_transforms import InitTracker, RewardSum, StepCounter, Transform

Key = tuple[str, ...]
TRACKERS = (InitTracker, RewardSum, StepCounter)  # what they continue is in a root


def split_for(
    transforms: Iterable[Transform], in_keys: Sequence[Key]
) -> tuple[list[Transform], list[Transform]]:
    """Tell what must run at every step for a policy from what can wait."""
    # As Compose.split does; an InitTracker can wait as well where the policy does not read it.
    members = list(transforms)
    reads = {key[-1] for key in in_keys}
    needed = [
        one.online and not (type(one) is InitTracker and one.name not in reads) for one in members
    ]
    first = max((place + 1 for place, need in enumerate(needed) if need), default=0)
    waiting = [one for place, one in enumerate(members) if place >= first or one.rows_only]
    return [one for one in members if not any(one is other for other in waiting)], waiting


def can_go_on(finishing: Iterable[Transform]) -> bool:
    """Tell whether transforms can continue a root, where they computed on rows before."""
    alone = Transform.rows  # what transforms each row for itself
    return all(
        type(one) in TRACKERS or one.rows_only or type(one).rows is alone for one in finishing
    )


def finish(
    finishing: Iterable[Transform],
    batch: TensorDictBase,
    root: TensorDictBase | None = None,
    last: TensorDictBase | None = None,
) -> TensorDictBase:
    """Compute on finished rows what steps would have written."""
    for one in finishing:
        before = _before(one, root) if root is not None and not one.rows_only else last
        batch = one.rows(batch, before)
        if type(one) is InitTracker:  # a step writes False there
            key = (keys.NEXT, one.name)
            batch = batch.copy().set(key, torch.zeros_like(batch.get(one.name)))
    return batch


def _before(one: Transform, root: TensorDictBase) -> TensorDictBase:
    """A step that a root could have come from: done where the root is a first one."""
    after = dict(root.items())
    done = root.get(keys.DONE)
    # counts and sums are the root's own, also where it is marked as first
    after[keys.DONE] = root.get(one.name) if type(one) is InitTracker else torch.zeros_like(done)
    return build({keys.NEXT: build(after, root.batch_size)}, root.batch_size)
