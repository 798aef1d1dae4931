"""Values and next values of the rows of a batch, from one call of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import array_of
from rl_tensordict import NestedKey
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.bootstrapping.sequence_layout import (
    UnrollLayout,
    n_step_slots,
    one_step_slots,
)
from rl_value.estimators.bootstrapping.unroll import (
    SlotReader,
    evaluate,
    is_row_wise,
    lacks_next,
    read_side_by_side,
    unroll,
)
from rl_value.estimators.transitions import Transitions


@dataclass(frozen=True)
class UnrolledValues:
    """Outputs of a network at every step and at its next state."""

    now: Tensor  # [M, ...]
    following: Tensor  # [M, ...]
    missing: Tensor | None  # bool [M, *G, 1], steps without a next state; None where all have one
    in_budget: Tensor | None  # bool [M], steps within the budget; None without one
    # steps that stand in for their own next state, int64 []; None without
    substituted: Tensor | None


def unroll_steps(
    network: TensorDictModuleBase,
    steps: Transitions,
    wanted: NestedKey,
    calls: ValueCallConfig,
    params: TensorDictBase | None = None,
    target_params: TensorDictBase | None = None,
) -> UnrolledValues:
    """Evaluate a network on the rows of a batch and on their next observations."""
    # A next observation that is a row of the same segment is read there. What comes after a segment
    # is read as its continuation, so that a recurrent network is exact.
    size_free = calls.num_chunks is None and calls.value_chunk_size is None
    if size_free and not calls.shifted and steps.ahead is None and is_row_wise(network):
        return _side_by_side(network, steps, wanted, calls, (params, target_params))
    slots = _slots(network, steps, calls)
    outside = slots.needs_extra
    if lacks_next(network, steps.batch):
        steps = steps.without_next(outside)
    missing, stand_in = steps.missing, steps.lost
    reader = SlotReader(network, steps.batch, steps.segments, slots, stand_in)
    is_exact = calls.missing_next != "root" and not is_row_wise(network)
    if stand_in is not None and steps.ahead is not None and is_exact:
        _refuse_lost_between(slots, steps, stand_in)
    size = calls.chunk_slots(steps.given_shape, len(slots))
    call = partial(unroll, reader, [wanted], chunk_size=size)
    (values,) = call(params=params)
    if target_params is not None or not calls.single_call:
        (ahead,) = call(params=params if target_params is None else target_params)
    else:
        ahead = values
    substituted = None
    if calls.missing_next == "root" and stand_in is not None:
        substituted, missing = (stand_in & outside).sum(), None
    now, following = values[slots.row_slot], ahead[slots.next_slot]
    if stand_in is not None and missing is not None:  # the stand-in is no value
        following = blank(following, stand_in & outside)
    if calls.shifted:  # what terminated has no slot of its own: nothing follows
        following = blank(following, slots.next_slot == slots.row_slot)
    return UnrolledValues(now, following, missing, slots.in_budget, substituted)


def _side_by_side(
    network: TensorDictModuleBase,
    steps: Transitions,
    wanted: NestedKey,
    calls: ValueCallConfig,
    params: tuple[TensorDictBase | None, TensorDictBase | None],
) -> UnrolledValues:
    """The same for a network that looks at single rows: they are read in place."""
    if lacks_next(network, steps.batch):
        steps = steps.without_next(steps.ends)
    segments, lasts, missing, lost = steps.segments, steps.lasts, steps.missing, steps.lost
    stand_in = None if lost is None else lost[lasts]
    rows, ends = read_side_by_side(network, steps.batch, segments, stand_in)
    own, late = params
    rows_and_ends = [(rows, segments.num_real), (ends, len(segments))]
    if late is None and calls.single_call:
        now, after_ends = evaluate(network, rows_and_ends, wanted, own)
        ahead = now
    else:
        (now,) = evaluate(network, rows_and_ends[:1], wanted, own)
        ahead, after_ends = evaluate(network, rows_and_ends, wanted, own if late is None else late)
    substituted = None
    if stand_in is not None and calls.missing_next == "root":
        substituted, missing = stand_in.sum(), None
    elif stand_in is not None:  # the stand-in is no value of the next state
        after_ends = blank(after_ends, stand_in)
    return UnrolledValues(now, _following(ahead, lasts, after_ends), missing, None, substituted)


def blank(values: Tensor, rows: Tensor) -> Tensor:
    """Put zeros into whole rows."""
    return torch.where(rows.view(-1, *(1,) * (values.ndim - 1)), 0, values)


def _following(values: Tensor, lasts: Tensor, after_ends: Tensor) -> Tensor:
    """The value of the row that follows each row; after the last ones of segments another."""
    has_graph = values.requires_grad or after_ends.requires_grad
    # the row after the last one is overwritten: the last row ends a segment
    if has_graph and torch.is_grad_enabled():
        return torch.cat([values[1:], values[:1]]).index_copy(0, lasts, after_ends)
    if not has_graph and values.dtype == after_ends.dtype and _is_one_column(values):
        now = array_of(values).reshape(-1)
        made = np.empty_like(now)
        made[:-1] = now[1:]
        made[array_of(lasts)] = array_of(after_ends).reshape(-1)
        return torch.from_numpy(made).view(values.shape)
    following = torch.empty_like(values, memory_format=torch.contiguous_format)
    following[:-1] = values[1:]
    return following.index_copy_(0, lasts, after_ends.to(values.dtype))


def _is_one_column(values: Tensor) -> bool:
    """Whether values are one number a row that numpy knows; its calls take a third of torch's."""
    known = values.is_cpu and values.dtype in (torch.float32, torch.float64)
    return known and values.numel() == len(values) and not torch.compiler.is_compiling()


