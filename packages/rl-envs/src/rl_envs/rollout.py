"""Rollouts: steps played one after the other, and returned as one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.done import Prefix, ends
from rl_envs.policy_plan import PolicyPlan
from rl_layout import keys

if TYPE_CHECKING:
    from rl_envs.env import EnvBase


@dataclass(frozen=True)
class Request:
    """What a rollout was asked for.

    Attributes:
        max_steps: most steps to play.
        policy: adds the action to a root, or None for random actions.
        callback: called with the environment and each finished step, or None.
        break_when_any_done: stop as soon as a row is done.
        break_when_all_done: stop as soon as every row has been done once.
        set_truncated: mark the last step as truncated, unless it is terminated.
        goes_on: begin with what the rollout before has left over.

    Example:
        >>> Request(max_steps=5).break_when_any_done
        True
    """

    max_steps: int
    policy: Any = None
    callback: Callable[..., Any] | None = None
    break_when_any_done: bool = True
    break_when_all_done: bool = False
    set_truncated: bool = False
    goes_on: bool = False

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            msg = f"max_steps must be at least 1: got {self.max_steps}."
            raise ValueError(msg)
        if self.break_when_any_done and self.break_when_all_done:
            msg = "break_when_all_done needs break_when_any_done=False: both were asked for."
            raise ValueError(msg)


def play(env: EnvBase, root: TensorDictBase, request: Request) -> TensorDictBase:
    """Play steps through tensordicts.

    Args:
        env: any environment, reset.
        root: `[*B]`, where it stands.
        request: what to play.

    Returns:
        The steps, `[*B, T]`.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> env = CountingEnv(max_steps=3)
        >>> play(env, env.reset(), Request(max_steps=2)).names
        ['time']
    """
    policy = env.rand_action if request.policy is None else request.policy
    policy = policy.policy if isinstance(policy, PolicyPlan) else policy
    groups, steps = env.done_groups, []
    ended: list[Tensor] = []
    # a policy writes to it, and it may be the caller's; roots that follow name no device
    root = root.copy().clear_device_()
    while True:
        acted = policy(root)
        step = env.step(root if acted is None else acted)
        steps.append(step)
        if request.callback is not None:
            request.callback(env, step)
        ended = _ended(step, groups, ended)
        if len(steps) == request.max_steps or _breaks(ended, request):
            break
        root = env.maybe_reset(env._advance(step))
    if request.set_truncated:
        steps[-1] = truncate(steps[-1], groups)
    batch = TensorDict.maybe_dense_stack(steps, len(env.batch_size))
    batch.names = [*[None] * len(env.batch_size), keys.TIME]
    return batch


def _ended(step: TensorDictBase, groups: list[Prefix], before: list[Tensor]) -> list[Tensor]:
    """Which rows of each group that decides have been done, once at least."""
    now = list(ends(step.get(keys.NEXT), groups).values())
    return [one | other for one, other in zip(before, now, strict=True)] if before else now


def _breaks(ended: list[Tensor], request: Request) -> bool:
    if request.break_when_any_done:
        return any(bool(flag.any()) for flag in ended)
    return request.break_when_all_done and all(bool(flag.all()) for flag in ended)


def truncate(step: TensorDictBase, groups: list[Prefix]) -> TensorDictBase:
    """Mark a step as the last one of the data, where the task goes on.

    Args:
        step: a step of any batch size. It is not changed.
        groups: the groups with done flags.

    Returns:
        A new tensordict that shares all leaves but the flags.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> step = CountingEnv().rollout(1)
        >>> truncate(step, [()])["next", "truncated"].tolist()
        [[True]]
    """
    marked = step.copy()
    for prefix in groups:
        place = (keys.NEXT, *prefix)
        terminated = marked.get((*place, keys.TERMINATED))
        truncated = marked.get((*place, keys.TRUNCATED)) | ~terminated
        marked.set((*place, keys.TRUNCATED), truncated)
        marked.set((*place, keys.DONE), torch.ones_like(terminated))
    return marked
