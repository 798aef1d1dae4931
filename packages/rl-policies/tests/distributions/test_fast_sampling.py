from __future__ import annotations

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch import nn
from torch.distributions import Categorical

from rl_policies import (
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    SamplingModule,
    TanhNormal,
)
from rl_policies.distributions.fast_sampling import FEW, can_draw, direct_draw
from rl_specs import Bounded

LOW, HIGH = torch.tensor([-1.9, 0.0, 5.0]), torch.tensor([0.8, 1.0, 7.0])
VECTORS = ["loc", "scale"]
CASES = [
    (OneHotCategorical, ["logits"], {}),
    (OneHotCategorical, ["logits"], {"dtype": torch.bool}),
    (Categorical, ["logits"], {}),
    (IndependentNormal, VECTORS, {}),
    (TanhNormal, VECTORS, {}),
    (TanhNormal, VECTORS, {"low": -1.9, "high": 0.8}),
    (TanhNormal, VECTORS, {"low": LOW, "high": HIGH}),
    (TanhNormal, VECTORS, {"high": HIGH}),
]


def parameters(names, dtype, rows=(5, 4)):
    torch.manual_seed(1)
    found = [torch.randn(*rows, 3, dtype=dtype) * 3, torch.rand(*rows, 3, dtype=dtype) + 0.1]
    if names == ["logits"]:
        found[0][..., 1] = -torch.inf
    return found[: len(names)]


def assert_same_log_prob(kind, found, wanted):
    # torch's Categorical subtracts a logsumexp, where log_softmax rounds once
    eps = 4 * torch.finfo(found.dtype).eps if kind is Categorical else 0.0
    torch.testing.assert_close(found, wanted, rtol=eps, atol=eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, FEW, FEW + 1])
@pytest.mark.parametrize(
    ("kind", "kwargs"), [(OneHotCategorical, {"dtype": torch.bool}), (Categorical, {})]
)
def test_one_row_is_drawn_as_a_row_among_others(kind, kwargs, count, dtype):
    draw, logits = direct_draw(kind, ["logits"], kwargs), torch.randn(30, count, dtype=dtype)
    for seed, row in enumerate(3 * logits):
        torch.manual_seed(seed)
        found, after = draw(row), torch.get_rng_state()
        torch.manual_seed(seed)
        wanted = draw(row[None])
        assert torch.equal(after, torch.get_rng_state())
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [(5, 4), (5,), ()])
@pytest.mark.parametrize(("kind", "names", "kwargs"), CASES)
def test_fast_samples_equal_those_of_the_distribution(kind, names, kwargs, rows, dtype):
    given = parameters(names, dtype, rows)
    torch.manual_seed(7)
    sample, log_prob = direct_draw(kind, names, kwargs)(*given)
    torch.manual_seed(7)
    dist = kind(**dict(zip(names, given, strict=True)), **kwargs)
    wanted = dist.rsample() if dist.has_rsample else dist.sample()
    assert torch.equal(sample, wanted)
    assert sample.dtype == wanted.dtype
    assert_same_log_prob(kind, log_prob, dist.log_prob(wanted))
    assert log_prob.shape == rows


@pytest.mark.parametrize(
    ("kind", "names", "kwargs"),
    [
        (OneHotCategorical, ["probs"], {}),
        (OneHotCategorical, ["logits", "mask"], {}),
        (OneHotCategorical, ["logits"], {"validate_args": True}),
        (Categorical, ["logits"], {"validate_args": False}),
        (IndependentNormal, ["scale", "loc"], {}),
        (IndependentNormal, VECTORS, {"event_dim": 2}),
        (TanhNormal, VECTORS, {"tanh_loc": True}),
        (TanhNormal, VECTORS, {"upscale": 2.0}),
        (torch.distributions.Normal, VECTORS, {}),
    ],
)
def test_fast_sampling_leaves_special_cases_to_the_distribution(kind, names, kwargs):
    assert direct_draw(kind, names, kwargs) is None


def test_crossed_bounds_raise():
    with pytest.raises(ValueError, match="low must be below high"):
        direct_draw(TanhNormal, VECTORS, {"low": 1.0, "high": 0.0})


def test_can_draw_rejects_parameters_of_other_forms():
    wide, x = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, 3)
    with torch.no_grad():
        assert can_draw(x, x)
        assert not can_draw(x, wide)
        assert not can_draw(x, x[0])
        assert not can_draw(x.half())
        assert not can_draw(x.long())
        assert not can_draw(torch.tensor(0.0))
    assert not can_draw(x, x)


