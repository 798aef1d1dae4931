"""Steps of a rollout written in place, into the columns of its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env import checks
from rl_envs.env.interface import Binding, Environment
from rl_envs.env.leaf_checks import cast_action, check_choice, check_value
from rl_envs.rollouts.columns import Columns, Key
from rl_envs.rollouts.deferred_transforms import apply_deferred, can_continue
from rl_envs.rollouts.policy_plan import PolicyPlan, bind_plan, policy_plan
from rl_envs.rollouts.surplus import SurplusSteps
from rl_envs.rollouts.tensordict_steps import Request
from rl_layout import keys
from rl_tensordict import build, nest

FIRST_STEPS = 256  # room for steps where a rollout may end at any of them


def can_play(env: Environment, request: Request, root: TensorDictBase | None = None) -> bool:
    """Whether a rollout can write its batch in place, through a binding."""
    if env.resets_by_stepping:
        return root is None
    return env.native_rows and request.callback is None and holds_only_shown(env, root)


def holds_only_shown(env: Environment, root: TensorDictBase | None) -> bool:
    """Whether a root holds what a reset writes, and nothing that would be lost."""
    if root is None:
        return True
    return env.layout.has_forms(root, env.layout.shown)


def play(env: Environment, request: Request, root: TensorDictBase | None = None) -> TensorDictBase:
    """Play steps in place, and finish the batch."""
    checks.check_open(env)
    plan = None if request.policy is None else policy_plan(request.policy)
    leftover = env.leftover if request.continues else None
    stepping, deferred = env.split([] if plan is None else plan.in_keys)
    if leftover is not None:
        whole = leftover.is_whole
    else:
        whole = root is not None and not can_continue(deferred)
    if whole:
        stepping, deferred = env.split(None)
    rollout = InPlaceRollout(stepping, request, plan)
    batch = rollout.play(root, leftover)
    env.is_started = True
    if env.check_values:
        check_rows(stepping, batch)
    if request.set_truncated:
        truncate_last(batch, len(env.batch_size))
    before = None if leftover is None else leftover.last
    batch = apply_deferred([one for one in deferred if not one.rows_only], batch, root, before)
    waiting = [one for one in deferred if one.rows_only]
    env.reached = batch[..., -1] if waiting else None
    if rollout.leftover is not None:
        last = batch[..., -1].clone()
        env.leftover = replace(rollout.leftover, last=last, is_whole=stepping is env)
    return apply_deferred(waiting, batch)


class InPlaceRollout:
    """The state of a rollout: columns, goal, and the lengths of its rows."""

    # an environment that resets rows while others step gives ragged rows: its columns have a mask
    # that is False where a row was only reset, and rows reach T real steps at different columns

    def __init__(self, env: Environment, request: Request, plan: PolicyPlan | None = None) -> None:
        self.env, self.request, self.plan = env, request, plan
        self.leftover: SurplusSteps | None = None
        self._is_ragged = env.resets_by_stepping
        self._breaks = request.break_when_any_done or request.break_when_all_done
        self._acting: Callable[[int], None] | None = None  # from the second step on
        self._goal = request.max_steps  # T, as far as it is known
        self._drawn: int | None = None  # where actions that were drawn ahead end
        self._counted = 0  # columns
        self._lengths = np.zeros(env.batch_size, np.int64)  # real steps of each row in them
        self._first_ends = np.zeros(env.batch_size, np.int64)  # 0 until it has ended
        self.columns = Columns(env.batch_size, self._room(), time_first=self._is_ragged)
        root = (*env.layout.shown, *env.layout.action)
        self.columns.add_leaves(list(root))
        self.columns.add_leaves([((keys.NEXT, *key), leaf) for key, leaf in env.layout.after])
        self._written = {key for key, _ in env.layout.action}
        if self._is_ragged:
            self.columns.add(keys.MASK, torch.Size(), torch.bool)
        shown = env.layout.shown
        self._read = [key for key, _ in shown]  # what a policy of unknown keys is given
        if plan is not None and plan.in_keys is not None:
            plan.check_reads(self._read)
            self._read = plan.in_keys

    def play(
        self, root: TensorDictBase | None = None, leftover: SurplusSteps | None = None
    ) -> TensorDictBase:
        """Play until every row has its steps; returns the batch `[*B, T]`."""
        first = t = 0 if leftover is None else self._resume(leftover)
        is_over = t >= self._goal and self._is_over(t)
        binding = self._bound()
        if leftover is None:
            self._start(binding, root)
        self._draw(t)
        while not is_over:
            if t + 1 == self.columns.num_steps and self._needs_room(t):
                binding = self._grown()
            if self._acting is not None:
                self._acting(t)
            elif self.plan is not None or self._is_ragged:
                self._act(t, is_first=t == first)
                if t == first:
                    binding.set_policy_next_keys(self._given)
            over = binding.step(t)
            t += 1
            if self._breaks and (over or self._is_ragged):
                self._note(t)
            is_over = t >= self._goal and self._is_over(t)
            if self._is_ragged or not is_over:  # the root after the batch is kept, or played from
                binding.advance(t - 1)
            if self.request.callback is not None:
                self.request.callback(self.env, self.columns.step(t - 1))
        return self._batch(t)

    def _start(self, binding: Binding, root: TensorDictBase | None) -> None:
        if root is None:
            binding.start()
            return
        for key, value in keys.leaves(root):
            if key in self.columns.tensors:  # what can wait has no column
                self.columns.write(0, key, value)

    def _resume(self, leftover: SurplusSteps) -> int:
        """Copy surplus steps into the first columns; returns how many there are."""
        if leftover.num_steps + 1 > self.columns.num_steps:
            self.columns.grow(leftover.num_steps + 1)
        leftover.load_into(self.columns)
        if leftover.num_steps:
            self._written = set(leftover.written)
        for t in range(leftover.num_steps if self._breaks else 0):
            self._note(t + 1)
        return leftover.num_steps

    def _room(self) -> int:
        most = min(self._goal, FIRST_STEPS) if self._breaks else self._goal
        # rows that were only reset are few; and the root after the last step has a column
        return most + most // 16 + 9 if self._is_ragged else most

    def _needs_room(self, t: int) -> bool:
        """Whether there is a root after column t to be written."""
        return self._is_ragged or t + 1 < self._goal

    def _grown(self) -> Binding:
        old = self.columns.num_steps
        more = old + old // 4 + 8 if self._is_ragged else min(2 * old, self._goal)
        self.columns.grow(more)
        self._acting = None  # it acts on the columns as they were
        self._draw(old)
        binding = self._bound()
        binding.set_policy_next_keys(self._given)
        return binding

    def _note(self, num_played: int) -> None:
        """Record the rows that the last column has ended, and lower the goal T accordingly."""
        self._count(num_played)
        done = np.moveaxis(self.columns.arrays[keys.NEXT, keys.DONE], self._lengths.ndim, 0)
        ended = done[num_played - 1].reshape(self._lengths.shape) & (self._first_ends == 0)
        if self._is_ragged:
            ended &= self.columns.arrays[keys.MASK][:, num_played - 1]
        self._first_ends[ended] = self._lengths[ended]
        ends = self._first_ends[self._first_ends > 0]
        if self.request.break_when_any_done and ends.size:
            self._goal = min(self._goal, int(ends.min()))
        elif ends.size == self._first_ends.size:
            self._goal = min(self._goal, int(ends.max()))

    def _count(self, num_played: int) -> None:
        """Count the real steps of each row."""
        if self._is_ragged:
            self._lengths += self.columns.arrays[keys.MASK][:, self._counted : num_played].sum(1)
        else:
            self._lengths[...] = num_played
        self._counted = num_played

    def _is_over(self, num_played: int) -> bool:
        """Whether every row has T real steps after that many columns."""
        if not self._is_ragged:
            return True
        self._count(num_played)
        return bool((self._lengths >= self._goal).all())

    def _batch(self, num_played: int) -> TensorDictBase:
        if not self._is_ragged:
            return self.columns.batch(num_played)
        self.leftover = SurplusSteps.of(self.columns, self._written, num_played, self._goal)
        return real_steps(self.columns.batch(num_played, copy=False), self._goal)

    def _bound(self) -> Binding:
        arrays = self.columns.arrays
        root = {key: array for key, array in arrays.items() if key[0] != keys.NEXT}
        after = {key[1:]: array for key, array in arrays.items() if key[0] == keys.NEXT}
        return self.env.bind(root, after)

    @property
    def _given(self) -> set[Key]:
        """Entries that the policy writes under `"next"`."""
        return {key[1:] for key in self._written if key[0] == keys.NEXT}

    def _draw(self, start: int) -> None:
        """Draw random actions for the steps that are certain to come, all at once."""
        if self.plan is not None:
            return
        # ragged rows need some columns more than T, how many is not known in advance
        self._drawn = min(self.columns.num_steps, self._goal) if self._is_ragged else None
        stop = self.columns.num_steps if self._drawn is None else self._drawn
        if stop <= start:
            return
        time = len(self.env.batch_size)
        for key, spec in self.env.layout.action:
            drawn = spec.rand((stop - start,)).movedim(0, time)
            self.columns.tensors[key].narrow(time, start, stop - start).copy_(drawn)

    def _act(self, t: int, *, is_first: bool) -> None:
        if self.plan is None:
            if self._drawn is not None and t >= self._drawn:
                for key, spec in self.env.layout.action:
                    self.columns.write(t, key, spec.rand())
            return
        if is_first:
            made = self.plan(self.columns.at(t, self._read), self.env.batch_size)
            self._receive(made, resumes=t > 0)
            for key, value in made.items():
                self.columns.write(t, key, value)
        else:
            self._acting = bind_plan(self.plan, self.columns, self._read, sorted(self._written))
            self._acting(t)

    def _receive(self, made: dict[Key, Tensor], *, resumes: bool) -> None:
        """Check what the policy writes, once, and make columns for it."""
        given = build(nest(made), self.env.batch_size)
        fitted = self.env.layout.fit_actions(given, checks_values=self.env.check_values)
        if fitted is not given:
            made.update((key, fitted.get(key)) for key, _ in self.env.layout.action)
            self.columns.casts = {
                key: partial(cast_action, key, spec) for key, spec in self.env.layout.action
            }
        rows = len(self.env.batch_size)
        if resumes and made.keys() != self._written:
            differing = sorted(str(keys.as_key(key)) for key in made.keys() ^ self._written)
            msg = (
                f"the policy of the rollout before and this one differ in {differing}, and steps "
                f"of that one are left: continue with it, or reset first."
            )
            raise ValueError(msg)
        self._written = set(made)
        for key, value in made.items():
            if value.shape[:rows] != self.env.batch_size:
                msg = (
                    f"the policy's {keys.as_key(key)!r} must begin with the batch size "
                    f"{tuple(self.env.batch_size)}: got {tuple(value.shape)}."
                )
                raise ValueError(msg)
            if key not in self.columns.tensors:
                self.columns.add(key, value.shape[rows:], value.dtype)
            elif not self.columns.fits(key, value):
                msg = (
                    f"the policy's {keys.as_key(key)!r} overwrites an entry of the environment "
                    f"with another shape or dtype: got {tuple(value.shape)}, {value.dtype}."
                )
                raise ValueError(msg)


def real_steps(batch: TensorDictBase, num_steps: int) -> TensorDictBase:
    """Return the first T real steps of each row, `[B, T]`, without the mask."""
    # T shrinks to what the shortest row has
    mask = batch.get(keys.MASK).numpy()
    num_rows, num_played = mask.shape
    so_far = np.cumsum(mask, 1, dtype=np.int32)  # [B, S], real steps up to each column
    num_steps = min(num_steps, int(so_far[:, -1].min()))
    row, column = np.divmod(np.flatnonzero(mask & (so_far <= num_steps)), num_played)
    places = column * num_rows + row  # flat positions [B * T] in leaves that are time first
    sizes = torch.Size((num_rows, num_steps))
    kept = {}
    for key, leaf in keys.leaves(batch):
        if key != keys.MASK:
            by_time = leaf.movedim(1, 0)
            rows = by_time.numpy().reshape(-1, *by_time.shape[2:])
            kept[key] = torch.from_numpy(rows.take(places, 0)).view(*sizes, *rows.shape[1:])
    return build(nest(kept), sizes, [None, keys.TIME])


def check_rows(env: Environment, batch: TensorDictBase) -> None:
    """Raise for values outside their specs, all steps of a leaf at once."""
    rows = len(env.batch_size)
    for key, spec in env.layout.after:
        value: Tensor = batch.get((keys.NEXT, *key))
        check_value(key, spec, value.movedim(rows, 0), "step")
    for key, spec in env.layout.observation:
        check_value(key, spec, batch.get(key).movedim(rows, 0), "reset")
    for key, spec in env.layout.action:
        check_choice(key, spec, batch.get(key).movedim(rows, 0))


def truncate_last(batch: TensorDictBase, time: int) -> None:
    """Mark the last step as truncated, in place: the batch is not returned yet."""
    flags = {name: batch.get((keys.NEXT, name)).select(time, -1) for name in keys.DONE_KEYS}
    flags[keys.TRUNCATED] |= ~flags[keys.TERMINATED]
    flags[keys.DONE].fill_(True)
