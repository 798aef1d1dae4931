"""Environments that speak tensordicts."""

from rl_envs.check import check_env_specs
from rl_envs.env import EnvBase

__all__ = ["EnvBase", "check_env_specs"]
