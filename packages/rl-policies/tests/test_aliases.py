"""Names that other libraries use for what has another name here."""

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

from rl_policies import (
    SafeModule,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    SafeSequential,
    TanhNormal,
)
from rl_specs import Bounded


def rows():
    return TensorDict({"observation": torch.full((5, 3), 100.0)}, [5])


def test_a_safe_module_projects_into_its_spec():
    spec = Bounded(-1, 1, (2,))
    module = SafeModule(nn.Linear(3, 2), ["observation"], ["action"], spec, safe=True)
    assert spec.is_in(module(rows())["action"])
    wild = SafeModule(nn.Linear(3, 2), ["observation"], ["action"], spec)
    assert not spec.is_in(wild(rows())["action"])


def test_sequences_run_their_parts():
    net = TensorDictModule(
        nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"]
    )
    draw = SafeProbabilisticModule(
        ["loc", "scale"],
        ["action"],
        spec=Bounded(-1, 1, (2,)),
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    both = SafeProbabilisticTensorDictSequential(net, draw)
    assert both.get_dist(rows()).batch_shape == (5,)
    found = SafeSequential(net, draw)(rows())
    assert found["sample_log_prob"].shape == (5,)
    assert torch.equal(found["action"], both(rows())["action"])
