"""Steps of a rollout as tensordicts: any environment and any policy can play them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rl_envs.env.done import ends
from rl_envs.env.interface import Environment
from rl_envs.env.spec_leaves import has_fixed_form
from rl_envs.rollouts.policy_plan import PolicyPlan, failure_note
from rl_envs.rollouts.request import Goal
from rl_envs.rollouts.returned_memory import ReturnedMemory
from rl_layout import keys, refuse_shared_states
from rl_tensordict import NestedKey, find
from rl_tensordict.types import Array, KeyPath


class TensorDictSteps:
    """The steps `[*B]` of a rollout, stacked at its end."""

    keeps_root = False

    def __init__(self, env: Environment, policy: Any) -> None:
        self.env = env
        self._policy = policy.on_tensordict() if isinstance(policy, PolicyPlan) else policy
        if policy is None:
            self._policy = env.rand_action
        refuse_shared_states({"policy": self._policy})
        self._steps: list[TensorDictBase] = []
        # leaves of varying shapes are in lazy stacks, which are made anew when they are read
        self._remembered = [key for key, spec in env.layout.after if has_fixed_form(spec)]
        self._memory = ReturnedMemory(env)

    def start(self, root: TensorDictBase | None, goal: Goal) -> int:
        """Begin at a root `[*B]`, or with a reset; returns how many steps there are."""
        self._goal = goal
        begun = self.env.reset() if root is None else root
        if root is None:
            self._memory.add_reset(begun)
        # a policy writes to it, and it may be the caller's; roots that follow name no device
        self._root = begun.copy().clear_device_()
        return 0

    def act(self, t: int) -> None:
        """Let the policy act on the root of step t."""
        acted = self._policy(self._root) if t else _first_action(self._policy, self._root)
        if acted is not None and acted is not self._root:
            self._root = self._root.update(acted)  # it may have returned nothing but the action

    def step(self, t: int) -> bool:
        """Take step t; returns whether a row may be done."""
        self._steps.append(self.env.step(self._root))
        after = find(self._steps[t], (keys.NEXT,))
        self._memory.add_step({key: find(after, key) for key in self._remembered}, t)
        return True

    def advance(self, t: int) -> None:
        """Make the root after step t; rows that are done are reset."""
        self._root = self.env.maybe_reset(self.env.next_root(self._steps[t]))

    def done(self, t: int) -> tuple[Array, int]:
        """The rows that step t has ended, bool, those of each deciding group; and their length."""
        flags = ends(self._steps[t].get(keys.NEXT), self.env.done_groups).values()
        return np.concatenate([flag.cpu().numpy().reshape(-1) for flag in flags]), t + 1

    def is_over(self, t: int) -> bool:
        """Whether t steps are enough for T of each row."""
        return t >= self._goal.num_steps

    def at(self, t: int) -> TensorDictBase:
        """Step t, for a callback."""
        return self._steps[t]

    def batch(self, num_steps: int, *, set_truncated: bool = False) -> TensorDictBase:
        """Stack the steps to a batch `[*B, T]`."""
        self._memory.check()
        if set_truncated:
            self._steps[-1] = truncate(self._steps[-1], self.env.done_groups)
        batch = TensorDict.maybe_dense_stack(self._steps, len(self.env.batch_size))
        if isinstance(batch, LazyStackedTensorDict) and self.env.layout.has_fixed_forms:
            _warn_of_gaps(self._steps, {keys.as_key(key) for key, _ in self.env.layout.shown})
        batch.names = [*[None] * len(self.env.batch_size), keys.TIME]
        return batch


def _warn_of_gaps(steps: list[TensorDictBase], shown: set[NestedKey]) -> None:
    """Warn of entries without a spec that only some steps have: they make a lazy stack."""
    held = [{keys.as_key(key) for key, _ in keys.leaves(step)} for step in steps]
    gaps = sorted(set().union(*held) - held[0].intersection(*held) - shown, key=str)
    if gaps:
        msg = (
            f"{gaps} are in some steps only, so the batch is a lazy stack, which is slow. Give "
            f"each a spec and return it from _reset and _step, or leave it out; let the policy "
            f"write the same keys each time."
        )
        warnings.warn(msg, UserWarning, stacklevel=2)


def _first_action(policy: Any, root: TensorDictBase) -> TensorDictBase | None:
    """Call a policy for the first time; its errors get a note."""
    hint = (
        "the policy is called with the root, a tensordict, and returns it with the action: wrap a "
        "module on tensors in TensorDictModule(module, in_keys, out_keys)."
    )
    try:
        acted = policy(root)
    except Exception as error:
        is_module = isinstance(policy, TensorDictModuleBase)
        error.add_note(
            failure_note(policy, dict(keys.leaves(root)), root.batch_size) if is_module else hint
        )
        raise
    if acted is not None and not isinstance(acted, TensorDictBase):
        msg = f"expected a tensordict from the policy, got {type(acted).__name__}: {hint}"
        raise TypeError(msg)
    return acted


def truncate(step: TensorDictBase, groups: list[KeyPath]) -> TensorDictBase:
    """Return a step marked as truncated, unless it is terminated; other leaves are shared."""
    marked = step.copy()
    for prefix in groups:
        place = (keys.NEXT, *prefix)
        terminated = marked.get((*place, keys.TERMINATED))
        truncated = marked.get((*place, keys.TRUNCATED)) | ~terminated
        marked.set((*place, keys.TRUNCATED), truncated)
        marked.set((*place, keys.DONE), torch.ones_like(terminated))
    return marked
