from __future__ import annotations

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch.testing import assert_close

from rl_policies import (
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    ProbabilisticActor,
)
from rl_specs import OneHot


def test_masked_choice_is_never_drawn_and_keeps_gradients_finite():
    torch.manual_seed(0)
    logits = torch.randn(5, 4, requires_grad=True)
    mask = torch.rand(5, 4) < 0.6
    mask[:, 1] = True
    dist = MaskedCategorical(logits, mask=mask)
    drawn = dist.sample((500,))
    assert mask.expand(500, 5, 4).gather(-1, drawn[..., None]).all()
    vectors = OneHotCategorical(logits, mask=mask)
    assert torch.equal(dist.log_prob(drawn), vectors.log_prob(torch.eye(4)[drawn]))
    (dist.entropy().sum() + dist.log_prob(dist.mode).sum()).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()
    wide = dist.expand((3, 5))
    assert wide.sample().shape == wide.entropy().shape == (3, 5)
    assert torch.equal(dist.deterministic_sample, dist.mode)


def test_masked_choice_with_probs_is_never_drawn():
    dist = MaskedCategorical(probs=torch.tensor([0.2, 0.3, 0.5]), mask=torch.tensor([1, 0, 1]) > 0)
    assert_close(dist.probs, torch.tensor([2 / 7, 0, 5 / 7]))
    with pytest.raises(TypeError, match="must be bool"):
        MaskedCategorical(torch.zeros(3), mask=torch.ones(3))
    with pytest.raises(ValueError, match="leave no choice"):
        MaskedCategorical(torch.zeros(3), mask=torch.zeros(3).bool(), validate_args=True)


def test_one_hot_samples_follow_the_mask():
    torch.manual_seed(0)
    logits, mask = torch.randn(5, 4), torch.rand(5, 4) < 0.6
    mask[:, 1] = True
    net = TensorDictModule(lambda x, m: (x, m), ["observation", "allowed"], ["logits", "mask"])
    actor = ProbabilisticActor(
        net,
        ["logits", "mask"],
        spec=OneHot(4),
        distribution_class=MaskedOneHotCategorical,
        return_log_prob=True,
    )
    with set_interaction_type(InteractionType.RANDOM):
        *_, action, log_prob = actor.step(logits, mask)
    assert action.dtype == torch.bool  # that of the spec
    assert (action & ~mask).sum() == 0
    assert torch.equal(log_prob, OneHotCategorical(logits, mask=mask).log_prob(action))
    wide = MaskedOneHotCategorical(logits, mask=mask).expand((3, 5))
    assert (wide.sample().bool() & ~mask).sum() == 0


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical, OneHotCategorical])
@pytest.mark.parametrize("shape", [(4,), (7, 3), (2, 1), ()])
def test_mask_of_another_shape_is_named(kind, shape):
    with pytest.raises(ValueError, match=r"the mask must .* \(2, 3\).*: got"):
        kind(torch.zeros(2, 3), mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
@pytest.mark.parametrize("mask", [None, [True, False, True]])
def test_mask_that_is_no_tensor_is_named(kind, mask):
    with pytest.raises(
        TypeError, match=f"the mask must be a bool tensor: got {type(mask).__name__}"
    ):
        kind(torch.zeros(2, 3), mask=mask)


def test_missing_mask_raises():
    for kind in (MaskedCategorical, MaskedOneHotCategorical):
        with pytest.raises(TypeError, match="mask"):
            kind(torch.zeros(3))
