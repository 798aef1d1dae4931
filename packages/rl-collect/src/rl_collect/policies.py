"""What a collector may be given as a policy, made into something that acts on a tensordict."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn

from rl_envs import EnvBase
from rl_layout import keys

TENSORDICT_NAMES = ("td", "tensordict", "data", "step", "root", "batch")


def as_policy(policy: Any, env: EnvBase) -> Any:
    """Make a policy act on a tensordict.

    A tensordict module, and any plain callable, is taken as it is. Another `nn.Module` is wrapped:
    each argument of its `forward` is the observation of that name, or the only observation there
    is, and what it returns is the action.

    Args:
        policy: a policy; random actions where None.
        env: where it will act.

    Returns:
        A policy that takes a root `[*B]` and adds the action to it, or None.

    Raises:
        TypeError: it cannot be called, or its arguments match no observation.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> as_policy(nn.Linear(1, 2), CountingEnv()).in_keys
        ['observation']
    """
    if policy is None or isinstance(policy, TensorDictModuleBase):
        return policy
    if not callable(policy):
        msg = f"expected a policy that can be called on a tensordict: got {type(policy).__name__}."
        raise TypeError(msg)
    if not isinstance(policy, nn.Module):
        return policy
    names = _arguments(policy.forward)
    if len(names) == 1 and names[0] in TENSORDICT_NAMES:
        return policy
    actions = [keys.as_key(key) for key, _ in env._action_leaves]
    return TensorDictModule(policy, _observations(policy, names, env), actions)


def _arguments(forward: Callable[..., Any]) -> list[str]:
    """The arguments that must be given."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(forward).parameters.values()
    return [one.name for one in given if one.kind in positional and one.default is one.empty]


def _observations(policy: nn.Module, names: list[str], env: EnvBase) -> list[keys.NestedKey]:
    """The observation that each argument takes."""
    there = [key for key, _ in env._observation_leaves]
    if len(names) == 1 and len(there) == 1:
        return [keys.as_key(there[0])]
    by_name = {key[-1]: keys.as_key(key) for key in there}
    if names and all(name in by_name for name in names):
        return [by_name[name] for name in names]
    msg = (
        f"{type(policy).__name__}.forward takes {names}, and the environment shows "
        f"{[keys.as_key(key) for key in there]}: name its arguments after observations, or wrap "
        "it in TensorDictModule(policy, in_keys=..., out_keys=...)."
    )
    raise TypeError(msg)
