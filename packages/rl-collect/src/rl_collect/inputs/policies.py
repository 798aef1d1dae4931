"""What a collector may be given as a policy, made into something that acts on a tensordict."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tensordict.nn import TensorDictModule
from torch import nn

from rl_envs import EnvBase
from rl_layout import keys

# what InitTracker and StepCounter show alongside the observations of an environment
BOOKKEEPING = (keys.IS_INIT, "step_count")
TENSORDICT_NAMES = ("td", "tensordict", "data", "step", "root", "batch")


def as_policy(policy: Any, env: EnvBase) -> Any:
    """Make a policy act on a tensordict."""
    # A tensordict module, compiled or not, and any plain callable, is taken as it is. Another
    # nn.Module is wrapped: each argument of its forward is the observation of that name, or the
    # only observation there is alongside is_init and step_count, and what it returns is the action.
    if policy is None or takes_steps(policy):
        return None
    if is_tensordict_module(policy):
        return policy
    if not callable(policy):
        msg = f"expected a policy that can be called on a tensordict: got {type(policy).__name__}."
        raise TypeError(msg)
    if not isinstance(policy, nn.Module):
        return policy
    # that of a compiled module takes anything
    names = _arguments(getattr(policy, "_orig_mod", policy).forward)
    if len(names) == 1 and names[0] in TENSORDICT_NAMES:
        return policy
    return TensorDictModule(policy, _observations(policy, names, env), env.action_keys)


def is_tensordict_module(policy: Any) -> bool:
    """Whether a policy names what it reads and writes, itself or as `torch.compile` hands it on."""
    is_module = isinstance(policy, nn.Module)
    return is_module and hasattr(policy, "in_keys") and hasattr(policy, "out_keys")


def takes_steps(policy: Any) -> bool:
    """Whether it is the `rand_step` of an environment; the collector takes the steps itself."""
    is_method = isinstance(getattr(policy, "__self__", None), EnvBase)
    return is_method and getattr(policy, "__name__", None) == "rand_step"


def _arguments(forward: Callable[..., Any]) -> list[str]:
    """The arguments that must be given."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(forward).parameters.values()
    return [one.name for one in given if one.kind in positional and one.default is one.empty]


def _observations(policy: nn.Module, names: list[str], env: EnvBase) -> list[keys.NestedKey]:
    """The observation that each argument takes."""
    there = [keys.as_tuple(key) for key in env.observation_spec.keys(True, True)]
    seen = [key for key in there if key[-1] not in BOOKKEEPING] or there
    if len(names) == 1 and len(seen) == 1:
        return [keys.as_key(seen[0])]
    by_name = {key[-1]: keys.as_key(key) for key in there}
    if names and all(name in by_name for name in names):
        return [by_name[name] for name in names]
    msg = (
        f"{type(policy).__name__}.forward takes {names}, and the environment shows "
        f"{[keys.as_key(key) for key in there]}: name its arguments after observations, or wrap "
        "it in TensorDictModule(policy, in_keys=..., out_keys=...)."
    )
    raise TypeError(msg)


def check_keys(policy: Any, env: EnvBase) -> None:
    """Raise for a policy that reads what an environment does not show, or writes no action."""
    if not is_tensordict_module(policy):
        return
    specs = (env.observation_spec, env.full_done_spec, env.state_spec)
    shown = [keys.as_tuple(key) for spec in specs for key in spec.keys(True, True)]
    lacking = [key for key in policy.in_keys if keys.as_tuple(key) not in shown]
    if lacking:
        msg = (
            f"the policy reads {lacking}, which the environment lacks: it shows "
            f"{[keys.as_key(key) for key in shown]}. Leave auto_register_policy_transforms on for "
            f"recurrent states, or rename the keys."
        )
        raise KeyError(msg)
    written = [keys.as_tuple(key) for key in policy.out_keys]
    missing = [key for key in env.action_keys if keys.as_tuple(key) not in written]
    if missing:
        msg = (
            f"the policy writes {[keys.as_key(key) for key in written]}, and the environment takes "
            f"{missing}: name its out_keys after the action."
        )
        raise KeyError(msg)
