"""Other names for modules, which code written for other libraries uses; a line each."""

from __future__ import annotations

from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictSequential,
    TensorDictSequential,
    set_interaction_type,
)
from tensordict.nn.probabilistic import interaction_type

from rl_policies.modules.actor import Actor
from rl_policies.modules.policy_sequence import PolicySequence
from rl_policies.modules.probabilistic import SamplingModule

ExplorationType = InteractionType
exploration_type = interaction_type
set_exploration_type = set_interaction_type
SafeModule = Actor
SafeProbabilisticModule = SamplingModule


class SafeSequential(PolicySequence, TensorDictSequential):  # type: ignore[misc]
    """Runs tensordict modules one after the other; specs belong to the modules."""


class SafeProbabilisticTensorDictSequential(
    PolicySequence,
    ProbabilisticTensorDictSequential,  # type: ignore[misc]
):
    """Runs tensordict modules one after the other, the last of which has a distribution."""
