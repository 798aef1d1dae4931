"""Environments that speak tensordicts."""

from rl_envs.agents.pettingzoo_env import PettingZooEnv
from rl_envs.batched.parallel import ParallelEnv
from rl_envs.batched.resized import ResizedEnv
from rl_envs.batched.serial import SerialEnv
from rl_envs.env.env import EnvBase
from rl_envs.env.rendering import FrameRecorder, write_gif
from rl_envs.env_creator import EnvCreator
from rl_envs.gym.envpool import EnvPoolEnv
from rl_envs.gym.gym_env import GymEnv
from rl_envs.gym.puffer import PufferEnv
from rl_envs.gym.spaces.specs import space_of_spec, spec_of_space
from rl_envs.gym.text import Alphabet
from rl_envs.gym.vector_env import GymVectorEnv
from rl_envs.pendulums import Pendulums
from rl_envs.random_policy import RandomPolicy
from rl_envs.rollouts import RolloutPlayer, RolloutRequest
from rl_envs.rollouts.policy_plan import PolicyPlan, policy_plan
from rl_envs.testing.check_env_specs import check_env_specs
from rl_envs.transformed.transformed_env import TransformedEnv
from rl_envs.transformed.wire_policy import wire_policy
from rl_workers import CallOutOfOrder, WorkerDied, WorkerError, WorkerPool, WorkerTimeout

__all__ = [
    "Alphabet",
    "CallOutOfOrder",
    "EnvBase",
    "EnvCreator",
    "EnvPoolEnv",
    "FrameRecorder",
    "GymEnv",
    "GymVectorEnv",
    "ParallelEnv",
    "Pendulums",
    "PettingZooEnv",
    "PolicyPlan",
    "PufferEnv",
    "RandomPolicy",
    "ResizedEnv",
    "RolloutPlayer",
    "RolloutRequest",
    "SerialEnv",
    "TransformedEnv",
    "WorkerDied",
    "WorkerError",
    "WorkerPool",
    "WorkerTimeout",
    "check_env_specs",
    "policy_plan",
    "space_of_spec",
    "spec_of_space",
    "wire_policy",
    "write_gif",
]
