"""The real steps of one batch as flat arrays, and the same with their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys, must_compare_observations
from rl_layout.internals import FIELDS, array_of, flat_marker
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple, find, names_of, require
from rl_tensordict.types import KeyPath
from rl_value.arguments import check_fraction, floats
from rl_value.counted_steps import absent_members, members_without_next, under_next
from rl_value.estimators.step_counts import check_steps, step_counts
from rl_value.estimators.time_place import refuse_misplaced_time, refuse_scattered_rows
from rl_value.masked_means import standardise

STANDARD = {
    "done": keys.DONE,
    "terminated": keys.TERMINATED,
    "steps_to_next_obs": keys.STEPS_TO_NEXT_OBS[-1],
}


@dataclass(frozen=True)
class Transitions:
    """The M real steps of a batch, segment after segment."""

    batch: TensorDictBase  # the tensordict, time last
    segments: Segments  # its segments
    reward: Tensor  # [M, *G, C]
    terminated: Tensor  # bool [M, *G, 1]
    # bool [M, *G, 1], not terminated, and the next observation could not be had; None if the
    # batch does not say so
    missing: Tensor | None
    # int64 [M], distance to the next observation; None if it is one step
    ahead: Tensor | None
    # bool [M, *G, 1], members that are out already, or lack their next observation; None if the
    # batch does not say so
    left_out: Tensor | None = None
    # bool [M, *G, 1], members that are truncated where their segment continues; None if none is
    truncated: Tensor | None = None
    group: KeyPath = ()  # the group that rewards and flags are of; () for the root
    # where time was in what the caller has, which settings per step are laid out like; None if
    # it was last
    time_dim: int | None = None

    @classmethod
    def of(
        cls,
        batch: TensorDictBase,
        entries: Mapping[str, NestedKey],
        time_dim: int | None = None,
    ) -> Transitions:
        """Read the steps of a batch."""
        key = _behind(entries["steps_to_next_obs"])
        ahead = find(batch, key)
        if ahead is not None:
            ahead = step_counts(ahead, batch.batch_size, key)
        segments = _segments(batch, entries)
        if len(segments) == segments.num_real:  # every row is alone
            refuse_scattered_rows(batch, segments)
        place = _behind(entries["reward"])
        reward = find(batch, place)
        if type(reward) is not Tensor or not reward.is_floating_point():
            reward = floats(require(batch, place) if reward is None else reward, entries["reward"])
        reward = segments.gather(reward)
        terminated, done = _flags(batch, entries, segments)
        _check_group(terminated, reward, entries["terminated"])
        group = _behind(entries["terminated"])[1:-1]
        left_out = _members_left_out(batch, entries, segments, terminated) if group else None
        truncated = None
        if done is not None:
            truncated = _truncated_inside(done & ~terminated, left_out, segments)
        if ahead is not None:
            ahead = segments.gather(ahead)
            check_steps(ahead, entries["steps_to_next_obs"])
            if truncated is not None:
                _refuse_truncated(truncated, entries["done"])
        missing = _marked(batch, segments, keys.NEXT_MISSING)
        if missing is not None:
            missing = missing.view(-1, *(1,) * (terminated.ndim - 1)) & ~terminated
        flags = terminated, missing, ahead, left_out, truncated
        return cls(batch, segments, reward, *flags, group, time_dim)

    @property
    def lost(self) -> Tensor | None:
        """Steps that are missing their next observation for some group, bool ``[M]``."""
        return None if self.missing is None else self.missing.flatten(1).any(1)

    @property
    def unread(self) -> Tensor | None:
        """Rows whose own next observation may hold anything, terminated ones too, bool ``[M]``."""
        lost = self.lost
        if lost is None:
            return None
        marked = _marked(self.batch, self.segments, keys.NEXT_MISSING)
        return lost if marked is None else marked | lost

    def without_next(self, where: Tensor) -> Self:
        """The same steps, of which some turned out to be missing their next observation."""
        absent = self.widen(where) & ~self.terminated
        return replace(self, missing=absent if self.missing is None else self.missing | absent)

    def members_without_next(self, others: Tensor) -> Tensor:
        """The group's own marker, bool ``[M, *G]``, with members that it does not name yet."""
        own = find(self.batch, (*self.group, keys.NEXT_MISSING[-1]))
        found = others.squeeze(-1)
        return found if own is None else found | self.segments.gather(own).view(found.shape)

    @property
    def without_history(self) -> Tensor | None:
        """Steps that do not show what the policy saw, bool ``[M, 1, ...]``; None without a mark."""
        # Frames of rows before, which such a step is stacked of, could not be had.
        rows = _marked(self.batch, self.segments, keys.HISTORY_MISSING)
        return None if rows is None else self.widen(rows)

    @cached_property
    def lasts(self) -> Tensor:
        """Numbers of the last steps of segments, int64 ``[S]``."""
        segments = self.segments
        return segments.offsets[1:] - 1 if segments.has_gaps else segments.lasts

    @cached_property
    def ends(self) -> Tensor:
        """Last steps of segments, bool ``[M]``."""
        size, lasts = self.segments.num_real, self.lasts
        if lasts.is_cpu and not torch.compiler.is_compiling():  # numpy takes a third of the time
            flag = np.zeros(size, bool)
            flag[array_of(lasts)] = True
            return torch.from_numpy(flag)
        last = torch.zeros(size, dtype=torch.bool, device=self.reward.device)
        return last.index_fill_(0, lasts, True)

    @property
    def successor(self) -> Tensor:
        """The step that holds each step's next state, int64 ``[M]``; M where none does."""
        count = self.segments.num_real
        numbers = torch.arange(count, device=self.reward.device)
        # int64 [M]; beyond the end of its own segment there is none in the batch
        reached = numbers + (1 if self.ahead is None else self.ahead)
        return torch.where(
            reached < self.segments.spread(self.segments.offsets[1:]), reached, count
        )

    def gather(self, values: Tensor) -> Tensor:
        """Flatten a leaf that is laid out like the caller's batch to ``[M, ...]``."""
        dim = self.time_dim
        turned = values if dim is None else values.transpose(dim, self.batch.ndim - 1)
        return self.segments.gather(turned)

    def scatter(self, values: Tensor) -> Tensor:
        """Lay ``[M, ...]`` out like the caller's batch, with zeros on padding."""
        dim, whole = self.time_dim, self.segments.scatter(values)
        return whole if dim is None else whole.transpose(dim, self.batch.ndim - 1)

    def successor_values(self, values: Tensor, others: Tensor) -> Tensor:
        """Values ``[M, ...]`` of each step's successor, and `others` for steps without one."""
        where = self.successor
        inside = (where < len(values)).view(-1, *(1,) * (values.ndim - 1))
        return torch.where(inside, values[where.clamp(max=len(values) - 1)], others)

    def stored(self, key: NestedKey) -> Tensor | None:
        """Read an entry ``[M, ...]`` of the batch; None if it is missing."""
        value = find(self.batch, as_tuple(key))
        return None if value is None else self.segments.gather(floats(value, key))

    def factor(self, name: str, value: float | Tensor) -> float | Tensor:
        """A setting of each step: a number, or ``[M, ...]``."""
        if not isinstance(value, Tensor):
            return value
        if not value.ndim:
            return float(value)
        shape = torch.Size((*self.given_shape, *self.reward.shape[1:]))
        check_fraction(name, value, shape)
        return self.gather(value.to(self.reward.device, self._precision).expand(shape))

    def per_step(self, gamma: float | Tensor) -> float | Tensor:
        """The discount up to each step's next state: a number, or ``[M, ...]``."""
        gamma = self.factor("gamma", gamma)
        if self.ahead is None:
            return gamma
        power = self.widen(self.ahead).to(self._precision)
        return torch.as_tensor(gamma, dtype=power.dtype, device=power.device) ** power

    @property
    def given_shape(self) -> torch.Size:
        """The shape of the batch as the caller has it."""
        shape = list(self.batch.batch_size)
        if self.time_dim is not None:
            shape[self.time_dim], shape[-1] = shape[-1], shape[self.time_dim]
        return torch.Size(shape)

    @property
    def _precision(self) -> torch.dtype:
        """What returns are computed in, also of rewards of half precision."""
        return torch.promote_types(self.reward.dtype, torch.float32)

    def widen(self, flag: Tensor) -> Tensor:
        """Give a flag of whole steps the dimensions of the reward: ``[M]`` to ``[M, 1, ...]``."""
        return flag.view(-1, *(1,) * (self.reward.ndim - 1))


