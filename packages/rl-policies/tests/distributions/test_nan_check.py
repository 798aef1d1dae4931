import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from rl_layout import set_recurrent_mode
from rl_policies import (
    IndependentNormal,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    OneHotOrdinal,
    Ordinal,
    ProbabilisticActor,
    SamplingModule,
    TanhNormal,
    TruncatedNormal,
)
from rl_policies.distributions.fast_sampling import draw_categorical, draw_one_hot
from rl_policies.distributions.nan_check import refuse_nan

NAN = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 1.0, 2.0]])
ALL = {"mask": torch.ones(3, dtype=torch.bool)}
KINDS = [
    (OneHotCategorical, {}),
    (MaskedCategorical, ALL),
    (MaskedOneHotCategorical, ALL),
    (Ordinal, {}),
    (OneHotOrdinal, {}),
]


@pytest.mark.parametrize("way", ["sample", "mode", "deterministic_sample"])
@pytest.mark.parametrize(("kind", "given"), KINDS)
def test_nan_scores_are_never_drawn_from(kind, given, way):
    def drawn(scores):
        found = getattr(kind(scores, **given), way)
        return found() if way == "sample" else found

    assert len(drawn(NAN.nan_to_num())) == 2
    with pytest.raises(RuntimeError, match="nan"):
        drawn(NAN)


def test_nan_logits_are_counted_in_rows():
    with pytest.raises(RuntimeError, match="nan, in 1 of 2 rows"):
        OneHotCategorical(NAN).sample()
    with pytest.raises(RuntimeError, match="nan, in 1 of 2 rows"):
        OneHotCategorical(probs=NAN).expand((2,)).mode  # noqa: B018 - it is computed when read


@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
@pytest.mark.parametrize("rows", [1, 2])
def test_policies_whose_logits_are_nan_do_not_act(kind, rows):
    net = TensorDictModule(torch.nn.Identity(), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    with torch.no_grad(), set_interaction_type(kind), pytest.raises(RuntimeError, match="nan"):
        actor(TensorDict({"observation": NAN[:rows]}, [rows]))


def test_a_row_whose_mask_allows_nothing_is_drawn_from_all_the_same():
    # agents that are out have no choice left, and what they do is ignored
    mask = torch.tensor([[False, False, False], [True, True, False]])
    for kind in (MaskedCategorical, MaskedOneHotCategorical):
        dist = kind(NAN.nan_to_num(), mask=mask)
        assert len(dist.sample()) == len(dist.mode) == len(dist.expand((2,)).sample()) == 2
        with pytest.raises(RuntimeError, match="in 1 of 2 rows"):
            kind(NAN.flip(0), mask=mask).sample()


@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
def test_a_batch_to_learn_from_may_hold_rows_whose_scores_are_nan(kind):
    # next observations that are missing are NaN, and losses leave these rows out
    net = TensorDictModule(torch.nn.Identity(), ["observation"], ["logits"])
    actor = ProbabilisticActor(net, ["logits"], distribution_class=OneHotCategorical)
    batch = TensorDict({"observation": NAN}, [2])
    with set_recurrent_mode(True), set_interaction_type(kind):
        drawn = actor(batch)["action"]
    assert drawn.sum(-1).tolist() == [1, 1]
    refused = pytest.raises(RuntimeError, match="in 1 of 2 rows")
    with set_recurrent_mode(False), set_interaction_type(kind), refused:
        actor(batch)


def test_infinite_and_forbidden_choices_are_no_nan():
    dist = OneHotCategorical(torch.tensor([-torch.inf, 0.0]))
    assert dist.sample().tolist() == dist.mode.tolist() == [0, 1]


@pytest.mark.parametrize("tracing", ["real", "fake"])
def test_a_tracer_finds_no_number_to_look_at(tracing):
    graph = make_fx(lambda logits: OneHotCategorical(logits).sample(), tracing_mode=tracing)(
        NAN.nan_to_num()
    )
    assert graph(NAN.nan_to_num()).sum(-1).tolist() == [1, 1]


def test_code_that_may_not_look_draws_as_before():
    assert vmap(lambda logits: (refuse_nan(logits), logits)[1])(NAN).shape == (2, 3)
    compiled = torch.compile(draw_one_hot, backend="eager", fullgraph=True)
    assert compiled(NAN, torch.int64)[0].shape == (2, 3)
    compiled = torch.compile(draw_categorical, backend="eager", fullgraph=True)
    assert compiled(NAN)[0].shape == (2,)


@pytest.mark.parametrize("bounds", [None, (-2.0, 2.0), (-1.0, 1.0)])
@pytest.mark.parametrize("scale", [-1.0, torch.nan])
def test_policies_whose_scales_are_no_scales_do_not_act(bounds, scale):
    net = TensorDictModule(
        lambda x: (x, torch.where(x > 0, scale, 1.0)), ["observation"], ["loc", "scale"]
    )
    actor = ProbabilisticActor(
        net,
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal if bounds is None else TanhNormal,
        distribution_kwargs={} if bounds is None else {"low": bounds[0], "high": bounds[1]},
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=True,
    )
    with torch.no_grad():
        assert actor.step(-torch.ones(3, 2))[-1].isfinite().all()
        with pytest.raises(RuntimeError, match=r"nan in 1 of 3 rows.*a scale is negative"):
            actor.step(torch.tensor([[-1.0, -1], [1, -1], [-1, -1]]))


@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
@pytest.mark.parametrize("distribution", [IndependentNormal, TanhNormal, TruncatedNormal])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_actions_that_are_nan_are_refused_however_they_are_made(kind, distribution, dtype):
    module = SamplingModule(["loc", "scale"], distribution_class=distribution)
    loc = torch.zeros(3, 2, dtype=dtype)
    with set_interaction_type(kind), torch.no_grad():
        assert module.step(loc, torch.ones_like(loc))[0].shape == (3, 2)
        loc[1, 0] = torch.nan
        with pytest.raises(RuntimeError, match="nan"):
            module.step(loc, torch.ones_like(loc))
        with pytest.raises(RuntimeError, match="nan"):
            module(TensorDict({"loc": loc, "scale": torch.ones_like(loc)}, [3]))
    with set_interaction_type(kind), set_recurrent_mode(True), torch.no_grad():
        module.step(loc, torch.ones_like(loc))  # rows to learn from may hold no action


def test_densities_of_drawn_actions_are_looked_at_and_those_of_modes_are_not():
    options = {"distribution_class": TruncatedNormal, "return_log_prob": True}
    module, loc = SamplingModule(["loc", "scale"], **options), torch.zeros(3, 2)
    with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
        assert not module.step(loc, torch.zeros_like(loc))[0].any()
    with torch.no_grad(), pytest.raises(RuntimeError, match="nan"):
        module.step(loc, -torch.ones_like(loc))
