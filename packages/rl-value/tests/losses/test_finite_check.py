import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout import keys
from rl_layout.synthetic import trajectories
from rl_value import ClipPPOLoss, DQNLoss


def prepared():
    torch.manual_seed(2)
    batch = trajectories([3, 4])
    batch["action"] = batch["action"].squeeze(-1)
    batch["sample_log_prob"] = torch.full((7,), 1 / 3).log()
    batch["advantage"] = torch.randn(7, 1)
    batch["value_target"] = torch.randn(7, 1)
    return batch


def clipped(**settings):
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical),
    )
    critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
    return ClipPPOLoss(actor, critic, **settings)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("key", ["sample_log_prob", "advantage", "value_target"])
def test_a_loss_names_the_entry_that_is_not_finite(key, number):
    batch = prepared()
    batch[key][2] = -number
    with pytest.raises(
        ValueError, match=rf"'{key}' is not finite in 1 of 7 steps, first in \(2,\)"
    ):
        clipped()(batch)


def test_what_is_read_is_named_before_what_is_estimated_from_it():
    batch = prepared().exclude("advantage", "value_target")
    batch["next", "reward"][5] = torch.nan
    with pytest.raises(ValueError, match=r"\('next', 'reward'\) is not finite in 1 of 7 steps"):
        clipped()(batch)


def test_a_parameter_that_is_not_finite_is_named():
    loss = clipped()
    loss.critic_network.module.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"loss_critic is NaN .* 1 parameters .*'critic_network"):
        loss(prepared())


def test_numbers_that_ran_over_are_told_from_inputs_that_are_not_finite():
    batch = prepared()
    batch["sample_log_prob"].fill_(-1e4)
    batch["advantage"].fill_(-1.0)
    with pytest.raises(ValueError, match="all that it reads is finite, so numbers ran over"):
        clipped()(batch)


def test_steps_that_do_not_count_may_hold_anything():
    batch = prepared()
    batch[keys.MASK] = torch.tensor([True] * 6 + [False])
    for key in ("advantage", "value_target", "sample_log_prob"):
        batch[key][6] = torch.nan
    assert clipped()(batch)["loss_objective"].isfinite()
    batch["advantage"][0] = torch.nan
    with pytest.raises(ValueError, match="'advantage' is not finite in 1 of 6 steps"):
        clipped()(batch)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_q_learning_is_checked(reduction):
    network = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    batch = prepared()
    batch["next", "reward"][1] = torch.inf
    loss = DQNLoss(network, action_space="categorical", reduction=reduction)
    with pytest.raises(ValueError, match=r"\('next', 'reward'\) is not finite"):
        loss(batch)


def test_the_check_is_a_choice_and_compiled_code_does_not_look():
    batch = prepared()
    batch["advantage"][2] = torch.nan
    assert clipped(check_finite=False)(batch)["loss_objective"].isnan()
    compiled = torch.compile(clipped(), backend="eager", fullgraph=True)
    assert compiled(batch)["loss_objective"].isnan()
    with pytest.raises(TypeError, match="check_finite: expected True, False or None"):
        clipped(check_finite="yes")
