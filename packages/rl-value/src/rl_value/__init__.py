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
from rl_value.returns import gae, linear_scan, reward_to_go, td0, td1, td_lambda, vtrace

__all__ = [
    "GAE",
    "TD0Estimator",
    "TD1Estimator",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimator",
    "gae",
    "linear_scan",
    "reference",
    "reward_to_go",
    "td0",
    "td1",
    "td_lambda",
    "vtrace",
]