@dataclass(frozen=True)
class UnrolledValues:
    """Outputs of a network at every step and at its next state."""

    now: Tensor  # [M, ...]
    following: Tensor  # [M, ...]
    missing: Tensor | None  # bool [M, *G, 1], steps without a next state; None if all have one
    in_budget: Tensor | None  # bool [M], steps within the budget; None without one
    # steps that stand in for their own next state, int64 []; None without
    substituted: Tensor | None
    # bool [M, *G, 1], truncated members whose next observation the next row overwrites; None if
    # no member is truncated inside a segment
    overwritten: Tensor | None = None

    def markers(self, steps: Transitions) -> dict[NestedKey, Tensor]:
        """Flags by key of the steps that turned out to have no next observation, ``[M, ...]``."""
        found: dict[NestedKey, Tensor] = {}
        if self.missing is not None and self.missing is not steps.missing:
            lost, marked = self.missing.flatten(1).any(1), steps.unread
            found[keys.NEXT_MISSING] = lost if marked is None else lost | marked
        if self.overwritten is not None:
            key = (*steps.group, keys.NEXT_MISSING[-1])
            found[key] = steps.members_without_next(self.overwritten)
        return found


@dataclass(frozen=True)
class ValuedTransitions:
    """The steps of a batch with their values, as returns are computed from."""

    steps: Transitions  # the M steps
    reward: Tensor  # [M, *G, C]
    value: Tensor  # [M, *G, C]
    next_value: Tensor  # [M, *G, C]
    cut: Tensor  # bool [M, *G, 1], steps after which nothing flows
    left_out: Tensor | None  # bool [M, *G, 1], steps that have no target; None if all have
    gamma: float | Tensor  # discount, a number or one per step
    found: UnrolledValues  # what the network said


