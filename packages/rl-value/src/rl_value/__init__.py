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
from rl_value.losses import (
    A2CLoss,
    ActorCriticLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    KLPENPPOLoss,
    LossModule,
    PPOLoss,
    ReinforceLoss,
    SoftUpdate,
    ValueEstimators,
)
from rl_value.returns import gae, linear_scan, reward_to_go, td0, td1, td_lambda, vtrace

__all__ = [
    "GAE",
    "A2CLoss",
    "ActorCriticLoss",
    "ClipPPOLoss",
    "DQNLoss",
    "DistributionalDQNLoss",
    "HardUpdate",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "ReinforceLoss",
    "SoftUpdate",
    "TD0Estimator",
    "TD1Estimator",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimator",
    "ValueEstimators",
    "gae",
    "linear_scan",
    "reference",
    "reward_to_go",
    "td0",
    "td1",
    "td_lambda",
    "vtrace",
]
