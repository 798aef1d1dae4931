"""Environments that speak tensordicts."""

from rl_envs.env import EnvBase

__all__ = ["EnvBase"]
