"""Losses as tensordict modules, with means over the steps that count."""

from rl_value.losses.a2c import A2CLoss
from rl_value.losses.actor_critic import ActorCriticLoss
from rl_value.losses.bootstrapped.actor_critics import ActorCriticsLoss
from rl_value.losses.bootstrapped.loss import BootstrappedLoss
from rl_value.losses.distributional_dqn import DistributionalDQNLoss
from rl_value.losses.dqn import DQNLoss
from rl_value.losses.loss import LossModule, ValueEstimators
from rl_value.losses.off_policy.crossq import CrossQLoss
from rl_value.losses.off_policy.ddpg import DDPGLoss
from rl_value.losses.off_policy.discrete_sac import DiscreteSACLoss
from rl_value.losses.off_policy.redq import REDQLoss
from rl_value.losses.off_policy.sac import SACLoss
from rl_value.losses.off_policy.td3 import TD3Loss
from rl_value.losses.offline.bc import BCLoss
from rl_value.losses.offline.cql import CQLLoss, DiscreteCQLLoss
from rl_value.losses.offline.iql import IQLLoss
from rl_value.losses.offline.td3_bc import TD3BCLoss
from rl_value.losses.ppo import ClipPPOLoss, KLPENPPOLoss, PPOLoss
from rl_value.losses.reinforce import ReinforceLoss
from rl_value.losses.target_networks import HardUpdate, SoftUpdate

__all__ = [
    "A2CLoss",
    "ActorCriticLoss",
    "ActorCriticsLoss",
    "BCLoss",
    "BootstrappedLoss",
    "CQLLoss",
    "ClipPPOLoss",
    "CrossQLoss",
    "DDPGLoss",
    "DQNLoss",
    "DiscreteCQLLoss",
    "DiscreteSACLoss",
    "DistributionalDQNLoss",
    "HardUpdate",
    "IQLLoss",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "REDQLoss",
    "ReinforceLoss",
    "SACLoss",
    "SoftUpdate",
    "TD3BCLoss",
    "TD3Loss",
    "ValueEstimators",
]
