"""Policies on tensordict modules: actors, critics, exploration, distributions."""

from tensordict.nn import InteractionType, set_interaction_type
from tensordict.nn.probabilistic import interaction_type

from rl_policies.aliases import (
    ExplorationType,
    SafeModule,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    SafeSequential,
    exploration_type,
    set_exploration_type,
)
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
from rl_policies.exploration.epsilon_greedy import EGreedyModule
from rl_policies.exploration.noise import AdditiveGaussianModule, OrnsteinUhlenbeckModule
from rl_policies.modules.actor import Actor, ProbabilisticActor
from rl_policies.modules.actor_value import ActorValueOperator
from rl_policies.modules.critic import ValueOperator
from rl_policies.modules.distributional_q_value import (
    DistributionalQValueActor,
    DistributionalQValueModule,
)
from rl_policies.modules.probabilistic import SamplingModule
from rl_policies.modules.q_value import QValueActor, QValueModule
from rl_policies.networks.conv_net import ConvNet
from rl_policies.networks.ensemble import Ensemble
from rl_policies.networks.mlp import MLP
from rl_tensordict import TensorStep

__all__ = [
    "MLP",
    "Actor",
    "ActorValueOperator",
    "AdditiveGaussianModule",
    "ConvNet",
    "Delta",
    "DistributionalQValueActor",
    "DistributionalQValueModule",
    "EGreedyModule",
    "Ensemble",
    "ExplorationType",
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
    "SafeModule",
    "SafeProbabilisticModule",
    "SafeProbabilisticTensorDictSequential",
    "SafeSequential",
    "SamplingModule",
    "TanhNormal",
    "TensorStep",
    "TruncatedNormal",
    "ValueOperator",
    "exploration_type",
    "interaction_type",
    "set_exploration_type",
    "set_interaction_type",
]
