"""Losses and estimators call the networks of an ordinary user on tensors, as `explain` says."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictModuleBase

import rl_value
from rl_layout.synthetic import trajectories
from rl_policies import (
    MLP,
    Actor,
    DistributionalQValueActor,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from rl_specs import Bounded, OneHot
from rl_value import LossModule, ValueEstimator

ROOT = Path(__file__).parent.parent
# made for others to derive from
ABSTRACT = {"LossModule", "ActorCriticLoss", "ActorCriticsLoss", "BootstrappedLoss"}
ABSTRACT |= {"ValueEstimator"}


def exported(kind: type) -> list[str]:
    """Names of the classes of a kind that can be made."""
    found = [name for name in rl_value.__all__ if inspect.isclass(getattr(rl_value, name))]
    return [n for n in found if issubclass(getattr(rl_value, n), kind) and n not in ABSTRACT]


def chooser() -> ProbabilisticActor:
    """An actor of three choices, as in the README."""
    net = TensorDictModule(MLP(2, 3, num_cells=[8]), ["observation"], ["logits"])
    return ProbabilisticActor(
        net, ["logits"], spec=OneHot(3), distribution_class=OneHotCategorical, return_log_prob=True
    )


def drawer() -> ProbabilisticActor:
    """An actor of one number between -1 and 1."""
    body = torch.nn.Sequential(MLP(2, 2, num_cells=[8]), NormalParamExtractor())
    net = TensorDictModule(body, ["observation"], ["loc", "scale"])
    spec = Bounded(-1, 1, shape=(1,))
    return ProbabilisticActor(net, ["loc", "scale"], spec=spec, distribution_class=TanhNormal)


def steerer() -> Actor:
    """An actor without chance."""
    return Actor(MLP(2, 1, num_cells=[8]), ["observation"], spec=Bounded(-1, 1, shape=(1,)))


def critic() -> ValueOperator:
    """A critic of states."""
    return ValueOperator(MLP(2, 1, num_cells=[8]), ["observation"])


def judge(size: int = 1) -> ValueOperator:
    """A critic of actions of some numbers."""
    return ValueOperator(MLP(2 + size, 1, num_cells=[8]), ["observation", "action"])


def judge_of_choices() -> ValueOperator:
    """A critic of three choices."""
    return ValueOperator(MLP(2, 3, num_cells=[8]), ["observation"], ["action_value"])


def q_actor() -> QValueActor:
    """A network of three choices that takes the best one."""
    return QValueActor(MLP(2, 3, num_cells=[8]), in_keys=["observation"], spec=OneHot(3))


def c51_actor() -> DistributionalQValueActor:
    """The same by distributions over five returns."""
    net = torch.nn.Sequential(MLP(2, 15, num_cells=[8]), torch.nn.Unflatten(-1, (5, 3)))
    net.append(torch.nn.LogSoftmax(-2))
    return DistributionalQValueActor(net, torch.linspace(-1, 1, 5), spec=OneHot(3))


def made(name: str) -> Any:
    """A loss or an estimator as its page makes it."""
    kind = getattr(rl_value, name)
    if name == "DistributionalDQNLoss":
        return kind(c51_actor(), gamma=0.9, support=torch.linspace(-1, 1, 5))
    if name in ("DQNLoss", "DiscreteCQLLoss"):
        return kind(q_actor())
    if name == "DiscreteSACLoss":
        return kind(chooser(), judge_of_choices())
    if name in ("SACLoss", "REDQLoss", "CrossQLoss", "CQLLoss"):
        return kind(drawer(), judge())
    if name in ("DDPGLoss", "TD3Loss", "TD3BCLoss"):
        return kind(steerer(), judge())
    if name == "IQLLoss":
        return kind(drawer(), judge(), critic())
    if name == "BCLoss":
        return kind(chooser())
    if name == "GRPOLoss":
        net = TensorDictModule(MLP(2, 3, num_cells=[8]), ["observation"], ["logits"])
        return kind(net)
    if issubclass(kind, ValueEstimator):
        settings = {"lmbda": 0.9} if name in ("GAE", "TDLambdaEstimator") else {}
        more: dict[str, Any] = {"actor_network": chooser()} if name == "VTrace" else {}
        return kind(gamma=0.9, value_network=critic(), **settings, **more)
    return kind(chooser(), critic())


def batch_for(name: str) -> TensorDictBase:
    """Steps with actions of the actor."""
    batch = trajectories([4, 3])
    one_hot = torch.eye(3)[torch.arange(7) % 3]
    numbers = name in ("SACLoss", "REDQLoss", "CrossQLoss", "CQLLoss", "DDPGLoss", "IQLLoss")
    batch["action"] = torch.rand(7, 1) if numbers or name.startswith("TD3") else one_hot
    batch["action_log_prob"] = batch["sample_log_prob"] = torch.full((7,), 1 / 3).log()
    batch["logits"] = torch.zeros(7, 3)  # of the actor that acted
    if name == "GRPOLoss":
        batch["action"], batch["advantage"] = torch.arange(7) % 3, torch.ones(7, 1)
        batch["loss_mask"] = torch.ones(7, dtype=torch.bool)
    return batch


def forwards_of_tensordict(act: Callable[[], object]) -> set[str]:
    """The modules whose `forward` or `get_dist` of tensordict itself ran."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/tensordict/nn/" in name:
            module = frame.f_locals.get("self")
            is_call = frame.f_code.co_name in ("forward", "get_dist")
            if is_call and isinstance(module, TensorDictModuleBase):
                found.add(type(module).__name__)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("name", [*exported(LossModule), *exported(ValueEstimator)])
