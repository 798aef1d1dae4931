import copy

import pytest
import torch
from torch import distributions as torch_dist
from torch.testing import assert_close

from rl_policies import OneHotCategorical

LOGITS = torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]], dtype=torch.float64)


def law(dist: OneHotCategorical, draws: int = 60_000) -> torch.Tensor:
    """Share of draws that fell on each choice."""
    return dist.sample((draws,)).double().mean(0)


def test_log_prob_and_entropy_equal_torch():
    dist, peer = OneHotCategorical(LOGITS), torch_dist.Categorical(logits=LOGITS)
    for index in range(3):
        value = torch.eye(3, dtype=torch.int64)[[index, 2 - index]]
        assert_close(dist.log_prob(value), peer.log_prob(value.argmax(-1)))
    assert_close(dist.entropy(), peer.entropy())


def test_log_prob_by_hand():
    dist = OneHotCategorical(probs=torch.tensor([1.0, 3.0]))
    assert_close(dist.log_prob(torch.tensor([0, 1])), torch.tensor(0.75).log())


@pytest.mark.parametrize("statistic", ["log_prob", "entropy"])
def test_gradients_equal_torch(statistic):
    value = torch.tensor([[0, 1, 0], [0, 0, 1]])
    found = []
    for kind in (OneHotCategorical, torch_dist.OneHotCategorical):
        logits = LOGITS.clone().requires_grad_()
        dist = kind(logits=logits)
        out = dist.log_prob(value) if statistic == "log_prob" else dist.entropy()
        out.sum().backward()
        found.append(logits.grad)
    assert_close(*found)


def test_samples_follow_the_probabilities():
    # six standard deviations of a share of 60,000 draws are at most 0.0123
    assert_close(law(OneHotCategorical(LOGITS)), LOGITS.softmax(-1), atol=0.0123, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_the_noise(dtype):
    # in half precision noise has so few values that ties would favour the first choice
    dist = OneHotCategorical(torch.randn(300, 7).to(dtype))
    torch.manual_seed(3)
    sample = dist.sample((4,))
    torch.manual_seed(3)
    wide = dist.probs.float().expand(4, 300, 7)
    wanted = (wide / torch.empty_like(wide).exponential_()).argmax(-1)
    assert torch.equal(sample.argmax(-1), wanted)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.uint8])
def test_samples_are_one_hot_in_the_requested_dtype(dtype):
    sample = OneHotCategorical(LOGITS, dtype=dtype).sample((5, 4))
    assert sample.dtype == dtype
    assert sample.shape == (5, 4, 2, 3)
    assert (sample.double().sum(-1) == 1).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
@pytest.mark.parametrize("sample_shape", [(), (4,)])
def test_log_prob_of_a_fresh_sample_and_of_its_copy_agree(dtype, sample_shape):
    dist = OneHotCategorical(LOGITS, dtype=dtype)
    sample = dist.sample(sample_shape)
    log_prob = dist.log_prob(sample)
    assert log_prob.shape == (*sample_shape, 2)
    assert_close(log_prob, dist.log_prob(sample.clone()))


def test_log_prob_of_a_sample_changed_in_place_is_recomputed():
    dist = OneHotCategorical(LOGITS)
    sample = dist.sample()
    sample.copy_(torch.tensor([[0, 0, 1], [0, 1, 0]]))
    assert_close(dist.log_prob(sample), LOGITS.log_softmax(-1)[[0, 1], [2, 1]])


def test_forbidden_choice_is_never_drawn_and_makes_no_nan():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    logits = LOGITS.clone().requires_grad_()
    dist = OneHotCategorical(logits, mask=mask)
    assert not (dist.sample((3000,)).bool() & ~mask).any()
    allowed = LOGITS[0, [0, 2]].softmax(-1)
    assert_close(dist.entropy()[0], -(allowed * allowed.log()).sum())
    assert dist.entropy()[1] == 0
    dist.entropy().sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0


def test_probability_of_zero_has_a_finite_gradient():
    probs = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    dist = OneHotCategorical(probs=probs)
    (dist.log_prob(torch.tensor([0, 1, 0])) + dist.entropy()).backward()
    assert probs.grad.isfinite().all()
    assert dist.log_prob(torch.tensor([1, 0, 0])) == -torch.inf