def _slots(
    network: TensorDictModuleBase, steps: Transitions, calls: ValueCallConfig
) -> UnrollLayout:
    if steps.ahead is None:
        slots = one_step_slots(steps.segments, after_terminated=not calls.shifted)
        return _budgeted(slots, steps, calls) if calls.shifted else slots
    if calls.shifted:
        msg = "shifted=True reads single steps, and these are n-step rows. Set shifted=False."
        raise ValueError(msg)
    slots = n_step_slots(steps.segments, steps.ahead, steps.lost)
    if slots.has_holes and not is_row_wise(network):
        msg = (
            "some slices of n-step rows are shorter than n, and a recurrent network cannot skip "
            "the steps before their next observations. Sample slices of at least n rows."
        )
        raise ValueError(msg)
    return replace(slots, has_holes=False)


def _refuse_lost_between(slots: UnrollLayout, steps: Transitions, lost: Tensor) -> None:
    """Raise for next observations that a recurrent network reaches only by way of a lost one."""
    # lost next observations up to each slot: more at the next one than at the row means that one
    # is on the way, where the state of the network stops being right
    so_far = (slots.is_next & lost[slots.source]).cumsum(0)
    after_ends = (so_far[slots.next_slot] > so_far[slots.row_slot]) & slots.needs_extra & ~lost
    count = int((after_ends & ~steps.terminated.flatten(1).all(1)).sum())
    if count:
        msg = (
            f"the next observations of {count} n-step rows come after one that is missing, which "
            f"a recurrent network cannot skip. Mark these rows {keys.NEXT_MISSING!r} as well."
        )
        raise ValueError(msg)


def _budgeted(slots: UnrollLayout, steps: Transitions, calls: ValueCallConfig) -> UnrollLayout:
    """As many slots for each row of the batch, however many segments end in it."""
    num_steps = steps.batch.batch_size[-1]
    rows_of = steps.segments.rows // num_steps  # int64 [M], the row of time of each step
    terminated = steps.terminated.flatten(1).all(1)
    room = num_steps + calls.shifted_budget
    kept = slots.cut_to(rows_of, room, terminated)
    return kept.filled_to(steps.batch.numel() // max(num_steps, 1) * room)
