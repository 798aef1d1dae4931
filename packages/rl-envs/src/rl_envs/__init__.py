"""Environments that speak tensordicts."""

from rl_envs.check import check_env_specs
from rl_envs.env import EnvBase
from rl_envs.env_pool import EnvPoolEnv
from rl_envs.gym import GymEnv
from rl_envs.parallel import ParallelEnv
from rl_envs.pendulums import Pendulums
from rl_envs.policy_plan import PolicyPlan, policy_plan
from rl_envs.random_policy import RandomPolicy
from rl_envs.rendering import FrameRecorder, write_gif
from rl_envs.serial import SerialEnv
from rl_envs.spaces import space_of_spec, spec_of_space
from rl_envs.text import Alphabet
from rl_envs.transformed import TransformedEnv
from rl_envs.vector import GymVectorEnv
from rl_envs.wiring import wire_policy
from rl_envs.worker_errors import CallOutOfOrder, WorkerDied, WorkerError, WorkerTimeout
from rl_envs.workers import WorkerPool

__all__ = [
    "Alphabet",
    "CallOutOfOrder",
    "EnvBase",
    "EnvPoolEnv",
    "FrameRecorder",
    "GymEnv",
    "GymVectorEnv",
    "ParallelEnv",
    "Pendulums",
    "PolicyPlan",
    "RandomPolicy",
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