def test_probs_need_not_be_normalised():
    dist = OneHotCategorical(probs=torch.tensor([[1.0, 1.0, 2.0]]))
    assert_close(dist.probs, torch.tensor([[0.25, 0.25, 0.5]]))


def test_mode_mean_and_variance():
    dist = OneHotCategorical(LOGITS, dtype=torch.bool)
    assert dist.mode.tolist() == [[False, True, False], [True, False, False]]
    assert torch.equal(dist.deterministic_sample, dist.mode)
    assert_close(dist.mean, LOGITS.softmax(-1))
    assert_close(dist.variance, torch_dist.OneHotCategorical(logits=LOGITS).variance)


def test_rsample_is_one_hot_forward_and_the_probabilities_backward():
    weight = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    logits, other = (LOGITS.clone().requires_grad_() for _ in range(2))
    sample = OneHotCategorical(logits).rsample()
    assert_close(sample.detach().round().sum(-1), torch.ones(2, dtype=torch.float64))
    (sample * weight).sum().backward()
    (other.softmax(-1) * weight).sum().backward()
    assert_close(logits.grad, other.grad)


def test_gradient_survives_acting_under_no_grad():
    logits = LOGITS.clone().requires_grad_()
    dist = OneHotCategorical(logits)
    with torch.no_grad():
        sample = dist.sample()
    dist.log_prob(sample).sum().backward()
    assert logits.grad.abs().sum() > 0


def test_expand_repeats_the_rows():
    dist = OneHotCategorical(LOGITS).expand((4, 2))
    assert dist.batch_shape == (4, 2)
    assert dist.sample().shape == (4, 2, 3)
    assert_close(dist.entropy()[3], OneHotCategorical(LOGITS).entropy())


def test_enumerate_support_lists_every_vector():
    dist = OneHotCategorical(LOGITS)
    assert dist.enumerate_support().shape == (3, 2, 3)
    total = dist.log_prob(dist.enumerate_support(expand=False)).exp().sum(0)
    assert_close(total, torch.ones(2, dtype=torch.float64))


def test_divergence_equals_torch():
    other = LOGITS.flip(-1)
    found = torch_dist.kl_divergence(OneHotCategorical(LOGITS), OneHotCategorical(other))
    peers = [torch_dist.Categorical(logits=each) for each in (LOGITS, other)]
    assert_close(found, torch_dist.kl_divergence(*peers))


def test_divergence_ignores_choices_that_both_forbid():
    mask = torch.tensor([True, False, True])
    pair = [OneHotCategorical(each, mask=mask) for each in (LOGITS, LOGITS.flip(-1))]
    assert torch_dist.kl_divergence(*pair).isfinite().all()


def test_distribution_leaves_its_inputs_unchanged():
    logits = LOGITS.clone()
    dist = copy.deepcopy(OneHotCategorical(logits, mask=torch.tensor([True, True, False])))
    dist.log_prob(dist.sample())
    assert torch.equal(logits, LOGITS)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, ValueError, "got none"),
        ({"logits": LOGITS, "probs": LOGITS}, ValueError, "got both"),
        ({"logits": torch.tensor([1, 2])}, TypeError, "int64"),
        ({"logits": [0.5, 0.5]}, TypeError, "list"),
        ({"logits": torch.tensor(1.0)}, ValueError, "scalar"),
        ({"logits": LOGITS, "mask": torch.ones(3)}, TypeError, "float32"),
        ({"logits": LOGITS * torch.nan, "validate_args": True}, ValueError, "6 of 6 entries"),
        ({"probs": -LOGITS, "validate_args": True}, ValueError, "3 of 6 entries"),
        (
            {"logits": LOGITS, "mask": torch.zeros(3, dtype=torch.bool), "validate_args": True},
            ValueError,
            "2 of 2 rows",
        ),
    ],
)
def test_one_hot_categorical_refuses_wrong_parameters(kwargs, error, message):
    with pytest.raises(error, match=message):
        OneHotCategorical(**kwargs)


def test_indices_of_choices_raise():
    with pytest.raises(ValueError, match="vectors of 3 entries: got shape \\(2,\\)"):
        OneHotCategorical(LOGITS).log_prob(torch.tensor([0, 1]))


def test_validation_raises_for_vectors_that_are_not_one_hot():
    with pytest.raises(ValueError, match="support"):
        OneHotCategorical(LOGITS, validate_args=True).log_prob(torch.ones(2, 3))
