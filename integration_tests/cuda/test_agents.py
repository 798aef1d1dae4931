"""Exploration, distributions, evaluation and records with networks on a CUDA device."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_envs import GymEnv
from rl_layout.synthetic import trajectories
from rl_policies import (
    MLP,
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
    QValueActor,
    TanhNormal,
    TruncatedNormal,
)
from rl_record import Evaluator, JSONLLogger, look, read_run
from rl_specs import Bounded, OneHot

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BOX = Bounded(-1, 1, (2,))


@pytest.mark.parametrize("spec_device", ["cpu", DEVICE])
@pytest.mark.parametrize("kind", ["greedy", "gaussian", "ornstein"])
def test_exploration_changes_actions_where_they_are(kind, spec_device):
    made = {
        "greedy": lambda: EGreedyModule(OneHot(3).to(spec_device), eps_init=1.0, eps_end=1.0),
        "gaussian": lambda: AdditiveGaussianModule(
            BOX.to(spec_device), sigma_init=0.5, sigma_end=0.5
        ),
        "ornstein": lambda: OrnsteinUhlenbeckModule(BOX.to(spec_device)),
    }
    module = made[kind]().to(DEVICE)
    action = torch.zeros(50, 2) if kind != "greedy" else torch.eye(3)[torch.zeros(50).long()].bool()
    rows = TensorDict({"action": action, "is_init": torch.zeros(50, 1).bool()}, [50])
    if kind == "ornstein":
        rows["ou_noise"] = torch.full((50, 2), 0.5)
    rows = rows.to(DEVICE)
    before = rows["action"].clone()
    after = module(rows)["action"]
    assert after.device.type == DEVICE
    assert after.dtype == before.dtype
    assert not torch.equal(after, before)
    assert (OneHot(3) if kind == "greedy" else BOX).to(DEVICE).expand(50, -1).is_in(after)
    module.step(10)


MASK = torch.tensor([[True, True, False], [False, True, True]])
LOGITS, LOC, SCALE = torch.randn(2, 3), torch.randn(2, 3), torch.rand(2, 3) + 0.2
DISTRIBUTIONS = {
    "TanhNormal": lambda t: TanhNormal(t(LOC), t(SCALE), low=-2.0, high=3.0),
    "TruncatedNormal": lambda t: TruncatedNormal(t(LOC), t(SCALE), low=-2.0, high=3.0),
    "IndependentNormal": lambda t: IndependentNormal(t(LOC), t(SCALE)),
    "Delta": lambda t: Delta(t(LOC)),
    "OneHotCategorical": lambda t: OneHotCategorical(logits=t(LOGITS)),
    "MaskedCategorical": lambda t: MaskedCategorical(logits=t(LOGITS), mask=t(MASK)),
    "MaskedOneHot": lambda t: MaskedOneHotCategorical(logits=t(LOGITS), mask=t(MASK)),
    "Ordinal": lambda t: Ordinal(t(LOGITS)),
    "OneHotOrdinal": lambda t: OneHotOrdinal(t(LOGITS)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_those_of_the_cpu(name):
    here = DISTRIBUTIONS[name](lambda x: x)
    there = DISTRIBUTIONS[name](lambda x: x.to(DEVICE))
    drawn = there.sample()
    assert drawn.device.type == DEVICE
    torch.testing.assert_close(
        there.log_prob(drawn).cpu(), here.log_prob(drawn.cpu()), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(there.mode.cpu(), here.mode, rtol=1e-4, atol=1e-5)
    assert there.sample((4,)).shape == here.sample((4,)).shape


def test_networks_are_made_on_the_device():
    assert next(MLP(2, 1, num_cells=[8], device=DEVICE).parameters()).device.type == DEVICE
    image = torch.rand(2, 3, 20, 20, device=DEVICE)
    net = ConvNet(num_cells=[4, 4], kernel_sizes=3, device=DEVICE)
    assert net(image).device.type == DEVICE


def test_an_agent_of_the_device_is_evaluated():
    policy = QValueActor(MLP(4, 2, num_cells=[8]), spec=OneHot(2)).to(DEVICE)
    for explored in (policy, TensorDictSequential(policy, EGreedyModule(OneHot(2)).to(DEVICE))):
        found = Evaluator(GymEnv("CartPole-v1"), explored, num_episodes=3).evaluate()
        assert len(found.returns) == 3


def test_numbers_of_the_device_are_logged_and_shown(tmp_path):
    with JSONLLogger("run", log_dir=tmp_path) as logger:
        logger.log_metrics(
            {"a": torch.tensor(1.5, device=DEVICE), "b": torch.ones((), device=DEVICE)}, step=1
        )
        logger.log_histogram("h", torch.randn(30, device=DEVICE), step=1)
    assert read_run(tmp_path / "run")["a"].values.tolist() == [1.5]
    page = look(trajectories([5, 9, 3]).to(DEVICE))
    assert len(str(page.html)) > 1000


def test_a_sequence_of_modules_is_moved_whole():
    net = TensorDictModule(MLP(2, 3, num_cells=[8]), ["observation"], ["action_value"])
    actor = TensorDictSequential(
        net, TensorDictModule(lambda v: v.argmax(-1), ["action_value"], ["action"])
    )
    rows = trajectories([4]).to(DEVICE)
    assert actor.to(DEVICE)(rows)["action"].device.type == DEVICE
