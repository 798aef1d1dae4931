"""Returns, advantages and losses that cut where trajectories end."""

from rl_value import reference
from rl_value.estimators import (
    GAE,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    ValueEstimator,
    VTrace,
)
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
from rl_value.returns import gae, linear_scan, reward_to_go, td0, td1, td_lambda, vtrace
from rl_value.tokens.group_advantage import GRPOAdvantage, group_advantage
from rl_value.tokens.grpo import GRPOLoss
from rl_value.tokens.means import token_mean

__all__ = [
    "GAE",
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
    "GRPOAdvantage",
    "GRPOLoss",
    "HardUpdate",
    "IQLLoss",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "REDQLoss",
    "ReinforceLoss",
    "SACLoss",
    "SoftUpdate",
    "TD0Estimator",
    "TD1Estimator",
    "TD3BCLoss",
    "TD3Loss",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimator",
    "ValueEstimators",
    "gae",
    "group_advantage",
    "linear_scan",
    "reference",
    "reward_to_go",
    "td0",
    "td1",
    "td_lambda",
    "token_mean",
    "vtrace",
]
