import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    ProbabilisticTensorDictModule,
    set_interaction_type,
)
from torch import distributions as torch_dist
from torch.testing import assert_close

from rl_policies import (
    IndependentNormal,
    MaskedCategorical,
    OneHotCategorical,
    OneHotOrdinal,
    Ordinal,
    SamplingModule,
    TanhNormal,
    TruncatedNormal,
)
from rl_specs import Bounded, Categorical, Composite, OneHot, Unbounded

KINDS = [InteractionType.RANDOM, InteractionType.MODE, InteractionType.DETERMINISTIC]


def normal_rows():
    return TensorDict({"loc": torch.randn(5, 3), "scale": torch.rand(5, 3) + 0.5}, [5])


@pytest.mark.parametrize("kind", [*KINDS, InteractionType.MEAN, InteractionType.MEDIAN])
@pytest.mark.parametrize("distribution", [IndependentNormal, TanhNormal])
def test_module_step_and_tensordict_agree(kind, distribution):
    options = {"distribution_class": distribution, "return_log_prob": True}
    module = SamplingModule(["loc", "scale"], **options, n_empirical_estimate=7)
    stock = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], **options, n_empirical_estimate=7
    )
    batch, found = normal_rows(), []
    with set_interaction_type(kind):
        for call in (
            lambda: stock(batch.clone()).select("action", "action_log_prob").values(),
            lambda: module(batch.clone()).select("action", "sample_log_prob").values(),
            lambda: module.step(batch["loc"], batch["scale"]),
        ):
            torch.manual_seed(1)
            found.append(tuple(call()))
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_interaction_type_selects_sample_mode_or_mean(kind):
    module = SamplingModule(["logits"], distribution_class=OneHotCategorical)
    logits = torch.tensor([[2.0, 1.9]]).expand(300, 2)
    with set_interaction_type(kind):
        shares = module.step(logits)[0].double().mean(0)
    assert (shares[0] == 1) == (kind is not InteractionType.RANDOM)


@pytest.mark.parametrize("has_gradient", [True, False])
@pytest.mark.parametrize("distribution", [torch_dist.Categorical, MaskedCategorical, Ordinal])
def test_numbers_of_choices_have_no_mean(distribution, has_gradient):
    given = {"logits": torch.zeros(5, 3), "mask": torch.ones(5, 3, dtype=torch.bool)}
    names = {Ordinal: ["scores"], MaskedCategorical: ["logits", "mask"]}.get(distribution)
    batch = TensorDict({"scores": given["logits"], **given}, [5])
    module = SamplingModule(names or ["logits"], distribution_class=distribution)
    with set_interaction_type("mean"), torch.set_grad_enabled(has_gradient):
        for call in (module, lambda batch: module.step(*[batch[key] for key in module.in_keys])):
            with pytest.raises(NotImplementedError, match=f"of a {distribution.__name__} have no"):
                call(batch.clone())


def test_default_interaction_type_applies_when_none_is_set():
    logits = torch.zeros(300, 2)
    shares = [
        SamplingModule(
            ["logits"], distribution_class=OneHotCategorical, default_interaction_type=kind
        )
        .step(logits)[0][:, 0]
        .double()
        .mean()
        for kind in ("random", "deterministic")
    ]
    assert 0.3 < shares[0] < 0.7
    assert shares[1] == 1


def test_argument_names_may_differ_from_keys():
    keys = {"logits": ("head", "scores"), "mask": "allowed"}
    module = SamplingModule(keys, "move", distribution_class=OneHotCategorical)
    batch = TensorDict({"head": {"scores": torch.tensor([[0.0, 9.0]])}}, [1])
    batch["allowed"] = torch.tensor([[True, False]])
    assert module(batch)["move"].tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("distribution", "name"), [(OneHotCategorical, "logits"), (OneHotOrdinal, "scores")]
)
def test_one_hot_samples_have_the_dtype_of_the_spec(distribution, name):
    for dtype in (torch.bool, torch.float32):
        spec = Composite(action=OneHot(4, dtype=dtype))
        module = SamplingModule([name], spec=spec, distribution_class=distribution)
        assert spec["action"].is_in(module.step(torch.zeros(5, 4))[0])


def test_log_prob_of_a_stored_sample():
    module = SamplingModule(["loc", "scale"], distribution_class=IndependentNormal)
    batch = normal_rows().set("action", torch.randn(5, 3))
    by_hand = torch_dist.Normal(batch["loc"], batch["scale"]).log_prob(batch["action"]).sum(-1)
    assert_close(module.log_prob(batch), by_hand)