@pytest.mark.parametrize(("kind", "names", "kwargs"), CASES)
def test_actions_are_equal_with_and_without_gradient(kind, names, kwargs):
    module = SamplingModule(
        names,
        distribution_class=kind,
        distribution_kwargs=kwargs,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    given = parameters(names, torch.float32)
    torch.manual_seed(3)
    slow = module.step(*given)
    with torch.no_grad():
        torch.manual_seed(3)
        fast = module.step(*given)
    assert torch.equal(slow[0], fast[0])
    assert_same_log_prob(kind, fast[1], slow[1])


def test_gradients_reach_the_parameters_when_enabled():
    module = SamplingModule(VECTORS, distribution_class=TanhNormal, return_log_prob=True)
    loc, scale = torch.zeros(5, 3, requires_grad=True), torch.ones(5, 3)
    with set_interaction_type(InteractionType.RANDOM):
        sample, log_prob = module.step(loc, scale)
    (sample.sum() + log_prob.sum()).backward()
    assert loc.grad.abs().sum() > 0


def test_wrong_number_of_parameters_raises():
    module = SamplingModule(VECTORS, distribution_class=IndependentNormal)
    x = torch.ones(5, 3)
    with set_interaction_type(InteractionType.RANDOM), torch.no_grad():
        with pytest.raises(TypeError, match=r"one tensor for each of .*: got 1"):
            module.step(x)
        with pytest.raises(TypeError, match=r"one tensor for each of .*: got 3"):
            module.step(x, x, x)


def test_nan_logits_raise_with_torch_categorical():
    net = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(net, ["logits"], distribution_class=Categorical)
    observation = torch.tensor([[0.0, torch.nan]])
    with (
        set_interaction_type(InteractionType.RANDOM),
        torch.no_grad(),
        pytest.raises(RuntimeError, match="nan"),
    ):
        actor.step(observation)


def test_rounding_never_passes_a_bound():
    draw = direct_draw(TanhNormal, VECTORS, {"low": -1.9, "high": 0.8})
    sample, log_prob = draw(torch.tensor([[50.0], [-50.0]]), torch.full((2, 1), 1e-3))
    assert torch.equal(sample, torch.tensor([[0.8], [-1.9]]))
    assert log_prob.isfinite().all()


def looped(module, *given):
    """What a loop makes of it, which asks for its calls once: they see the same form twice."""
    ((call, in_keys, out_keys),) = module.step_calls()
    assert (in_keys, out_keys) == (module.in_keys, module.out_keys)
    return [call(*given) for _ in range(3)]


@pytest.mark.parametrize("log_prob", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("default", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
@pytest.mark.parametrize(("kind", "names", "kwargs"), CASES)
def test_step_calls_equal_step(kind, names, kwargs, default, dtype, log_prob):
    module = SamplingModule(
        names,
        distribution_class=kind,
        distribution_kwargs=kwargs,
        return_log_prob=log_prob,
        default_interaction_type=default,
    )
    given = [one.to(dtype) for one in parameters(names, torch.float32)]
    with torch.no_grad():
        torch.manual_seed(3)
        found = looped(module, *given)
        torch.manual_seed(3)
        wanted = [module.step(*given) for _ in range(3)]
    assert all(
        torch.equal(one, other)
        for a, b in zip(found, wanted, strict=True)
        for one, other in zip(a, b, strict=True)
    )


def test_step_calls_check_parameters_whose_form_changes():
    module = SamplingModule(
        VECTORS,
        distribution_class=IndependentNormal,
        spec=Bounded(-1, 1, shape=(3,)),
        default_interaction_type=InteractionType.RANDOM,
    )
    ((call, *_),) = module.step_calls()
    x = torch.ones(5, 3)
    with torch.no_grad():
        assert call(x, x)[0].shape == call(x, x)[0].shape == (5, 3)
        assert call(x[:2], x[:2])[0].shape == (2, 3)
        for _ in range(2):  # what was refused is refused again
            with pytest.raises(ValueError, match=r"must end in shape \(3,\)"):
                call(x[:, :2], x[:, :2])
            with pytest.raises(TypeError, match="float32 by its spec"):
                call(x[:2].double(), x[:2].double())
        assert call(x, x[0])[0].shape == (5, 3)  # only the distribution can broadcast


def test_step_calls_follow_interaction_type_and_grad_mode():
    module = SamplingModule(VECTORS, distribution_class=IndependentNormal)
    ((call, *_),) = module.step_calls()
    loc, scale = torch.zeros(5, 3), torch.ones(5, 3, requires_grad=True)
    for _ in range(2):
        assert torch.equal(call(loc, scale)[0], loc)
        with set_interaction_type(InteractionType.RANDOM):
            with torch.no_grad():
                drawn = [call(loc, scale)[0] for _ in range(2)]
            assert not any(one.requires_grad or torch.equal(one, loc) for one in drawn)
            assert call(loc, scale)[0].requires_grad