def finished(valued: ValuedTransitions, advantage: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Give steps that have no target the advantage 0, and their own value as target."""
    if valued.left_out is not None:
        advantage = torch.where(valued.left_out, 0, advantage)
        target = torch.where(valued.left_out, valued.value, target)
    if (
        valued.found.in_budget is not None
    ):  # outside of the budget of shifted even values are unknown
        target = torch.where(valued.steps.widen(valued.found.in_budget), target, 0)
    return advantage, target


def standardised(values: Tensor, left_out: Tensor | None) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1, over the steps that count."""
    # deviations below 1e-4 count as 1e-4; one step alone has the correction 0, not a NaN
    if left_out is None:
        deviation, mean = torch.std_mean(values, correction=min(1, values.numel() - 1))
        return (values - mean) / deviation.clamp(min=1e-4)
    return standardise(values, ~left_out, floor=1e-4)


# compilers do not look into what is cached
_behind = lru_cache(maxsize=128)(under_next)
path_of = lru_cache(maxsize=128)(as_tuple)


def _segments(batch: TensorDictBase, entries: Mapping[str, NestedKey]) -> Segments:
    """The segments; flags that are kept under other names than the usual ones count as those."""
    if batch.device is not None and batch.device.type == "meta":
        msg = "the batch is on 'meta' and holds no numbers. Pass one that holds data."
        raise ValueError(msg)
    is_open = len(batch.batch_size) > 1 and must_compare_observations(batch)
    compared = refuse_misplaced_time(batch) if is_open else None
    standard = all(entries[name] == usual for name, usual in STANDARD.items())
    if standard and find(batch, keys.NEXT_DONE) is not None:
        return Segments.of(batch, compared)
    renamed = {
        next_key(usual): value
        for name, usual in STANDARD.items()
        if _behind(entries[name]) != next_key(usual)
        and (value := batch.get(_behind(entries[name]), None)) is not None
        and value.shape == (*batch.batch_size, 1)
    }
    markers = [key for key, _, _ in FIELDS.values()]
    if not renamed and any(batch.get(key, None) is not None for key in markers):
        return Segments.of(batch, compared)
    known = batch.copy()
    if any(key in renamed for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED)):
        known = known.exclude(keys.NEXT_TRUNCATED)  # a flag that goes with other names
    for key, value in renamed.items():
        known.set(key, value)
    if all(find(known, as_tuple(key)) is None for key in markers):
        # flags of a group only: each row of time is one segment
        shape = (*batch.batch_size, 1)
        known.set(keys.IS_INIT, torch.zeros(shape, dtype=torch.bool, device=batch.device))
    return Segments.of(known)


