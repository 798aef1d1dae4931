"""Targets of the steps of a batch, from values of their next states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, find
from rl_value.counted_steps import has_members, under_next
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.estimator import ValueEstimator
from rl_value.estimators.key_map import KeyMap
from rl_value.estimators.static_shapes import StaticTransitions
from rl_value.estimators.time_place import OUTSIDE, time_last
from rl_value.estimators.transitions import Transitions, UnrolledValues, check_writable

DEFAULT_CALLS = ValueCallConfig()
Unroll = Callable[[Transitions], tuple[Tensor, UnrolledValues]]


class Targets(NamedTuple):
    """What values should be."""

    value: Tensor  # [*B, T, ...]
    unknown: Tensor | None  # bool, steps that have no target; None if all have
    # what critics say of the steps, where the call for next states gave that too
    judged: Tensor | None = None


@dataclass(frozen=True)
class TargetSource:
    """Whose entries are read, and how returns are computed of them."""

    entries: KeyMap  # of the loss
    estimator: ValueEstimator  # discount, and how far a return looks
    is_row_wise: bool  # whether the networks of next states look at single rows

    def of(self, batch: TensorDictBase, unroll: Unroll) -> Targets:
        """Compute targets; `unroll` gives those of steps, and the values of their next states.

        Marks in the batch the steps without a target that it does not mark yet.
        """
        check_writable(batch)
        turned, moved = time_last(batch, self.estimator.time_dim)
        if torch.compiler.is_compiling() and self.has_fixed_shape(turned):
            found = _placed(StaticTransitions.of(turned, self.entries, moved), unroll)
        else:
            found = _outside(turned, self.entries, moved, unroll)
        target, unknown = found.pop("target"), found.pop("unknown", None)
        for key, marker in found.items():
            batch.set(key, marker)
        return Targets(target, unknown)

    def steps(self, batch: TensorDictBase) -> Transitions:
        """The steps of a batch."""
        turned, moved = time_last(batch, self.estimator.time_dim)
        return Transitions.of(turned, self.entries, moved)

    def has_fixed_shape(self, batch: TensorDictBase) -> bool:
        """Whether shapes follow from the batch's; slots of n-step rows do not."""
        estimator, entries = self.estimator, self.entries
        plain = estimator.calls == DEFAULT_CALLS and not estimator.average_rewards
        one_step = find(batch, under_next(entries["steps_to_next_obs"])) is None
        marked = has_members(batch, entries["terminated"], entries["done"])
        return plain and not marked and (one_step or self.is_row_wise)


def returns_of(
    estimator: ValueEstimator, steps: Transitions, found: UnrolledValues
) -> tuple[Tensor, UnrolledValues]:
    """The target of each step ``[M, *G, C]`` from the values of next states."""
    if estimator.calls.missing_next == "root":
        estimator.count_substituted(found)
    found = replace(found, now=torch.zeros_like(found.following))
    return estimator.returns_of(steps, found)[1], found


@torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
def _outside(
    batch: TensorDictBase, entries: KeyMap, moved: int | None, unroll: Unroll
) -> dict[NestedKey, Tensor]:
    return _placed(Transitions.of(batch, entries, moved), unroll)


@torch.no_grad()
def _placed(steps: Transitions, unroll: Unroll) -> dict[NestedKey, Tensor]:
    """Targets, a flag of unknown ones and markers of those steps, in the shape of the batch."""
    target, found = unroll(steps)
    made: dict[NestedKey, Tensor] = {"target": target}
    late = None if found.in_budget is None else steps.widen(~found.in_budget)
    for flag in (found.missing, steps.left_out, found.overwritten, late):
        if flag is not None:
            made["unknown"] = made["unknown"] | flag if "unknown" in made else flag
    if found.in_budget is not None:
        made[keys.SHIFTED_VALID] = found.in_budget
    made |= found.markers(steps)
    return {key: steps.scatter(value) for key, value in made.items()}
