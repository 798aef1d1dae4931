"""Fuzzed parts of rl-policies that have no public name: policies, exploration, distributions."""

from __future__ import annotations

import torch
from fuzz_pools import TENSORS, Pool, each, steps
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn

from rl_policies import (
    MLP,
    Actor,
    ActorValueOperator,
    AdditiveGaussianModule,
    ConvNet,
    Delta,
    EGreedyModule,
    IndependentNormal,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    OneHotOrdinal,
    Ordinal,
    OrnsteinUhlenbeckModule,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
    SamplingModule,
    TanhNormal,
    TruncatedNormal,
    ValueOperator,
)
from rl_specs import Bounded, Categorical, MultiOneHot, OneHot

BOX, CHOICE = Bounded(-1, 1, (2,)), OneHot(3)


def network(key: str = "logits") -> TensorDictModule:
    """Writes three numbers."""
    return TensorDictModule(nn.Linear(3, 3), ["observation"], [key])


def actor() -> ProbabilisticActor:
    """Chooses one of three."""
    return ProbabilisticActor(
        network(), ["logits"], spec=CHOICE, distribution_class=OneHotCategorical
    )


def shared() -> ActorValueOperator:
    """A policy and a critic that share one network."""
    head = TensorDictModule(nn.Linear(3, 3), ["hidden"], ["logits"])
    policy = ProbabilisticActor(head, ["logits"], distribution_class=OneHotCategorical)
    return ActorValueOperator(network("hidden"), policy, ValueOperator(nn.Linear(3, 1), ["hidden"]))


MASK = torch.tensor([True, False, True])
CALLS = [
    ("MLP()", lambda: MLP(3, 2)),
    ("ConvNet()", lambda: ConvNet(1, num_cells=[2], kernel_sizes=1)),
    ("Actor()", lambda: Actor(nn.Linear(3, 2), spec=BOX, safe=True)),
    ("ProbabilisticActor()", actor),
    ("SamplingModule()", lambda: SamplingModule(["logits"], distribution_class=OneHotCategorical)),
    ("QValueActor()", lambda: QValueActor(nn.Linear(3, 3), spec=CHOICE)),
    ("QValueModule()", lambda: QValueModule(spec=Categorical(3))),
    ("ValueOperator()", lambda: ValueOperator(nn.Linear(3, 1))),
    ("ActorValueOperator()", shared),
    ("EGreedyModule()", lambda: EGreedyModule(OneHot(3))),
    ("AdditiveGaussianModule()", lambda: AdditiveGaussianModule(BOX)),
    ("OrnsteinUhlenbeckModule()", lambda: OrnsteinUhlenbeckModule(BOX)),
    ("OneHotCategorical()", lambda: OneHotCategorical(torch.randn(2, 3))),
    ("MaskedCategorical()", lambda: MaskedCategorical(torch.randn(2, 3), mask=MASK)),
    ("MaskedOneHotCategorical()", lambda: MaskedOneHotCategorical(torch.randn(3), mask=MASK)),
    ("Ordinal()", lambda: Ordinal(torch.randn(2, 3))),
    ("OneHotOrdinal()", lambda: OneHotOrdinal(torch.randn(2, 3))),
    ("IndependentNormal()", lambda: IndependentNormal(torch.zeros(2, 3), torch.ones(3))),
    ("TanhNormal()", lambda: TanhNormal(torch.zeros(2, 3), 1.0)),
    ("TruncatedNormal()", lambda: TruncatedNormal(torch.zeros(2, 3), 1.0)),
    ("Delta()", lambda: Delta(torch.zeros(2, 3))),
]

DISTRIBUTIONS = (OneHotCategorical, IndependentNormal, TanhNormal, TruncatedNormal, Delta)
ROWS: Pool = [steps, lambda: steps((2, 3)), lambda: TensorDict({"observation": torch.ones(3)}, [])]
POOLS: dict[str, Pool] = {
    "args": [*ROWS, *ROWS, *TENSORS],
    "tensordict": ROWS,
    "tensors": [*TENSORS, lambda: torch.randn(2, 3), lambda: torch.randn(3)],
    "spec": each(BOX, CHOICE, Categorical(3), MultiOneHot([2, 3])),
    "module": [lambda: nn.Linear(3, 3), network, lambda: MLP(3, 2)],
    "distribution_class": each(*DISTRIBUTIONS, torch.distributions.Categorical),
    "distribution_kwargs": each(None, {}, {"low": -1.0, "high": 1.0}),
    "in_keys": [lambda: ["observation"], lambda: ["logits"], lambda: ["loc", "scale"]],
    "out_keys": [lambda: ["action"], lambda: ["logits"], lambda: ["loc", "scale"]],
    "default_interaction_type": each(InteractionType.RANDOM, "mode"),
    "logits": [lambda: torch.randn(2, 3), lambda: torch.randn(3)],
    "probs": [lambda: torch.rand(2, 3), *each(None)],
    "scores": [lambda: torch.randn(2, 3)],
    "mask": [lambda: MASK, lambda: MASK.expand(2, 3)],
    "loc": [lambda: torch.randn(2, 3), lambda: torch.randn(3)],
    "scale": [lambda: torch.ones(2, 3), *each(1.0)],
    "param": [lambda: torch.randn(2, 3)],
    "value": [lambda: torch.zeros(2, 3), lambda: torch.tensor([0, 1]), lambda: torch.eye(3)[:2]],
    "sample_shape": each((), (2,), torch.Size([3])),
    "batch_shape": each((2,), (5, 2)),
    "activation_class": each(nn.Tanh, nn.ReLU),
    "num_cells": each(3, [4, 2], None),
}
