"""Steps of a rollout as tensors by key: no value is read on the host, and each makes few calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.done import RESET, derive_flags
from rl_envs.env.interface import Environment
from rl_envs.env.leaf_checks import cast_action
from rl_envs.env.partial_reset import fit_mask
from rl_envs.rollouts.column_steps import truncate_last, why_not_shown
from rl_envs.rollouts.policy_plan import PolicyPlan
from rl_envs.rollouts.request import Goal, RolloutRequest
from rl_envs.rollouts.returned_memory import ReturnedMemory
from rl_layout import keys
from rl_tensordict import build, nest
from rl_tensordict.types import Array, LeafTensors


def why_not_tensors(
    env: Environment,
    request: RolloutRequest,
    plan_of: Callable[[], PolicyPlan | None],
    root: TensorDictBase | None,
) -> str:
    """Why a rollout cannot keep tensors by key, and make its batch at the end."""
    looks = env.waits_for_device or env.check_values or request.breaks
    if looks or request.callback is not None:
        return "the host reads its values"
    is_plain = env.done_groups == [()] and not env.layout.state and env.layout.has_fixed_forms
    if not is_plain or not env.batch_locked:
        return "its entries have groups, states, varying shapes or batch sizes"
    plan = plan_of()
    if plan is not None:
        written = plan.out_keys
        if written is None or any(key[0] == keys.NEXT for key in written):
            return "what the policy writes is not known, or states of the next step"
    return why_not_shown(env, root)


class DeviceSteps:
    """The leaves of each step, stacked once at the end."""

    keeps_root = False

    def __init__(self, env: Environment, plan: PolicyPlan | None) -> None:
        self.env, self._plan = env, plan
        self._shown = [key for key, _ in env.layout.shown]
        if plan is not None:
            plan.check_reads(self._shown)
        self._steps: list[LeafTensors] = []
        self._memory = ReturnedMemory(env)

    def start(self, root: TensorDictBase | None, goal: Goal) -> int:
        """Begin at a root `[*B]`, or with a reset; returns how many steps there are."""
        self._goal = goal
        begun = self.env.reset() if root is None else root
        if root is None:
            self._memory.add_reset(begun)
        self._root: LeafTensors = {key: begun.get(key) for key in self._shown}
        return 0

    def act(self, t: int) -> None:
        """Let the policy act on the root of step t."""
        made: LeafTensors
        if self._plan is None:
            made = dict(keys.leaves(self.env.full_action_spec.rand()))
        else:
            made = self._plan(self._root, self.env.batch_size)
            if not t:
                given = build(nest(made), self.env.batch_size)
                self.env.layout.fit_actions(given, checks_values=self.env.check_values)
            for key, spec in self.env.layout.action:
                if made[key].dtype != spec.dtype:
                    made = {**made, key: cast_action(key, spec, made[key])}
        self._root = self._root | made

    def step(self, t: int) -> bool:
        """Take step t; whether a row is done is not looked at."""
        env, layout = self.env, self.env.layout
        raw = env.raw_step(build(nest(self._root), env.batch_size))
        known = [key for key, _ in layout.after]
        if not t:  # where all forms are checked
            complete = env.complete_step(raw)
            after = {key: leaf for key, leaf in keys.leaves(complete) if key in known}
        else:
            after = {key: raw.get(key, None) for key in known}
            flags = {name: self._column(after[(name,)]) for name in keys.DONE_KEYS}
            derived = derive_flags(flags, (), "step", waits=False)
            after |= {(name,): flag for name, flag in zip(keys.DONE_KEYS, derived, strict=True)}
            after |= {key: self._column(after[key]) for key, _ in layout.reward}
        self._memory.add_step(after, t)
        self._steps.append(self._root | {(keys.NEXT, *key): leaf for key, leaf in after.items()})
        return False

    def _column(self, leaf: Tensor) -> Tensor:
        """A reward or a flag with its last dimension of size 1."""
        is_flat = leaf is not None and leaf.shape == self.env.batch_size
        return leaf.unsqueeze(-1) if is_flat else leaf

    def advance(self, t: int) -> None:
        """Make the root after step t; rows that are done are reset."""
        # always, since asking whether there are any would wait
        env, last = self.env, self._steps[t]
        mask = last[keys.NEXT, keys.DONE]
        root = {key: last[(keys.NEXT, *key)] for key in self._shown}
        fresh = env.raw_reset(build(nest({**root, (RESET,): mask}), env.batch_size))
        if not t:
            fresh = env.layout.complete_reset(fresh.copy(), {(): mask}, waits=False)
        self._root = {}
        for key, _ in env.layout.observation:
            leaf = fresh.get(key)
            self._root[key] = torch.where(fit_mask(mask, leaf), leaf, root[key])
        for key, _ in env.layout.done:
            self._root[key] = torch.zeros_like(mask)

    def done(self, t: int) -> tuple[Array, int]:
        """Not known: no value is read on the host."""
        raise NotImplementedError

    def is_over(self, t: int) -> bool:
        """Whether t steps are enough for T of each row."""
        return t >= self._goal.num_steps

    def at(self, t: int) -> TensorDictBase:
        """Step t."""
        return build(nest(self._steps[t]), self.env.batch_size)

    def batch(self, num_steps: int, *, set_truncated: bool = False) -> TensorDictBase:
        """Stack the steps to a batch `[*B, T]`."""
        self._memory.check()
        time = len(self.env.batch_size)
        columns = {key: torch.stack([s[key] for s in self._steps], time) for key in self._steps[0]}
        sizes = torch.Size((*self.env.batch_size, num_steps))
        batch = build(nest(columns), sizes, [*[None] * time, keys.TIME])
        if set_truncated:
            truncate_last(batch, time)
        return batch
