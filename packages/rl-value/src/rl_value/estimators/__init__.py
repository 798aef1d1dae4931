"""Value estimators as tensordict modules."""

from rl_value.estimators.estimator import ValueEstimator
from rl_value.estimators.gae import GAE
from rl_value.estimators.td import TD0Estimator, TD1Estimator, TDLambdaEstimator
from rl_value.estimators.transitions import ValuedTransitions, finished
from rl_value.estimators.vtrace import VTrace

Valued = ValuedTransitions  # the short name for authors of estimators

__all__ = [
    "GAE",
    "TD0Estimator",
    "TD1Estimator",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimator",
    "Valued",
    "ValuedTransitions",
    "finished",
]