def test_ordinary_networks_are_called_on_tensors_and_explain_says_so(name: str) -> None:
    """No tensordict is written for a part of a network; the explanation promises that."""
    module, batch = made(name), batch_for(name)
    module(batch.clone())  # lazily made parts
    said = module.explain(batch)
    assert "on tensors" in said
    assert "on a tensordict" not in said, said
    assert forwards_of_tensordict(lambda: module(batch.clone())) == set()


@pytest.mark.parametrize("name", exported(LossModule))
def test_a_loss_explains_each_of_its_networks(name: str) -> None:
    """There is a line for every network that the loss holds."""
    module = made(name)
    lines = [line.strip().split(":")[0] for line in module.explain(batch_for(name)).splitlines()]
    for role, network in module.named_children():
        if isinstance(network, TensorDictModuleBase):
            assert role.removesuffix("_network") in lines


def test_a_network_that_needs_a_tensordict_is_said_to() -> None:
    """The explanation names the part and its reason, and the loss is the same."""
    loss, batch = made("ClipPPOLoss"), batch_for("ClipPPOLoss")
    expected = loss(batch.clone())
    loss.critic_network.register_forward_hook(lambda *_: None)
    loss.actor_network.module[0].register_forward_hook(lambda *_: None)
    said = loss.explain(batch).splitlines()
    (critic_line,) = [line for line in said if line.strip().startswith("critic:")]
    (actor_line,) = [line for line in said if line.strip().startswith("actor:")]
    assert "on a tensordict" in critic_line
    assert "on a tensordict" in actor_line
    assert "it has hooks" in critic_line
    assert forwards_of_tensordict(lambda: loss(batch.clone())) != set()
    for key, value in loss(batch.clone()).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("name", rl_value.__all__)
def test_every_loss_and_estimator_explains_itself(name: str) -> None:
    """Whatever is called on a batch has `explain`."""
    kind = getattr(rl_value, name)
    if inspect.isclass(kind) and issubclass(kind, TensorDictModuleBase):
        assert callable(kind.explain)


def test_every_row_of_the_page_names_a_test_that_is_there() -> None:
    """The page of fast paths and the tests say the same."""
    rows = (ROOT / "docs/contributing/fast-paths.md").read_text("utf-8").splitlines()
    last = [row.split("|")[-2].strip() for row in rows if row.startswith("|") and "---" not in row]
    named = [re.fullmatch(r"`(?:(rl-\w+): )?(test_\w+)`", cell) for cell in last]
    assert sum(found is not None for found in named) >= 30
    for cell, found in zip(last, named, strict=True):
        if found is None:
            assert cell in ("test", "the same")
            continue
        folder = f"packages/{found[1]}/tests" if found[1] else "integration_tests"
        texts = (path.read_text("utf-8") for path in (ROOT / folder).rglob("test_*.py"))
        assert any(f"def {found[2]}(" in text for text in texts), cell
