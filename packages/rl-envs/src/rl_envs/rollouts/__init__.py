"""Rollouts: an environment stepped with a policy, by one loop over several kinds of steps."""

from rl_envs.rollouts.player import RolloutPlayer, play_steps
from rl_envs.rollouts.request import RolloutRequest

__all__ = ["RolloutPlayer", "RolloutRequest", "play_steps"]
