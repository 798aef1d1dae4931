"""The reference of rollouts: a plain loop over `env.step` and `env.maybe_reset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.env.env import EnvBase


def plain_rollout(
    env: EnvBase,
    policy: Callable[[TensorDictBase], TensorDictBase],
    max_steps: int,
    *,
    stop: Literal["any", "all", "never"],
) -> TensorDictBase:
    """Play steps one by one; `stop` when "any" row is done, when "all" have been, or "never"."""
    steps: list[TensorDictBase] = []
    ended: Tensor | None = None
    now = env.reset()
    while True:
        step = env.step(policy(now.copy()))
        steps.append(step)
        groups = [()] if () in env.done_groups else env.done_groups
        done = torch.cat([step.get(("next", *group, "done")).flatten() for group in groups])
        ended = done if ended is None else ended | done
        is_over = {"any": ended.any(), "all": ended.all(), "never": False}[stop]
        if len(steps) == max_steps or is_over:
            batch: TensorDictBase = TensorDict.maybe_dense_stack(steps, len(env.batch_size))
            return batch
        now = env.maybe_reset(env.next_root(step))
