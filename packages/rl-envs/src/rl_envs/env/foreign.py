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
    # PettingZoo's are known by what they have: it is not imported for a message
    if hasattr(given, "possible_agents"):
        group = (
            "write an EnvBase that lays the agents along a dimension of one group, as "
            "'Multi-agent environments' in the documentation of rl-envs shows."
        )
        if hasattr(given, "agent_selection") or hasattr(given, "agent_iter"):
            return (
                "Its agents take turns (PettingZoo's AEC), and a step takes the actions of all: "
                f"call pettingzoo.utils.aec_to_parallel(env), and {group}"
            )
        return f"It steps agents by name (PettingZoo's parallel API): {group}"
    if isinstance(given, VectorEnv):
        return "GymVectorEnv(env) makes one of a vector of Gymnasium."
    if isinstance(given, gymnasium.Env):
        return "GymEnv(env) makes one of Gymnasium's."
    if callable(given):
        return "It can be called: call it, or give it to what takes a function."
    return "GymEnv takes an id or an environment of Gymnasium, GymVectorEnv a vector."
