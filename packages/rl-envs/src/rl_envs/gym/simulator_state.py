"""The state of Gymnasium's classic control environments: saving and restoring an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers

from rl_envs.gym.wrappers import STATELESS, Env

# all that changes in them from step to step, alongside the generator and the wrappers' counters
ATTRIBUTES = ("state", "steps_beyond_terminated", "last_u")
COUNTERS = {
    wrappers.TimeLimit: "_elapsed_steps",
    wrappers.OrderEnforcing: "_has_reset",
    wrappers.PassiveEnvChecker: "checked_reset",
}


def get_state(env: Env) -> dict[str, Any]:
    """Read the state of a classic control environment, wrappers included."""
    _check(env)
    inner = env.unwrapped
    found = {name: getattr(inner, name) for name in ATTRIBUTES if hasattr(inner, name)}
    return {
        "attributes": {name: _saved(value) for name, value in found.items()},
        "counters": {COUNTERS[type(w)]: getattr(w, COUNTERS[type(w)]) for w in _wrappers(env)},
        "generator": _plain(inner.np_random.bit_generator.state),
    }


def set_state(env: Env, state: Mapping[str, Any]) -> None:
    """Restore the state of a classic control environment."""
    _check(env)
    here = {COUNTERS[type(wrapper)]: wrapper for wrapper in _wrappers(env)}
    if here.keys() != state["counters"].keys():
        msg = f"the state has counters {list(state['counters'])}, this environment {list(here)}."
        raise ValueError(msg)
    for name, wrapper in here.items():
        setattr(wrapper, name, state["counters"][name])
    for name, value in state["attributes"].items():
        setattr(env.unwrapped, name, _loaded(value))
    env.unwrapped.np_random.bit_generator.state = state["generator"]


def _check(env: Env) -> None:
    others = [w for w in _wrappers(env) if type(w) not in COUNTERS]
    module = type(env.unwrapped).__module__
    if others or not module.startswith("gymnasium.envs.classic_control."):
        what = ", ".join(type(w).__name__ for w in others) or type(env.unwrapped).__name__
        msg = (
            f"GymEnv cannot save the state of {what}: only classic control as gymnasium.make gives "
            f"it. Subclass GymEnv with _get_state and _set_state."
        )
        raise NotImplementedError(msg)


def _wrappers(env: Env) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, STATELESS):
            yield env
        env = env.env


def _saved(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, tuple | list):
        return [float(part) for part in value]
    return value if value is None else value.item() if hasattr(value, "item") else value


def _loaded(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    return tuple(value) if isinstance(value, list) else value


def _plain(state: Any) -> Any:
    """Write a generator's state as plain dictionaries and numbers."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    return state if isinstance(state, str) else int(state)
