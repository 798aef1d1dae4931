"""Bounds of the actions that a policy draws, compared with the ones that the environment takes."""

from __future__ import annotations

import inspect
import warnings
from typing import Any
from weakref import WeakSet

from tensordict.nn import ProbabilisticTensorDictModule
from torch import nn

from rl_envs.env.interface import Environment
from rl_specs import Bounded
from rl_tensordict import as_key, as_tuple
from rl_tensordict.types import KeyPath

_warned: WeakSet[nn.Module] = WeakSet()


def warn_of_narrow_actions(env: Environment, policy: Any) -> None:
    """Warn once of each sampler whose default bounds leave out a part of the action space."""
    if not isinstance(policy, nn.Module):
        return
    spec = env.full_action_spec
    for key in map(as_tuple, spec.keys(True, True)):
        leaf, sampler = spec[key], _sampler_of(policy, key)
        if sampler is None or sampler in _warned or not isinstance(leaf, Bounded):
            continue
        low, high, drawn = float(leaf.low.min()), float(leaf.high.max()), _default_bounds(sampler)
        if drawn is None or (drawn[0] <= low and high <= drawn[1]):
            continue
        _warned.add(sampler)
        warnings.warn(
            f"the policy draws {as_key(key)!r} by {sampler.distribution_class.__name__} from "
            f"{drawn[0]:g} to {drawn[1]:g}, and the environment takes {low:g} to {high:g}: the "
            "rest is never played. Give the actor spec=env.action_spec, or low and high in "
            "distribution_kwargs.",
            stacklevel=4,
        )


def _sampler_of(policy: nn.Module, key: KeyPath) -> Any:
    """The module that draws an action last, if nothing changes it afterwards."""
    last = None
    for module in policy.modules():
        written = getattr(module, "out_keys", None)
        # a container lists what its parts write
        is_part = not any(hasattr(one, "out_keys") for one in module.children())
        if is_part and written and key in map(as_tuple, written):
            last = module
    return last if isinstance(last, ProbabilisticTensorDictModule) else None


def _default_bounds(sampler: Any) -> tuple[float, float] | None:
    """The bounds that a distribution has where neither a spec nor the caller gave any."""
    if {"low", "high"} & set(sampler.distribution_kwargs or {}):
        return None
    try:
        arguments = inspect.signature(sampler.distribution_class).parameters
    except (TypeError, ValueError):
        return None
    low, high = (getattr(arguments.get(name), "default", None) for name in ("low", "high"))
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        return None
    return float(low), float(high)
