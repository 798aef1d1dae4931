"""Rollouts on a device: no value is read on the host, and each step makes few calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env import checks
from rl_envs.env.done import RESET, derive_flags
from rl_envs.env.interface import Environment
from rl_envs.env.leaf_checks import cast_action
from rl_envs.env.partial_reset import fit_mask
from rl_envs.rollouts.column_steps import holds_only_shown, truncate_last
from rl_envs.rollouts.columns import Key
from rl_envs.rollouts.policy_plan import PolicyPlan, policy_plan
from rl_envs.rollouts.tensordict_steps import Request
from rl_layout import keys
from rl_tensordict import build, nest

Leaves = dict[Key, Tensor]


def can_play(env: Environment, request: Request, root: TensorDictBase | None = None) -> bool:
    """Whether a rollout can keep tensors by key, and make its batch at the end."""
    # False if the host reads values (flags, checks, callbacks); for groups, states and varying
    # shapes; and for a policy that is no flat plan or writes under "next"
    breaks = request.break_when_any_done or request.break_when_all_done
    looks = env.waits_for_device or env.check_values or breaks or request.callback is not None
    plain = env.done_groups == [()] and not env.layout.state and env.layout.has_fixed_forms
    if looks or not plain or not env.batch_locked:
        return False
    if request.policy is not None:
        written = policy_plan(request.policy).out_keys
        if written is None or any(key[0] == keys.NEXT for key in written):
            return False
    return holds_only_shown(env, root)


def play(env: Environment, request: Request, root: TensorDictBase | None = None) -> TensorDictBase:
    """Play steps, and stack them once."""
    act = _acting(env, request)
    start = env.reset() if root is None else root
    values: Leaves = {key: start.get(key) for key in _shown(env)}
    steps: list[Leaves] = []
    for t in range(request.max_steps):
        given = values | act(values)
        after = _step(env, given, is_first=t == 0)
        steps.append(given | {(keys.NEXT, *key): leaf for key, leaf in after.items()})
        if t + 1 < request.max_steps:
            values = _next_root(env, after, is_first=t == 0)
    time = len(env.batch_size)
    columns = {key: torch.stack([step[key] for step in steps], time) for key in steps[0]}
    sizes = torch.Size((*env.batch_size, len(steps)))
    batch = build(nest(columns), sizes, [*[None] * time, keys.TIME])
    if request.set_truncated:
        truncate_last(batch, time)
    return batch


def _shown(env: Environment) -> list[Key]:
    return [key for key, _ in env.layout.shown]


def _acting(env: Environment, request: Request) -> Callable[[Leaves], Leaves]:
    """Return the function that acts on the leaves of a root."""
    if request.policy is None:
        return lambda _: dict(keys.leaves(env.full_action_spec.rand()))
    plan = policy_plan(request.policy)
    plan.check_reads(_shown(env))
    return partial(_planned, env, plan, [])


def _planned(env: Environment, plan: PolicyPlan, checked: list[bool], values: Leaves) -> Leaves:
    made = plan(values, env.batch_size)
    if not checked:
        env.layout.fit_actions(build(nest(made), env.batch_size), checks_values=env.check_values)
        checked.append(True)
    for key, spec in env.layout.action:
        if made[key].dtype != spec.dtype:
            made = {**made, key: cast_action(key, spec, made[key])}
    return made


def _step(env: Environment, given: Leaves, *, is_first: bool) -> Leaves:
    raw = checks.check_returned(env, env._step(build(nest(given), env.batch_size)), "step")
    if is_first:  # where all forms are checked
        return {
            key: leaf for key, leaf in keys.leaves(env.complete_step(raw)) if _is_known(env, key)
        }
    found = {key: raw.get(key, None) for key, _ in env.layout.after}
    flags = {name: _column(env, found[(name,)]) for name in keys.DONE_KEYS}
    names = zip(keys.DONE_KEYS, derive_flags(flags, (), "step", waits=False), strict=True)
    rewards = {key: _column(env, found[key]) for key, _ in env.layout.reward}
    return found | rewards | {(name,): flag for name, flag in names}


def _is_known(env: Environment, key: Key) -> bool:
    return any(key == known for known, _ in env.layout.after)


def _column(env: Environment, leaf: Tensor) -> Tensor:
    """A reward or a flag with its last dimension of size 1."""
    return leaf.unsqueeze(-1) if leaf is not None and leaf.shape == env.batch_size else leaf


def _next_root(env: Environment, after: Leaves, *, is_first: bool) -> Leaves:
    """Reset the rows that are done; always, since asking whether there are any would wait."""
    mask = after[keys.DONE,]
    root = {key: after[key] for key in _shown(env)}
    fresh = env._reset(build(nest({**root, (RESET,): mask}), env.batch_size))
    checks.check_returned(env, fresh, "reset")
    if is_first:
        fresh = env.layout.complete_reset(fresh.copy(), {(): mask}, waits=False)
    values: Leaves = {}
    for key, _ in env.layout.observation:
        leaf = fresh.get(key)
        values[key] = torch.where(fit_mask(mask, leaf), leaf, root[key])
    for key, _ in env.layout.done:
        values[key] = torch.zeros_like(mask)
    return values
