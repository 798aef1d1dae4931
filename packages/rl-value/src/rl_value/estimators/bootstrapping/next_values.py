"""Values and next values of the rows of a batch, from one call of the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import MODE, array_of
from rl_layout.keys import next_key
from rl_tensordict import ModuleCalls, NestedKey, as_key, as_tuple, build, find, nest, require
from rl_tensordict.types import KeyPath
from rl_value.estimators.bootstrapping.call_config import ValueCallConfig
from rl_value.estimators.bootstrapping.sequence_layout import (
    InputLeaf,
    SlotReader,
    UnrollLayout,
    n_step_slots,
    one_step_slots,
)
from rl_value.estimators.transitions import Transitions, UnrolledValues
from rl_value.networks import note_failure, output_on_batch


@dataclass(frozen=True)
class InputRoles:
    """Roles of the entries that a network reads."""

    read: tuple[KeyPath, ...]  # all of them
    states: frozenset[KeyPath]  # read, and written for the next step
    observed: tuple[NestedKey, ...]  # all others but markers
    following: tuple[KeyPath, ...]  # where the next observations are
    is_row_wise: bool  # it looks at single rows: it reads no marker, and keeps no state


def roles_of(network: TensorDictModuleBase) -> InputRoles:
    """Find the roles of what a network reads, by its keys."""
    return _roles(tuple(network.in_keys), tuple(network.out_keys))


@lru_cache(maxsize=128)
def _roles(in_keys: tuple[NestedKey, ...], out_keys: tuple[NestedKey, ...]) -> InputRoles:
    written, read = set(map(as_tuple, out_keys)), list(map(as_tuple, in_keys))
    states = frozenset(key for key in read if next_key(key) in written)
    observed = tuple(
        key
        for key, parts in zip(in_keys, read, strict=True)
        if parts not in states and parts[-1] != keys.IS_INIT
    )
    marked = any(keys.IS_INIT in key or key[0] == keys.COLLECTOR for key in read)
    following = tuple(map(next_key, observed))
    is_row_wise = not (marked or states)
    return InputRoles(tuple(read), states, observed, following, is_row_wise)


def input_leaves(roles: InputRoles, batch: TensorDictBase) -> list[InputLeaf]:
    """List what a network reads: its key, the leaf at the root, and the one under ``"next"``."""
    leaves: list[InputLeaf] = []
    for key in roles.read:
        if key[-1] == keys.IS_INIT:  # made anew
            leaves.append((key, None, None))
            continue
        root, after = find(batch, key), find(batch, (keys.NEXT, *key))
        if root is None:
            root = _require_input(roles, batch, key)
        if type(root) is not Tensor or (after is not None and after.shape != root.shape):
            _check_alike(key, root, after)
        leaves.append((key, root, after))
    return leaves


def lacks_next(roles: InputRoles, batch: TensorDictBase) -> bool:
    """Tell whether a batch came without next observations, as compact collection makes it."""
    absent = [key for key in roles.following if find(batch, key) is None]
    if absent and len(absent) < len(roles.following):
        msg = (
            f"{absent[0]!r} is missing, while other next observations are there. "
            "Store all that the network reads under 'next', or none."
        )
        raise KeyError(msg)
    return bool(absent)


def _require_input(roles: InputRoles, batch: TensorDictBase, key: KeyPath) -> Any:
    """An input that must be there; where a state is missing, say who would have written it."""
    try:
        return require(batch, as_key(key))
    except KeyError as error:
        if key not in roles.states:
            raise
        msg = (
            f"{error.args[0]} It is a recurrent state of this network, which must play along when "
            "steps are collected: give TensorDictSequential(actor, critic) as the policy, whose "
            "states the environment then shows from each reset on; or put it into the batch."
        )
        raise KeyError(msg) from None


def _check_alike(key: KeyPath, root: Tensor, after: Tensor | None) -> None:
    given: object = root
    if not isinstance(given, Tensor):
        got = type(given).__name__
        msg = f"{as_key(key)!r}: expected a tensor, got {got}. Name its leaves in in_keys."
        raise TypeError(msg)
    if after is not None and after.shape != root.shape:
        msg = (
            f"{next_key(key)!r}: expected the shape at the root, {list(root.shape)}, "
            f"got {list(after.shape)}. Store both as the network reads them."
        )
        raise ValueError(msg)


NetworkInputs: TypeAlias = tuple[Mapping[KeyPath, Tensor], int]  # [K, ...] by key, and K


@dataclass(frozen=True)
class ValueCalls:
    """The calls of a network for the values of rows and of their next observations."""

    network: TensorDictModuleBase
    roles: InputRoles
    wanted: NestedKey  # the output
    config: ValueCallConfig
    params: TensorDictBase | None = None  # in place of its own
    target_params: TensorDictBase | None = None  # for next observations
    bound: ModuleCalls | None = None  # its calls, if they are listed already

    @property
    def share_values(self) -> bool:
        """Whether next values are those of the rows that follow, from the same call."""
        return self.target_params is None and self.config.single_call

    def now(self, given: Iterable[NetworkInputs]) -> list[Tensor]:
        """Evaluate the network once for each of some inputs, in recurrent mode."""
        return outputs_from(self.network, given, self.wanted, self.params, self.bound)

    def later(self, given: Iterable[NetworkInputs]) -> list[Tensor]:
        """The same by the parameters for next observations."""
        params = self.params if self.target_params is None else self.target_params
        return outputs_from(self.network, given, self.wanted, params, self.bound)


def outputs_from(
    network: TensorDictModuleBase,
    given: Iterable[NetworkInputs],
    wanted: NestedKey,
    params: TensorDictBase | None = None,
    bound: ModuleCalls | None = None,
) -> list[Tensor]:
    """Evaluate a network once for each of some inputs, in recurrent mode, by its parameters."""
    calls = ModuleCalls(network, watch=False) if bound is None else bound
    key = (wanted,) if isinstance(wanted, str) else as_tuple(wanted)
    swapped: Any = (
        nullcontext() if params is None else params.to_module(network, preserve_module_state=False)
    )
    found = []
    with swapped:
        before, MODE.current = MODE.current, True
        try:
            is_flat = calls.is_forward()
            for inputs, size in given:
                made = None
                if is_flat:
                    try:
                        made = calls.run(dict(inputs)).get(key)
                    except Exception as error:
                        note_failure(error, network, calls, inputs)
                        raise
                if not isinstance(made, Tensor) or made.ndim < 2:  # `forward` may refuse it
                    batch = build(nest(inputs), torch.Size([size]))
                    made = output_on_batch(network, calls, batch, wanted)
                found.append(made)
        finally:
            MODE.current = before
    return found


def unroll_steps(calls: ValueCalls, steps: Transitions) -> UnrolledValues:
    """Evaluate a network on the rows of a batch and on their next observations."""
    # of all members: what one that is out shows counts as what it saw
    unroll = _side_by_side if reads_side_by_side(calls.roles, steps, calls.config) else _in_slots
    return with_overwritten(calls.roles, steps, unroll(calls, steps))


def with_overwritten(
    roles: InputRoles, steps: Transitions, found: UnrolledValues
) -> UnrolledValues:
    """Values, with the truncated members whose next observation is overwritten."""
    truncated = steps.truncated
    if truncated is None:
        return found
    # such a member is out in the row after, which repeats what it saw last, or overwrites it
    batch, segments, shape = steps.batch, steps.segments, truncated.shape[1:-1]
    rows = truncated.flatten(1).any(1).nonzero().squeeze(-1)  # int64 [K], none ends a segment
    group = steps.group
    init = find(batch, (*group, keys.IS_INIT))
    same = truncated.new_ones((len(rows), *shape))
    if init is not None:  # it begins anew there
        same &= ~segments.gather(init)[rows + 1].view(same.shape)
    for key in roles.observed:
        root, after = find(batch, as_tuple(key)), find(batch, next_key(key))
        if root is None or after is None:
            same.zero_()
            continue
        shown, seen = segments.gather(root)[rows + 1], segments.gather(after)[rows].to(root.dtype)
        equal = torch.isclose(shown, seen, rtol=0, atol=0, equal_nan=True)
        own = as_tuple(key)[: len(group)] == group and equal.shape[1 : 1 + len(shape)] == shape
        equal = equal.reshape(*(same.shape if own else same.shape[:1]), -1).all(-1)
        same &= equal.view(*equal.shape, *(1,) * (same.ndim - equal.ndim))
    overwritten = truncated.index_put((rows,), truncated[rows] & ~same.unsqueeze(-1))
    return replace(found, overwritten=overwritten)


def _in_slots(calls: ValueCalls, steps: Transitions) -> UnrolledValues:
    """Evaluate a network on one sequence of each segment and what comes after it."""
    # A next observation that is a row of the same segment is read there. What comes after a segment
    # is read as its continuation, so that a recurrent network is exact.
    roles, config = calls.roles, calls.config
    slots = _slots(roles, steps, config)
    outside = slots.needs_extra
    if lacks_next(roles, steps.batch):
        steps = steps.without_next(outside)
    missing, lost, stand_in = steps.missing, steps.lost, steps.unread
    reader = SlotReader(input_leaves(roles, steps.batch), steps.segments, slots, stand_in)
    is_exact = config.missing_next != "root" and not roles.is_row_wise
    if stand_in is not None and steps.ahead is not None and is_exact:
        _refuse_lost_between(slots, steps, stand_in)
    size = config.chunk_slots(steps.given_shape, len(slots))
    values = ahead = _joined(calls.now(reader.inputs(size)))
    if not calls.share_values:
        ahead = _joined(calls.later(reader.inputs(size)))
    substituted = None
    if config.missing_next == "root" and lost is not None:
        substituted, missing = (lost & outside).sum(), None
    now, following = values[slots.row_slot], ahead[slots.next_slot]
    if stand_in is not None and missing is not None:  # the stand-in is no value
        following = blank(following, stand_in & outside)
    if config.shifted:  # what terminated has no slot of its own: nothing follows
        following = blank(following, slots.next_slot == slots.row_slot)
    return UnrolledValues(now, following, missing, slots.in_budget, substituted)


def reads_side_by_side(roles: InputRoles, steps: Transitions, config: ValueCallConfig) -> bool:
    """Whether rows, and the last next observations of segments, are read as they lie."""
    size_free = config.num_chunks is None and config.value_chunk_size is None
    plain = size_free and not config.shifted and steps.ahead is None
    return plain and roles.is_row_wise


def _joined(found: list[Tensor]) -> Tensor:
    """The output of a network at all slots, ``[K, ...]``; of no slot one row that none names."""
    return found[0] if len(found) == 1 else torch.cat(found)


def _side_by_side(calls: ValueCalls, steps: Transitions) -> UnrolledValues:
    """The same for a network that looks at single rows: they are read in place."""
    leaves = input_leaves(calls.roles, steps.batch)
    for _, _, after in leaves:
        if after is None and lacks_next(calls.roles, steps.batch):
            steps = steps.without_next(steps.ends)
            break
    segments, lasts, missing, lost = steps.segments, steps.lasts, steps.missing, steps.lost
    unread = steps.unread
    stand_in = None if unread is None else unread[lasts]
    rows: dict[KeyPath, Tensor] = {}
    ends: dict[KeyPath, Tensor] = {}
    for key, root, after in leaves:
        assert root is not None  # such a network reads no marker
        last = segments.last(root if after is None else after)
        if stand_in is not None and after is not None:
            wide = stand_in.view(-1, *(1,) * (last.ndim - 1))
            last = torch.where(wide, segments.last(root), last)
        rows[key], ends[key] = segments.gather(root), last.to(root.dtype)
    rows_and_ends = [(rows, segments.num_real), (ends, len(segments))]
    if calls.share_values:
        now, after_ends = calls.now(rows_and_ends)
        ahead = now
    else:
        (now,) = calls.now(rows_and_ends[:1])
        ahead, after_ends = calls.later(rows_and_ends)
    substituted = None
    if lost is not None and calls.config.missing_next == "root":
        substituted, missing = lost[lasts].sum(), None
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


def _slots(roles: InputRoles, steps: Transitions, calls: ValueCallConfig) -> UnrollLayout:
    if steps.ahead is None:
        slots = one_step_slots(steps.segments, after_terminated=not calls.shifted)
        return _budgeted(slots, steps, calls) if calls.shifted else slots
    if calls.shifted:
        msg = "shifted=True reads single steps, and these are n-step rows. Set shifted=False."
        raise ValueError(msg)
    slots = n_step_slots(steps.segments, steps.ahead, steps.unread)
    if slots.has_holes and not roles.is_row_wise:
        msg = (
            "some slices of n-step rows are shorter than n, and a recurrent network cannot skip "
            "the steps before their next observations. Sample slices of at least n rows: "
            "SliceSampler(slice_len=..., strict_length=True) leaves shorter trajectories out."
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
