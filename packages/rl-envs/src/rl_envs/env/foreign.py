"""Environments of other libraries in the place of ours, and what makes one of ours of them."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv


def require_env(given: Any, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise where something is no environment of a class, with what makes one of it."""
    if not isinstance(given, kind):
        got = repr(given) if isinstance(given, str) else type(given).__name__
        msg = f"{expected}: got {got}. {advice_for(given)}"
        raise TypeError(msg)


def advice_for(given: Any) -> str:
    """What makes an environment of ours of that of another library."""
    # those of PettingZoo and PufferLib are known by what they have: nothing is imported for this
    if hasattr(given, "possible_agents"):
        return (
            "PettingZooEnv(env) makes one of PettingZoo's, whose agents act together or in turns."
        )
    if hasattr(given, "agents_per_batch"):
        return "PufferEnv(env) makes one of a native vector of PufferLib."
    if isinstance(given, VectorEnv):
        return "GymVectorEnv(env) makes one of a vector of Gymnasium."
    if isinstance(given, gymnasium.Env):
        return "GymEnv(env) makes one of Gymnasium's."
    if callable(given):
        return "It can be called: call it, or give it to what takes a function."
    return "GymEnv takes an id or an environment of Gymnasium, GymVectorEnv a vector."
