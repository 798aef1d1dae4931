"""Environments that speak tensordicts."""

from rl_envs.check import check_env_specs
from rl_envs.env import EnvBase
from rl_envs.gym import GymEnv
from rl_envs.policy_plan import PolicyPlan, policy_plan
from rl_envs.spaces import space_of_spec, spec_of_space

__all__ = [
    "EnvBase",
    "GymEnv",
    "PolicyPlan",
    "check_env_specs",
    "policy_plan",
    "space_of_spec",
    "spec_of_space",
]
