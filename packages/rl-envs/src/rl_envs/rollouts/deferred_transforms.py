"""Transforms that are applied once per batch instead of once per step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_tensordict import build
from rl_tensordict.types import KeyPath
from rl_transforms import (
    CatFrames,
    CatTensors,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    FiniteTensorDictCheck,
    InitTracker,
    NextObservationDelta,
    RenameTransform,
    RewardSum,
    StepCounter,
    Transform,
)

TRACKERS = (InitTracker, RewardSum, StepCounter)  # what they continue is in a root
# of these an inverse without keys leaves actions alone, or casts them, which their dtype shows
STEADY = {
    kind.inv
    for kind in (
        CatFrames,
        DeviceCastTransform,
        DTypeCastTransform,
        ExcludeTransform,
        FiniteTensorDictCheck,
        NextObservationDelta,
        RenameTransform,
        Transform,
    )
}


def changes_actions(one: Transform) -> bool:
    """Whether the inverse of a transform may hand on other actions than those it is given."""
    return bool(one.in_keys_inv) or type(one).inv not in STEADY


def _must_step(one: Transform) -> bool:
    """Whether the policy or the environment reads what a transform makes."""
    return one.online or changes_actions(one)


def split_for(
    transforms: Iterable[Transform], in_keys: Sequence[KeyPath]
) -> tuple[list[Transform], list[Transform]]:
    """Split transforms into those for every step and those for the finished batch."""
    # as Compose.split does; an InitTracker can wait as well where the policy does not read it
    members = list(transforms)
    reads = {key[-1] for key in in_keys}
    needed = [
        _must_step(one) and not (type(one) is InitTracker and one.name not in reads)
        for one in members
    ]
    first = max((place + 1 for place, need in enumerate(needed) if need), default=0)
    waiting = [one for place, one in enumerate(members) if place >= first or one.rows_only]
    return [one for one in members if not any(one is other for other in waiting)], waiting


def can_continue(deferred: Iterable[Transform]) -> bool:
    """Whether the deferred transforms can continue from a root, without the row before it."""
    alone = Transform.rows  # what transforms each row for itself
    return all(
        type(one) in TRACKERS or one.rows_only or type(one).rows is alone for one in deferred
    )


def apply_deferred(
    deferred: Iterable[Transform],
    batch: TensorDictBase,
    root: TensorDictBase | None = None,
    last: TensorDictBase | None = None,
) -> TensorDictBase:
    """Apply deferred transforms to a batch `[*B, T]`."""
    # root [*B] is the first column's own, where they can_go_on; last [*B] is the column before
    # it, as returned here; after a reset both are None
    for one in deferred:
        before = _before(one, root) if root is not None and not one.rows_only else last
        batch = one.rows(batch, before)
        if type(one) is InitTracker:  # a step writes False there
            key = (keys.NEXT, one.name)
            batch = batch.copy().set(key, torch.zeros_like(batch.get(one.name)))
    return batch


def _before(one: Transform, root: TensorDictBase) -> TensorDictBase:
    """A step `[*B]` that leads to a root: done where the root is the first of a trajectory."""
    after = dict(root.items())
    done = root.get(keys.DONE)
    # counts and sums continue from the root's values, also if it is marked as first
    after[keys.DONE] = root.get(one.name) if type(one) is InitTracker else torch.zeros_like(done)
    return build({keys.NEXT: build(after, root.batch_size)}, root.batch_size)


def defer_independent(
    stepping: list[Transform], waiting: list[Transform]
) -> tuple[list[Transform], list[Transform]]:
    """Also defer transforms that are followed only by transforms which touch none of their keys."""
    online: list[Transform] = []
    deferred: list[Transform] = []
    for one in reversed(stepping):
        if _must_step(one) or any(_may_touch(other, one) for other in online):
            online.insert(0, one)
        else:
            deferred.insert(0, one)
    if any(one.rows_only for one in waiting):  # one of them may come before a deferred one
        return stepping, waiting
    return online, [*deferred, *waiting]


def _may_touch(other: Transform, one: Transform) -> bool:
    """Whether a transform may read or write what another one reads or writes."""
    leafwise = type(other).step is Transform.step and type(other).reset is Transform.reset
    named = (CatTensors, DoubleToFloat, DTypeCastTransform, InitTracker, StepCounter)
    casts_all = isinstance(other, DTypeCastTransform) and not other.in_keys
    if casts_all or not (leafwise or type(other) in named):
        return True
    mine = {keys.as_tuple(key) for key in (*one.in_keys, *one.out_keys)}
    theirs = {keys.as_tuple(key) for key in (*other.in_keys, *other.out_keys)}
    if isinstance(other, InitTracker | StepCounter):
        theirs |= {key for key in mine if key[-1] in (other.name, *keys.DONE_KEYS)}
    return any(a[: len(b)] == b or b[: len(a)] == a for a in mine for b in theirs)