def _flags(
    batch: TensorDictBase, entries: Mapping[str, NestedKey], segments: Segments
) -> tuple[Tensor, Tensor | None]:
    """Terminated steps; and done ones where flags are a group's own, which must be looked at."""
    places = _behind(entries["terminated"]), _behind(entries["done"])
    terminated, done = find(batch, places[0]), find(batch, places[1])
    for place, flag in zip(places, (terminated, done), strict=True):
        if flag is not None and flag.dtype != torch.bool:
            msg = f"{place!r}: expected torch.bool, got {flag.dtype}. Call .bool()."
            raise TypeError(msg)
    if terminated is None:
        if done is None:  # done alone is termination unless truncation explains it
            msg = (
                f"{places[0]!r} and {places[1]!r} are missing: without them no "
                "target knows whether to bootstrap. Name them by set_keys(terminated=, done=)."
            )
            raise KeyError(msg)
        truncated = batch.get((*places[1][:-1], keys.TRUNCATED), None)
        terminated = done if truncated is None else done & ~truncated
    own_done = done if len(places[1]) > 2 else None
    return segments.gather(terminated), None if own_done is None else segments.gather(own_done)


def _check_group(terminated: Tensor, reward: Tensor, key: NestedKey) -> None:
    if reward.ndim < 2:
        msg = "the reward ends in a dimension of its own, [*B, T, 1]: call reward.unsqueeze(-1)."
        raise ValueError(msg)
    if reward.shape == terminated.shape[:-1]:
        msg = f"rewards of {key!r} end in a dimension of their own, as its flags do: expected "
        msg += f"{[*reward.shape[1:], 1]} after the batch, got {list(reward.shape[1:])}. "
        raise ValueError(msg + "Call reward.unsqueeze(-1).")
    if terminated.shape not in (reward.shape, (*reward.shape[:-1], 1)):
        msg = (
            f"{key!r}: expected a flag for each reward, {[*reward.shape[1:-1], 1]} after the "
            f"batch, got {list(terminated.shape[1:])}. Call set_keys(terminated=, done=), or give "
            "a group without flags of its own those of the root: rl_transforms.GroupDone(group)."
        )
        raise ValueError(msg)


def _truncated_inside(
    truncated: Tensor, left_out: Tensor | None, segments: Segments
) -> Tensor | None:
    """Members that are truncated where their segment continues, bool; None if none is."""
    inside = truncated if left_out is None else truncated & ~left_out
    inside[segments.offsets[1:] - 1] = False
    return inside if bool(inside.any()) else None


def _refuse_truncated(truncated: Tensor, key: NestedKey) -> None:
    count = int(truncated.flatten(1).any(1).sum())
    msg = (
        f"{key!r} is truncated where the batch's own markers continue, in {count} rows of n steps: "
        "a row has one distance for all members. Store single steps, or truncate the batch there."
    )
    raise ValueError(msg)


def _members_left_out(
    batch: TensorDictBase, entries: Mapping[str, NestedKey], segments: Segments, terminated: Tensor
) -> Tensor | None:
    """Members that are out, or need a next observation and have none, bool ``[M, *G, 1]``."""
    name = entries["terminated"]
    out, lost = absent_members(batch, name, entries["done"]), members_without_next(batch, name)
    if out is None and lost is None:
        return None
    found = torch.zeros_like(terminated)
    if out is not None:
        found |= segments.gather(out).view(terminated.shape)
    if lost is not None:
        found |= segments.gather(lost).view(terminated.shape) & ~terminated
    return found


def _marked(batch: TensorDictBase, segments: Segments, key: KeyPath) -> Tensor | None:
    """A marker ``[*B, T]`` of the real rows, bool ``[M]``; None if it is absent."""
    flag, shape = find(batch, key), batch.batch_size
    if flag is None:
        return None
    return segments.gather(flat_marker(flag, shape, key, torch.bool, singleton=False).view(shape))


def check_writable(tensordict: TensorDictBase) -> None:
    """Raise for a batch that results cannot be written to, before they are computed."""
    if tensordict.is_locked:
        msg = "the batch is locked, and results are written to it. Pass batch.copy()."
        raise RuntimeError(msg)


def is_time_last(batch: TensorDictBase) -> bool:
    """Tell whether the last dimension is named time, or none has a name."""
    names = names_of(batch)
    return names is None or names[-1] == keys.TIME


def full(values: Tensor) -> Tensor:
    """Values of half precision in single precision, others as they are."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    return values.float() if half else values
