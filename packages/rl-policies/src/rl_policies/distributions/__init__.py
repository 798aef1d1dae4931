"""Distributions of actions."""

from rl_policies.distributions.delta import Delta
from rl_policies.distributions.independent_normal import IndependentNormal
from rl_policies.distributions.masked_categorical import (
    MaskedCategorical,
    MaskedOneHotCategorical,
)
from rl_policies.distributions.one_hot import OneHotCategorical
from rl_policies.distributions.ordinal import OneHotOrdinal, Ordinal
from rl_policies.distributions.tanh_normal import TanhNormal
from rl_policies.distributions.truncated_normal import TruncatedNormal

__all__ = [
    "Delta",
    "IndependentNormal",
    "MaskedCategorical",
    "MaskedOneHotCategorical",
    "OneHotCategorical",
    "OneHotOrdinal",
    "Ordinal",
    "TanhNormal",
    "TruncatedNormal",
]
