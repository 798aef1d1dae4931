"""Step counts of trajectories, and time limits."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import Binary, Composite
from rl_tensordict import NestedKey, as_key, device_of_data
from rl_tensordict.arguments import check_whole
from rl_transforms.entries import not_reset, with_entries
from rl_transforms.episodes.groups import (
    GroupPath,
    GroupTransform,
    check_last_part,
    group_mask,
    next_done,
)
from rl_transforms.transform import with_specs


class StepCounter(GroupTransform):
    """Counts the steps since the last reset, and truncates at a limit.

    ``step_count`` is 0 at a reset and one more after every step, in the root's and in every nested
    done group. With `max_steps` a step that reaches it is truncated and done, never terminated,
    and the transform has to run at every step; without, `rows` can count on finished rows.

    With `update_done=False` the limit is marked and ends nothing: the environment continues, and so
    does the count. Give the mark a name of its own then, as ``"limit"``. A flag ``"truncated"``
    next to a done flag that stays False contradicts the layout: estimators and samplers cut there,
    `rl_layout.check_layout` finds it, and recurrent networks refuse the batch.

    Args:
        max_steps: how many steps a trajectory may have; None for any number.
        truncated_key: the last part of the flags to set. One of another name than ``"truncated"``
            is an observation, False at a reset; the trajectory is truncated all the same.
        step_count_key: the last part of the counts' keys.
        update_done: end the trajectory at the limit: set ``done`` too.

    Raises:
        TypeError: a key is no string.
        ValueError: `max_steps` is less than 1, or the flag is one of another meaning.

    Example:
        >>> from tensordict import TensorDict
        >>> counter, flag = StepCounter(max_steps=2), torch.zeros(3, 1, dtype=torch.bool)
        >>> root = counter.reset(TensorDict({"done": flag}, [3]))
        >>> root = counter.step(root, TensorDict({"done": flag}, [3]))
        >>> after = counter.step(root, TensorDict({"done": flag}, [3]))
        >>> after["step_count"].flatten(), after["truncated"].all(), after["terminated"].any()
        (tensor([2, 2, 2]), tensor(True), tensor(False))
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str = keys.TRUNCATED,
        step_count_key: str = "step_count",
        update_done: bool = True,
    ) -> None:
        super().__init__(step_count_key, torch.int64)
        if max_steps is not None:
            check_whole("max_steps", max_steps, 1, " Pass None for no limit.")
        check_last_part("truncated_key", truncated_key)
        if truncated_key in (keys.DONE, keys.TERMINATED):
            msg = f"truncated_key: expected 'truncated' or a name of its own, got {truncated_key!r}"
            raise ValueError(f"{msg}: a limit is no termination.")
        self.max_steps = max_steps
        self.truncated_key = truncated_key
        self.update_done = update_done
        self.online = max_steps is not None

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Start to count in the rows that were reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with int64 ``step_count`` ``[*B, 1]``, 0 in those rows.

        Raises:
            TypeError: the mask is not boolean.
            ValueError: it does not have the shape of the batch.
        """
        changes, device = {}, device_of_data(root)
        for group, shape in self._learned(root, mask is None).items():
            key = self._key(group)
            zeros = torch.zeros(shape, dtype=torch.int64, device=device)
            kept = root.get(key, None) if mask is not None else None
            # [*B] -> [*B, ..., 1], like the flag of the group
            gone = group_mask(mask, shape, device)
            changes[key] = zeros if kept is None else kept.masked_fill(gone, 0)
            if self.marks_limit:
                flag, none = as_key((*group, self.truncated_key)), zeros.to(torch.bool)
                kept = root.get(flag, None) if mask is not None else None
                changes[flag] = none if kept is None else kept & ~gone
        return with_entries(root, changes)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Count a step, and truncate at the limit.

        Args:
            root: ``[*B]`` with ``step_count``.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The new ``after``.

        Raises:
            KeyError: the root has no count: `reset` was not called.
        """
        changes: dict[NestedKey, Tensor] = {}
        for group in self._learned(after, False):
            key = self._key(group)
            before = root.get(key, None)
            if before is None:
                raise not_reset(self, key, root)
            changes[key] = before + 1
            if self.max_steps is not None:
                changes.update(self._truncated(after, group, changes[key] >= self.max_steps))
        return with_entries(after, changes)

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Count the steps of finished rows.

        Args:
            batch: ``[*B, T]`` in the order of collection.
            last: ``[*B]``, the column before these as this method returned it; None if the
                first follows a reset.

        Returns:
            The rows with ``step_count`` at the root and under ``"next"``.

        Raises:
            KeyError: a group has no done flag under ``"next"``.
            ValueError: there is a `max_steps`, so that the steps themselves must be watched.
        """
        if self.max_steps is not None:
            msg = "StepCounter with max_steps truncates: call step at every step, not rows."
            raise ValueError(msg)
        changes: dict[NestedKey, Tensor] = {}
        for group in self._groups_of_rows(batch):
            key = self._key(group)
            done = next_done(self, batch, group)
            start = None if last is None else carried_over(last, key, next_done(self, last, group))
            changes[key] = since_reset(done, batch.ndim - 1, start)
            changes[next_key(key)] = changes[key] + 1
        return with_entries(batch, changes)

    @property
    def marks_limit(self) -> bool:
        """Whether the limit is marked under a name of its own."""
        return self.max_steps is not None and self.truncated_key != keys.TRUNCATED

    @property
    def carried(self) -> list[NestedKey]:
        """The counts."""
        return [self._key(group) for group in self._with_root(self._groups or {}, torch.Size())]

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Learn the done groups, and add the flags that a limit sets."""
        super().transform_done_spec(spec)
        if self.max_steps is None or (self.marks_limit and not self.update_done):
            return spec
        names = keys.DONE_KEYS if self.update_done else (self.truncated_key,)
        groups = self._with_root(self._groups or {}, spec.shape).items()
        flags = {(*g, name): Binary(shape=s, dtype=torch.bool) for g, s in groups for name in names}
        return with_specs(spec, {k: flag for k, flag in flags.items() if k not in spec})

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the counts, and the flags that mark a limit under a name of their own."""
        spec = super().transform_observation_spec(spec)
        if not self.marks_limit:
            return spec
        groups = self._with_root(self._groups or {}, spec.shape).items()
        name = self.truncated_key
        return with_specs(
            spec, {(*g, name): Binary(shape=shape, dtype=torch.bool) for g, shape in groups}
        )

    def _with_root(
        self, groups: dict[GroupPath, torch.Size], batch: torch.Size
    ) -> dict[GroupPath, torch.Size]:
        """The groups with done flags; the root if there are none."""
        return groups or {(): torch.Size((*batch, 1))}

    def _truncated(
        self, after: TensorDictBase, group: GroupPath, at_limit: Tensor
    ) -> dict[NestedKey, Tensor]:
        changes: dict[NestedKey, Tensor] = {}
        # a mark of its own is the present step's alone: it is not joined with an older one
        if self.marks_limit:
            changes[(*group, self.truncated_key)] = at_limit
            if not self.update_done:
                return changes
        named = (keys.DONE, keys.TRUNCATED, keys.TERMINATED)
        done, truncated, terminated = (after.get((*group, name), None) for name in named)
        changes[(*group, keys.TRUNCATED)] = at_limit if truncated is None else truncated | at_limit
        if self.update_done:
            changes[(*group, keys.DONE)] = at_limit if done is None else done | at_limit
        if terminated is None:
            # a bare done flag means a termination: say so before a truncation joins it
            ended = torch.zeros_like(at_limit) if done is None else done
            changes[(*group, keys.TERMINATED)] = ended if truncated is None else ended & ~truncated
        return changes


def carried_over(last: TensorDictBase, key: NestedKey, ended: Tensor) -> Tensor:
    """Read the count or sum that the column before carries over; 0 where it ended."""
    value: Tensor = last[next_key(key)].masked_fill(ended, 0)
    return value


def since_reset(done: Tensor, time: int, start: Tensor | None) -> Tensor:
    """Count the steps since the last done step before each row, int64 ``[*B, T, ...]``."""
    steps = torch.arange(done.shape[time], device=done.device)
    steps = steps.reshape(-1, *[1] * (done.ndim - time - 1)).expand_as(done)
    # steps - starts, where starts is the running maximum of the first step of each trajectory; one
    # that began start steps before the first column began at -start
    first = torch.zeros_like(done.select(time, 0), dtype=torch.int64) if start is None else -start
    next_starts = (steps + 1).masked_fill(~done, torch.iinfo(torch.int64).min)
    earlier = next_starts.narrow(time, 0, done.shape[time] - 1)
    starts = torch.cat([first.unsqueeze(time), earlier], time)
    return steps - starts.cummax(time).values
