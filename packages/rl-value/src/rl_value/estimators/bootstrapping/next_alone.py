"""Values of next observations alone, where those of the rows themselves are not needed."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict import NestedKey
from rl_tensordict.types import KeyPath
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.bootstrapping.next_values import (
    InputRoles,
    ValueCalls,
    blank,
    input_leaves,
    lacks_next,
    roles_of,
    unroll_steps,
    with_overwritten,
)
from rl_value.estimators.transitions import Transitions, UnrolledValues


def unroll_next(
    network: TensorDictModuleBase, steps: Transitions, wanted: NestedKey, config: ValueCallConfig
) -> UnrolledValues:
    """Evaluate a network on next observations; values of the rows may be anything."""
    roles = roles_of(network)
    calls = ValueCalls(network, roles, wanted, config)
    if not reads_next_alone(roles, config):
        return unroll_steps(calls, steps)
    return with_overwritten(roles, steps, _next_alone(calls, steps))


def reads_next_alone(roles: InputRoles, config: ValueCallConfig) -> bool:
    """Whether next observations are read by themselves where only their values are needed."""
    size_free = config.num_chunks is None and config.value_chunk_size is None
    return size_free and not config.shifted and config.single_call and roles.is_row_wise


def _next_alone(calls: ValueCalls, steps: Transitions) -> UnrolledValues:
    """Evaluate a network that looks at single rows on one next observation of each row."""
    inputs, outside, steps = next_inputs(calls.roles, steps)
    missing, lost, substituted = steps.missing, steps.lost, None
    (following,) = calls.later([(inputs, steps.segments.num_real)])
    if lost is not None and calls.config.missing_next == "root":
        substituted, missing = (lost & outside).sum(), None
    elif (unread := steps.unread) is not None:  # the stand-in is no value of the next state
        following = blank(following, unread & outside)
    return UnrolledValues(following, following, missing, None, substituted)


def next_inputs(
    roles: InputRoles, steps: Transitions
) -> tuple[dict[KeyPath, Tensor], Tensor, Transitions]:
    """What a network reads of each row's next state ``[M, ...]``, and which rows are not here."""
    # the row that follows where the batch holds it, else the row's own next observation; of rows
    # that lost theirs their own observation. Those rows are marked in the steps that are returned.
    count, is_eager = len(steps.terminated), not torch.compiler.is_compiling()
    one_step = steps.ahead is None and is_eager  # the row after, but for ends
    successor = None if one_step else steps.successor
    outside = steps.ends if successor is None else successor == count
    if lacks_next(roles, steps.batch):
        steps = steps.without_next(outside)
    unread = steps.unread
    is_next = outside if unread is None else outside & ~unread
    inputs: dict[KeyPath, Tensor] = {}
    # rows drawn one by one are segments of their own: nothing has to be looked at
    alone = one_step and steps.missing is None and len(steps.segments) == count
    alone = alone or (is_eager and bool(is_next.all()))
    numbers = torch.arange(0 if alone else count, device=outside.device)
    source = numbers if alone else torch.where(outside, numbers, _after(numbers, successor))
    for key, root, after in input_leaves(roles, steps.batch):
        assert root is not None  # such a network reads no marker
        if after is not None and alone:
            inputs[key] = steps.segments.gather(after).to(root.dtype)
            continue
        inputs[key] = steps.segments.gather(root)[source]
        if after is not None:
            ahead = steps.segments.gather(after).to(root.dtype)
            wide = is_next.view(-1, *(1,) * (ahead.ndim - 1))
            inputs[key] = torch.where(wide, ahead, inputs[key])
    return inputs, outside, steps


def _after(numbers: Tensor, successor: Tensor | None) -> Tensor:
    """The row that holds each row's next state: the row after where nothing else is said."""
    return numbers + 1 if successor is None else successor
