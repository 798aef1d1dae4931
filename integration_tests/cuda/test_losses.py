"""Losses on a CUDA device: the numbers and the gradients of the CPU."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.profiler import ProfilerActivity, profile

from rl_layout.testing import EndKind, trajectories
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_specs import OneHot
from rl_text import LanguageModel, flat_tokens, place_rewards, sample_completions
from rl_text.testing import TinyModel
from rl_value import (
    GAE,
    A2CLoss,
    BCLoss,
    ClipPPOLoss,
    GRPOLoss,
    HardUpdate,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    SoftUpdate,
)
from test_masked_losses import LOSSES as MASKED
from test_masked_losses import NEXT, transitions
from test_recurrent_losses import MAKERS, made, rows

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT, EndKind.TRUNCATED]


def learned(loss, batch):
    """What a loss gives and what its backward leaves on the parameters."""
    out = loss(batch)
    sum(value for key, value in out.items() if key.startswith("loss")).backward()
    slopes = {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}
    return {**{key: value.detach() for key, value in out.items()}, **slopes}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert found
    for key, value in found.items():
        assert value.device.type == DEVICE, key
        torch.testing.assert_close(value.cpu(), expected[key], rtol=2e-4, atol=2e-5)


def compared(loss, batch):
    """Check a loss against its copy on the device, given its own copy of the batch."""
    there = copy.deepcopy(loss).to(DEVICE)
    on_device = batch.to(DEVICE)
    expected = learned(loss, batch)
    assert_same(learned(there, on_device), expected)
    if batch.get("td_error", None) is not None:
        assert on_device["td_error"].device.type == DEVICE
        torch.testing.assert_close(
            on_device["td_error"].cpu(), batch["td_error"], rtol=2e-4, atol=2e-5
        )
    return there


@pytest.mark.parametrize("name", MAKERS)
def test_recurrent_losses_are_those_of_the_cpu(name):
    there = compared(made(name), rows(name))
    for update in (SoftUpdate(there, tau=0.1), HardUpdate(there, value_network_update_interval=1)):
        update.step()


@pytest.mark.parametrize("name", MASKED)
def test_losses_of_masked_choices_are_those_of_the_cpu(name):
    torch.manual_seed(3)
    compared(MASKED[name](), transitions(NEXT))


def policy():
    net = TensorDictModule(MLP(2, 3, num_cells=[8]), ["observation"], ["logits"])
    return ProbabilisticActor(
        net, ["logits"], spec=OneHot(3), distribution_class=OneHotCategorical, return_log_prob=True
    )


def critic():
    return ValueOperator(MLP(2, 1, num_cells=[8]), ["observation"])


ON_POLICY = {
    "PPOLoss": lambda: PPOLoss(policy(), critic()),
    "ClipPPOLoss": lambda: ClipPPOLoss(policy(), critic(), normalize_advantage=True),
    "KLPENPPOLoss": lambda: KLPENPPOLoss(policy(), critic()),
    "A2CLoss": lambda: A2CLoss(policy(), critic()),
    "ReinforceLoss": lambda: ReinforceLoss(policy(), critic()),
    "BCLoss": lambda: BCLoss(policy()),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_policy_losses_are_those_of_the_cpu(name):
    torch.manual_seed(4)
    loss = ON_POLICY[name]()
    batch = trajectories([5, 7, 3, 9], KINDS)
    batch["next", "reward"] = torch.randn(len(batch), 1)
    batch["action"] = nn.functional.one_hot(torch.randint(3, (len(batch),)), 3).bool()
    with torch.no_grad():
        seen = policy()(batch.clone())
        batch["sample_log_prob"] = seen["sample_log_prob"].clone()
        batch["logits"] = seen["logits"].clone()
        if name != "BCLoss":
            GAE(gamma=0.9, lmbda=0.8, value_network=critic())(batch)
    compared(loss, batch)


def test_completions_and_their_loss_stay_on_the_device():
    model = TinyModel(12).to(DEVICE)
    batch = sample_completions(
        model, [[5, 6], [7]], max_new_tokens=4, eos_token_id=1, num_samples=3
    )
    assert batch["action"].device.type == DEVICE
    scored = place_rewards(batch, torch.arange(6.0))
    assert scored["next", "reward"].device.type == DEVICE
    scored["advantage"] = torch.randn(len(scored), 1, device=DEVICE)
    loss = GRPOLoss(LanguageModel(model))
    here = copy.deepcopy(loss).cpu()
    expected = learned(here, scored.cpu())
    assert_same(learned(loss, scored), expected)
    assert flat_tokens([[1, 2]], [[3]]).to(DEVICE)["input_ids"].device.type == DEVICE


def test_advantages_of_plain_rows_run_in_the_kernels_of_one_pass():
    net = TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])
    batch = trajectories([30, 20]).to(DEVICE)
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=net).to(DEVICE)
    estimator(batch.clone())  # compiles
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        estimator(batch)
        torch.cuda.synchronize()
    assert any("gae_chunks" in event.key for event in seen.key_averages())