def test_generator_and_several_samples_need_a_tensordict():
    module = SamplingModule(
        ["loc", "scale"], distribution_class=IndependentNormal, num_samples=4, generator=3
    )
    batch = normal_rows()
    with set_interaction_type(InteractionType.RANDOM):
        assert module(batch)["action"].shape == (4, 5, 3)
        with pytest.raises(TypeError, match="call the module"):
            module.step(batch["loc"], batch["scale"])


def test_composite_distributions_are_left_to_tensordict():
    module = SamplingModule(
        ["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {"move": OneHotCategorical, "push": IndependentNormal}
        },
        return_log_prob=True,
    )
    params = {"move": {"logits": torch.zeros(5, 3)}, "push": dict(normal_rows().items())}
    batch = module(TensorDict({"params": params}, [5]))
    assert batch["move"].shape == (5, 3)
    assert batch["push_log_prob"].shape == (5,)
    assert module.log_prob(batch)["move_log_prob"].shape == (5,)


def test_missing_parameter_error_names_the_key():
    module = SamplingModule(["loc", "scale"], distribution_class=IndependentNormal)
    with pytest.raises(KeyError, match="'scale' is missing: there are loc"):
        module(normal_rows().exclude("scale"))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"in_keys": ["probabilities"]}, TypeError, r"no argument \['probabilities'\]"),
        ({"spec": Categorical(3)}, TypeError, "needs a OneHot spec: got Categorical"),
        ({"spec": Composite(move=OneHot(3))}, KeyError, "no 'action'"),
        (
            {"distribution_class": TanhNormal, "in_keys": ["loc", "scale"], "spec": OneHot(3)},
            TypeError,
            "floating-point .* torch.bool",
        ),
        (
            {
                "distribution_class": TanhNormal,
                "in_keys": ["loc", "scale"],
                "spec": Bounded(-0.5, 0.5, shape=(3,)),
                "distribution_kwargs": {"low": -1.0, "high": 0.5},
            },
            ValueError,
            r"from -1.0 to 0.5, outside of the spec. Pass distribution_kwargs",
        ),
        (
            {
                "distribution_class": TruncatedNormal,
                "in_keys": ["loc", "scale"],
                "spec": Bounded(-0.5, 0.5, shape=(3,)),
                "distribution_kwargs": {"low": -1.0, "high": 1.0},
            },
            ValueError,
            r"TruncatedNormal draws from -1.0 to 1.0, outside of the spec",
        ),
        (
            {"distribution_class": OneHotOrdinal, "in_keys": ["scores"], "spec": Categorical(3)},
            TypeError,
            "OneHotOrdinal needs a OneHot spec: got Categorical",
        ),
    ],
)
def test_constructor_raises_for_a_spec_of_another_kind(kwargs, error, message):
    options = {"in_keys": ["logits"], "distribution_class": OneHotCategorical, **kwargs}
    with pytest.raises(error, match=message):
        SamplingModule(**options)


@pytest.mark.parametrize("kind", [TanhNormal, TruncatedNormal])
def test_bounds_from_the_spec_fit(kind):
    spec = Bounded(-0.5, 2.0, shape=(3,))
    module = SamplingModule(
        ["loc", "scale"],
        spec=spec,
        distribution_class=kind,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        default_interaction_type="random",
    )
    assert spec.is_in(module.step(9 * torch.randn(50, 3), torch.ones(50, 3))[0])


@pytest.mark.parametrize("kind", [TanhNormal, TruncatedNormal])
@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (Bounded(-2.0, 2.0, shape=(3,)), -2, 2),
        (Bounded(-2.0, 2.0, shape=(7, 3)), -2, 2),  # seven environments
        (Bounded(torch.tensor([0.0, -1.0, 2.0]), torch.tensor([1.0, 1.0, 9.0])), None, None),
    ],
)
def test_default_bounds_are_those_of_the_spec(kind, spec, low, high):
    module = SamplingModule(["loc", "scale"], spec=spec, distribution_class=kind)
    dist = module.distribution(torch.zeros(50, 3), torch.ones(50, 3))
    wanted = (spec.space.low, spec.space.high) if low is None else (low, high)
    for found, bound in zip((dist.low, dist.high), wanted, strict=True):
        assert (torch.as_tensor(found).expand(3) == torch.as_tensor(bound)).all()
    with set_interaction_type(InteractionType.RANDOM), torch.no_grad():
        drawn = module.step(9 * torch.randn(50, 3), torch.ones(50, 3))[0]
    assert (drawn >= spec.space.low.reshape(-1, 3)[0]).all()
    assert (drawn <= spec.space.high.reshape(-1, 3)[0]).all()


def test_infinite_bounds_of_the_spec_are_ignored():
    spec = Bounded(-2.0, torch.inf, shape=(3,))
    module = SamplingModule(["loc", "scale"], spec=spec, distribution_class=TanhNormal)
    dist = module.distribution(torch.zeros(5, 3), torch.ones(5, 3))
    assert (dist.low, dist.high) == (-1, 1)


