"""Policies on tensordict modules: actors, critics, exploration, distributions."""

from tensordict.nn import InteractionType, set_interaction_type
from tensordict.nn.probabilistic import interaction_type

from rl_policies.actor import Actor, ProbabilisticActor
from rl_policies.actor_value import ActorValueOperator
from rl_policies.conv_net import ConvNet
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
from rl_policies.exploration import EGreedyModule
from rl_policies.mlp import MLP
from rl_policies.noise import AdditiveGaussianModule, OrnsteinUhlenbeckModule
from rl_policies.q_value import QValueActor, QValueModule
from rl_policies.sampling import SamplingModule
from rl_policies.tensor_step import TensorStep
from rl_policies.value import ValueOperator

__all__ = [
    "MLP",
    "Actor",
    "ActorValueOperator",
    "AdditiveGaussianModule",
    "ConvNet",
    "Delta",
    "EGreedyModule",
    "IndependentNormal",
    "InteractionType",
    "MaskedCategorical",
    "MaskedOneHotCategorical",
    "OneHotCategorical",
    "OneHotOrdinal",
    "Ordinal",
    "OrnsteinUhlenbeckModule",
    "ProbabilisticActor",
    "QValueActor",
    "QValueModule",
    "SamplingModule",
    "TanhNormal",
    "TensorStep",
    "TruncatedNormal",
    "ValueOperator",
    "interaction_type",
    "set_interaction_type",
]
