"""Distributions of actions."""

from rl_policies.distributions.independent_normal import IndependentNormal
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.distributions.tanh_normal import TanhNormal

__all__ = ["IndependentNormal", "OneHotCategorical", "TanhNormal"]