WIDTHS = torch.tensor([1.0, 2.0])[:, None].expand(2, 3)


@pytest.mark.parametrize("kind", [TanhNormal, TruncatedNormal])
@pytest.mark.parametrize(
    "spec",
    [
        Bounded(-WIDTHS, WIDTHS),
        torch.stack([Bounded(-1.0, 1.0, shape=(3,)), Bounded(-2.0, 2.0, shape=(3,))]),
    ],
    ids=["rows", "stack"],
)
def test_bounds_that_differ_by_environment_must_be_given(spec, kind):
    def made(**bounds):
        return SamplingModule(
            ["loc", "scale"], spec=spec, distribution_class=kind, distribution_kwargs=bounds
        )

    for bounds in ({}, {"low": -1.0}):
        with pytest.raises(ValueError, match=r"'action' differ from environment to environment"):
            made(**bounds)
    with pytest.raises(ValueError, match=r"draws from -2.0 to 2.0, outside of the spec"):
        made(low=-2.0, high=2.0)
    assert made(low=-1.0, high=1.0).distribution(torch.zeros(2, 3), torch.ones(2, 3)).high == 1
    each = made(low=-WIDTHS, high=WIDTHS)
    with set_interaction_type(InteractionType.RANDOM):
        (drawn,) = each.step(9 * torch.randn(200, 2, 3), torch.ones(200, 2, 3))
    assert spec.is_in(drawn)
    assert drawn[:, 0].abs().max() <= 1 < drawn[:, 1].abs().max()


def test_explicit_bounds_inside_the_spec_are_kept():
    module = SamplingModule(
        ["loc", "scale"],
        spec=Bounded(-2.0, 2.0, shape=(3,)),
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -0.5},
    )
    assert module.distribution_kwargs == {"low": -0.5, "high": 2.0}


@pytest.mark.parametrize(
    ("spec", "distribution", "parameter", "error", "message"),
    [
        (OneHot(3), OneHotCategorical, torch.zeros(5, 4), ValueError, r"\(3,\) .* got \(5, 4\)"),
        (
            Categorical(3),
            torch_dist.Categorical,
            torch.zeros(5, 4),
            ValueError,
            "3 choices .* scores for 4",
        ),
        (Categorical(3), Ordinal, torch.zeros(5, 4), ValueError, "3 choices .* scores for 4"),
        (
            Unbounded(shape=(4,)),
            torch_dist.OneHotCategorical,
            torch.zeros(5, 4).double(),
            TypeError,
            "must be torch.float32 by its spec: got torch.float64",
        ),
    ],
)
def test_sample_of_another_form_raises(spec, distribution, parameter, error, message):
    name = "scores" if distribution is Ordinal else "logits"
    module = SamplingModule([name], spec=spec, distribution_class=distribution)
    with pytest.raises(error, match=message):
        module.step(parameter)


def test_safe_projects_samples_and_scores_the_projection():
    spec, loc = Bounded(-1, 1, shape=(3,)), torch.tensor([[5.0, 0.0, -5.0]]).expand(4, 3)
    module = SamplingModule(
        ["loc", "scale"],
        spec=spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
        safe=True,
    )
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            action, log_prob = module.step(loc, torch.full((4, 3), 0.1))
        assert spec.is_in(action[0])
        assert action[:, 0].tolist() == [1] * 4
        wanted = IndependentNormal(loc, torch.full((4, 3), 0.1)).log_prob(action)
        assert torch.equal(log_prob, wanted)


def test_safe_allows_bounds_outside_the_spec_and_needs_a_spec():
    wide = {"low": -2.0, "high": 2.0}
    names = ["loc", "scale"]
    spec = Bounded(-1, 1, shape=(3,))
    with pytest.raises(ValueError, match="outside of the spec"):
        SamplingModule(names, spec=spec, distribution_class=TanhNormal, distribution_kwargs=wide)
    module = SamplingModule(
        names, spec=spec, distribution_class=TanhNormal, distribution_kwargs=wide, safe=True
    )
    assert module.step(torch.full((4, 3), 9.0), torch.ones(4, 3))[0].tolist() == [[1.0] * 3] * 4
    with pytest.raises(ValueError, match="pass spec"):
        SamplingModule(names, distribution_class=TanhNormal, safe=True)


def test_indices_are_drawn_in_the_dtype_of_the_spec():
    spec = Categorical(3, dtype=torch.int32)
    module = SamplingModule(["logits"], spec=spec, distribution_class=torch_dist.Categorical)
    with torch.no_grad(), set_interaction_type(InteractionType.RANDOM):
        for call in (module.step, module.step_calls()[0][0]):
            assert call(torch.zeros(5, 3))[0].dtype == torch.int32
