"""Steps of a rollout written in place, into the columns of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.interface import Binding, Environment
from rl_envs.env.leaf_checks import ArrayTest, always, cast_action
from rl_envs.rollouts.columns import Columns
from rl_envs.rollouts.policy_plan import PolicyPlan, refuse_other_keys
from rl_envs.rollouts.request import Goal, RolloutRequest
from rl_envs.rollouts.surplus import SurplusSteps, real_steps
from rl_layout import keys
from rl_tensordict import build, nest
from rl_tensordict.types import Array, KeyPath

FIRST_STEPS = 256  # room for steps where a rollout may end at any of them
KEPT_BYTES = 2**24  # columns that are larger are made anew for each batch, and not copied


def why_not_columns(env: Environment, request: RolloutRequest, root: TensorDictBase | None) -> str:
    """Why a rollout cannot be written in place; nothing where it can."""
    if env.resets_by_stepping:
        return "" if root is None else "it begins at a root, which this environment cannot"
    if not env.native_rows:
        return f"{type(env).__name__} writes no rows itself"
    if not env.layout.fits_arrays:
        return "its specs have bfloat16, which numpy lacks"
    if request.callback is not None:
        return "a callback sees each step"
    return why_not_shown(env, root)


def why_not_shown(env: Environment, root: TensorDictBase | None) -> str:
    """Why a root holds other entries than a reset writes; nothing where it does not."""
    if root is None or env.layout.holds_shown(root):
        return ""
    return "the root holds other entries than a reset writes"


def _require_arrays(env: Environment) -> None:
    if not env.layout.fits_arrays:
        msg = (
            "this vector writes rows of numpy, which lacks bfloat16, the dtype of one of its "
            "specs: cast what a rollout returns, or let the policy cast what it reads."
        )
        raise TypeError(msg)


Test: TypeAlias = tuple[Array, ArrayTest]


class ColumnSteps:
    """The columns of a batch, and an environment that is bound to them."""

    # an environment that resets rows while others step gives ragged rows: its columns have a mask
    # that is False where a row was only reset, and rows reach T real steps at different columns

    def __init__(
        self,
        env: Environment,
        plan: PolicyPlan | None,
        request: RolloutRequest,
        *,
        is_kept: bool = False,
        has_root: bool = True,  # whether the root is only what the environment shows
    ) -> None:
        self.env, self.plan, self._layout = env, plan, env.layout
        _require_arrays(env)
        self.leftover: SurplusSteps | None = None
        self._is_ragged = env.resets_by_stepping
        self._breaks, self._max_steps = request.breaks, request.max_steps
        self._acting: Callable[[int], None] | None = None  # from the second step on
        self._run: Any = None  # the policy's calls that it is bound to
        self._shown_by_time: list[Array] = []  # columns [T, *B, ...] of a root, if they are kept
        self._drawn: int | None = None  # where actions that were drawn ahead end
        # transforms, which read more than actions, are bound to what they hold now
        self._settings = None if env.reads_actions_only else env.binding_settings()
        is_known = env.reads_actions_only or self._settings is not None
        is_plain = is_known and not (self._is_ragged or self._breaks)
        self.is_kept = (
            is_kept and is_plain and self._max_steps * env.layout.bytes_of_step <= KEPT_BYTES
        )
        # columns that are kept have room for the root that the next batch begins with
        self._has_root = self.is_kept and has_root
        self.keeps_root = self._is_ragged or self._has_root
        self.has_next_root = False
        self.columns = Columns(env.batch_size, self._room(), time_first=self._is_ragged)
        self.columns.add_leaves([*env.layout.shown, *env.layout.action])
        self.columns.add_leaves([((keys.NEXT, *key), leaf) for key, leaf in env.layout.after])
        if self._has_root:
            self._shown_by_time = [self.columns.by_time[key] for key, _ in env.layout.shown]
        self._written = {key for key, _ in env.layout.action}
        if self._is_ragged:
            self.columns.add(keys.MASK, torch.Size(), torch.bool)
        if env.marks_missing:
            self.columns.add(keys.NEXT_MISSING, torch.Size(), torch.bool)
        self._read = [key for key, _ in env.layout.shown]  # given to a policy of unknown keys
        if plan is not None and plan.in_keys is not None:
            plan.check_reads(self._read)
            self._read = plan.in_keys
        self._binding: Binding | None = None
        # of what steps return and the policy writes, and of roots
        self._tests: tuple[list[Test], list[Test]] | None = None
        # where the last reset was in the steps that are not checked yet; -1 in the first root
        self._reset_at: int | None = -1
        self._writers: dict[KeyPath, Callable[[int, Tensor], None]] = {}
        self._has_received = False

    def fits(self, env: Environment, request: RolloutRequest) -> bool:
        """Whether another batch can be written into these columns."""
        is_same = env is self.env and env.layout is self._layout and self.is_bound
        return is_same and not request.breaks and request.max_steps == self._max_steps

    @property
    def is_bound(self) -> bool:
        """Whether what the binding depends on is as it was."""
        settings = self._settings
        return settings is None or settings.agree(self.env.binding_settings())

    def suits(self, plan: PolicyPlan | None) -> bool:
        """Whether the columns hold what a policy writes: a flat one writes the same each time."""
        return plan is None or (plan.is_flat and plan.is_verified is self._has_received)

    def start(self, root: TensorDictBase | SurplusSteps | None, goal: Goal) -> int:
        """Begin at a root, with surplus steps or a reset; returns how many steps there are."""
        self._goal = goal
        if self._breaks or self._is_ragged:
            self._lengths = np.zeros(self.env.batch_size, np.int64)  # real steps of each row
            self._counted = 0  # in so many columns
        self._first = self._resume(root) if isinstance(root, SurplusSteps) else 0
        was_played = self._binding is not None
        binding = self._bound()
        continues, self.has_next_root = goal.request.continues and self.has_next_root, False
        if root is None and continues:
            for column in self._shown_by_time:
                column[0] = column[self._max_steps]
        else:
            self._reset_at = -1
            self._write_root(root, binding, was_played=was_played)
        if self.plan is None:
            self._draw(self._first)
        else:
            self._acting = self._bound_plan() if was_played and self._is_known else None
        return self._first

    def _write_root(self, root: Any, binding: Binding, *, was_played: bool) -> None:
        """Write the root that a batch begins with: a given one, or that of a reset."""
        if root is None:
            for key, _ in self.env.layout.done if was_played else ():
                # a reset need not write flags that are False
                self.columns.tensors[key].select(len(self.env.batch_size), 0).zero_()
            binding.start()
        elif isinstance(root, TensorDictBase):
            for key, value in keys.leaves(root):
                if key in self.columns.tensors:  # what can wait has no column
                    self._writer(key)(0, value)

    def act(self, t: int) -> None:
        """Let the policy act on the root of step t."""
        if t + 1 == self.columns.num_steps and (self._is_ragged or t + 1 < self._goal.num_steps):
            self._grow()
        if self._acting is not None:
            self._acting(t)
        elif self.plan is None:
            if self._drawn is not None and t >= self._drawn:
                for key, spec in self.env.layout.action:
                    self.columns.write(t, key, spec.rand())
        elif t == self._first:
            read: Iterable[KeyPath] = self._read
            if not self.plan.is_verified:  # modules look at all entries once
                shown = (key for key, _ in self.env.layout.shown)
                read = (key for key in shown if key in self.columns.tensors)
            made = self.plan(self.columns.at(t, read), self.env.batch_size)
            self._receive(made, resumes=t > 0)
            for key, value in made.items():
                self.columns.write(t, key, value)
            self._bound().set_policy_next_keys(self._given)
        else:
            self._acting = self._bound_plan()
            self._acting(t)

    def step(self, t: int) -> bool:
        """Take step t; returns whether a row may be done."""
        assert self._binding is not None
        if self._binding.step(t):
            self._reset_at = t
            return True
        return self._is_ragged

    def advance(self, t: int) -> None:
        """Make the root after step t; rows that are done are reset."""
        assert self._binding is not None
        self._binding.advance(t)
        self.has_next_root = self._has_root and t + 1 == self._max_steps

    def next_root(self) -> TensorDictBase:
        """The root `[*B]` after the last step, as a copy."""
        shown = [key for key, _ in self._layout.shown]
        leaves = {key: leaf.clone() for key, leaf in self.columns.at(-1, shown).items()}
        return build(nest(leaves), self.env.batch_size)

    def done(self, t: int) -> tuple[Array, Array]:
        """The rows that step t has ended, bool `[rows]`, and the length of each row by then."""
        self._count(t + 1)
        done = np.moveaxis(self.columns.arrays[keys.NEXT, keys.DONE], self._lengths.ndim, 0)
        ended = done[t].reshape(-1)
        if self._is_ragged:
            ended = ended & self.columns.arrays[keys.MASK][:, t]
        return ended, self._lengths.reshape(-1)

    def is_over(self, t: int) -> bool:
        """Whether every row has its real steps after t columns."""
        if t < self._goal.num_steps or not self._is_ragged:
            return t >= self._goal.num_steps
        self._count(t)
        return bool((self._lengths >= self._goal.num_steps).all())

    def at(self, t: int) -> TensorDictBase:
        """A copy of step t, for a callback."""
        return self.columns.step(t)

    def batch(self, num_played: int, *, set_truncated: bool = False) -> TensorDictBase:
        """The batch `[*B, T]`; on request its last step is marked as truncated."""
        if self._is_ragged:
            num_steps = self._goal.num_steps
            self.leftover = SurplusSteps.of(self.columns, self._written, num_played, num_steps)
            batch = real_steps(self.columns.batch(num_played, copy=False), num_steps)
        else:
            # a copy releases the memory of columns that were not used
            is_copied = self.is_kept or num_played < self.columns.num_steps
            batch = self.columns.batch(num_played, copy=is_copied)
        if set_truncated:
            truncate_last(batch, len(self.env.batch_size))
        return batch

    def check(self, num_played: int, batch: TensorDictBase | None = None) -> None:
        """Raise for values of the batch outside their specs; it is made if need be."""
        # quick tests of the columns first: the batch is looked at where one fails
        if self._is_ragged:
            self._layout.check_rows(self.batch(num_played) if batch is None else batch)
            return
        tests, root_tests = self._tests = self._tests or self._made_tests()
        # other roots are what the steps before have returned
        if self._reset_at is not None:
            tests = [*tests, *root_tests]
            # the root after the last step is one of the next batch
            self._reset_at = -1 if self._reset_at == num_played - 1 else None
        for column, test in tests:
            if not test(column[:num_played]):
                self._layout.check_rows(self.batch(num_played) if batch is None else batch)

    def _made_tests(self) -> tuple[list[Test], list[Test]]:
        layout, rows = self.env.layout, self.columns.by_time
        named = [((keys.NEXT, *key), layout.tests[key]) for key, _ in layout.after]
        named += [(key, layout.choice_tests[key]) for key, _ in layout.action]
        shown = [(key, layout.tests[key]) for key, _ in layout.observation]
        if self._settings is not None or not self._written.isdisjoint(key for key, _ in shown):
            named, shown = [*named, *shown], []  # transforms, or the policy, may write roots
        found = (
            [(rows[k], test) for k, test in few if test is not always] for few in (named, shown)
        )
        return next(found), next(found)

    def _writer(self, key: KeyPath) -> Callable[[int, Tensor], None]:
        if key not in self._writers:
            self._writers[key] = self.columns.writer(key)
        return self._writers[key]

    def _resume(self, leftover: SurplusSteps) -> int:
        """Copy surplus steps into the first columns; returns how many there are."""
        if leftover.num_steps + 1 > self.columns.num_steps:
            self.columns.grow(leftover.num_steps + 1)
        leftover.load_into(self.columns)
        if leftover.num_steps:
            self._written = set(leftover.written)
        for t in range(leftover.num_steps if self._breaks else 0):
            self._goal.note(*self.done(t))
        return leftover.num_steps

    def _room(self) -> int:
        most = min(self._max_steps, FIRST_STEPS) if self._breaks else self._max_steps
        # rows that were only reset are few; and the root after the last step has a column
        return most + most // 16 + 9 if self._is_ragged else most + self._has_root

    def _grow(self) -> None:
        old = self.columns.num_steps
        more = old + old // 4 + 8 if self._is_ragged else min(2 * old, self._goal.num_steps)
        self.columns.grow(more)
        # they use the columns as they were
        self._acting = self._binding = self._tests = None
        self._writers.clear()
        if self.plan is None:
            self._draw(old)
        self._bound().set_policy_next_keys(self._given)

    def _count(self, num_played: int) -> None:
        """Count the real steps of each row."""
        if self._is_ragged:
            self._lengths += self.columns.arrays[keys.MASK][:, self._counted : num_played].sum(1)
        else:
            self._lengths[...] = num_played
        self._counted = num_played

    def _bound(self) -> Binding:
        """The environment's binding to the columns of now."""
        if self._binding is None:
            arrays = self.columns.arrays
            root = {key: array for key, array in arrays.items() if key[0] != keys.NEXT}
            after = {key[1:]: array for key, array in arrays.items() if key[0] == keys.NEXT}
            self._binding = self.env.bind(root, after)
        return self._binding

    def _bound_plan(self) -> Callable[[int], None]:
        assert self.plan is not None
        run = self.plan.bound()
        if self._acting is None or run is None or run is not self._run:
            self._run, written = run, sorted(self._written)
            call = run or refuse_other_keys(self.plan, self._written, self.env.batch_size)
            return self.columns.bind(call, self._read, written)
        return self._acting

    @property
    def _is_known(self) -> bool:
        """Whether the entries that the policy writes are those of the last batch."""
        return self.plan is not None and self.plan.is_verified and self._has_received

    @property
    def _given(self) -> set[KeyPath]:
        """Entries that the policy writes under `"next"`."""
        return {key[1:] for key in self._written if key[0] == keys.NEXT}

    def _draw(self, start: int) -> None:
        """Draw random actions for the steps that are certain to come, all at once."""
        # ragged rows need some columns more than T, how many is not known in advance
        num_steps, goal = self.columns.num_steps, self._goal.num_steps
        stop = min(num_steps, goal)
        self._drawn = stop if self._is_ragged else None
        if stop <= start:
            return
        time = len(self.env.batch_size)
        for key, spec in self.env.layout.action:
            drawn = spec.rand((stop - start,)).movedim(0, time)
            self.columns.tensors[key].narrow(time, start, stop - start).copy_(drawn)

    def _receive(self, made: dict[KeyPath, Tensor], *, resumes: bool) -> None:
        """Check what the policy writes, once, and make columns for it."""
        given = build(nest(made), self.env.batch_size)
        fitted = self.env.layout.fit_actions(given, checks_values=self.env.check_values)
        casts = {key: partial(cast_action, key, spec) for key, spec in self.env.layout.action}
        if fitted is not given:
            made.update((key, fitted.get(key)) for key, _ in self.env.layout.action)
            self.columns.casts = dict(casts)
        if self.is_kept:
            self.columns.changes = dict(casts)
        if resumes and made.keys() != self._written:
            differing = sorted(str(keys.as_key(key)) for key in made.keys() ^ self._written)
            msg = (
                f"the policy of the rollout before and this one differ in {differing}, and steps "
                f"of that one are left: continue with it, or reset first."
            )
            raise ValueError(msg)
        self._written, self._has_received = set(made), True
        self.columns.add_outputs(made, may_change=self.is_kept)


def truncate_last(batch: TensorDictBase, time: int) -> None:
    """Mark the last step as truncated, in place: the batch is not returned yet."""
    flags = {name: batch.get((keys.NEXT, name)).select(time, -1) for name in keys.DONE_KEYS}
    flags[keys.TRUNCATED] |= ~flags[keys.TERMINATED]
    flags[keys.DONE].fill_(True)
