"""Test environments and conformance checks for authors of environments."""

from rl_envs.testing.conformance import check_conformance
from rl_envs.testing.envs import (
    CountingEnv,
    DyingEnv,
    Ending,
    EpisodeStepEnv,
    FailingEnv,
    GroupsEnv,
    MultiAgentEnv,
    NestedEnv,
    RaisingEnv,
    ScriptedEnv,
)

__all__ = [
    "CountingEnv",
    "DyingEnv",
    "Ending",
    "EpisodeStepEnv",
    "FailingEnv",
    "GroupsEnv",
    "MultiAgentEnv",
    "NestedEnv",
    "RaisingEnv",
    "ScriptedEnv",
    "check_conformance",
]
