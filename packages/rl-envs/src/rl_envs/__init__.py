"""Environments that speak tensordicts."""

from rl_envs.check import check_env_specs
from rl_envs.env import EnvBase
from rl_envs.gym import GymEnv
from rl_envs.policy_plan import PolicyPlan, policy_plan
from rl_envs.random_policy import RandomPolicy
from rl_envs.serial import SerialEnv
from rl_envs.spaces import space_of_spec, spec_of_space
from rl_envs.transformed import TransformedEnv
from rl_envs.wiring import wire_policy

__all__ = [
    "EnvBase",
    "GymEnv",
    "PolicyPlan",
    "RandomPolicy",
    "SerialEnv",
    "TransformedEnv",
    "check_env_specs",
    "policy_plan",
    "space_of_spec",
    "spec_of_space",
    "wire_policy",
]
