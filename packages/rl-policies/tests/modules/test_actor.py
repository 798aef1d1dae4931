import copy
import io

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import distributions as torch_dist
from torch import nn
from torch.testing import assert_close

from rl_policies import (
    Actor,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from rl_specs import Bounded, Categorical, Composite, OneHot


def network(outputs=4):
    return TensorDictModule(nn.Linear(3, outputs), in_keys=["observation"], out_keys=["logits"])


def one_hot_actor(net=None, **kwargs):
    options = {"in_keys": ["logits"], "distribution_class": OneHotCategorical}
    return ProbabilisticActor(net or network(), **{**options, "return_log_prob": True, **kwargs})


def tanh_actor(**kwargs):
    net = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    options = {"in_keys": ["loc", "scale"], "distribution_class": TanhNormal}
    return ProbabilisticActor(module, **options, return_log_prob=True, **kwargs)


def rows(count=5):
    return TensorDict({"observation": torch.randn(count, 3)}, [count])


def random_interaction():
    return set_interaction_type(InteractionType.RANDOM)


@pytest.mark.parametrize("make", [one_hot_actor, tanh_actor])
@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.MODE])
def test_module_step_and_tensordict_agree(make, kind):
    actor, batch, found = make(), rows(), []
    stock = ProbabilisticTensorDictSequential(*actor.module)
    with set_interaction_type(kind):
        for call in (
            lambda: stock(batch.clone()).select(*actor.out_keys),
            lambda: actor(batch.clone()).select(*actor.out_keys),
            lambda: dict(zip(actor.out_keys, actor.step(batch["observation"]), strict=True)),
        ):
            torch.manual_seed(2)
            found.append(dict(call().items()))
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_actor_outputs_have_the_shapes_of_the_contract():
    spec = OneHot(4)
    with random_interaction():
        batch = one_hot_actor(spec=spec)(rows())
    assert spec.is_in(batch["action"])
    assert batch["sample_log_prob"].shape == (5,)
    by_hand = torch_dist.OneHotCategorical(logits=batch["logits"])
    assert_close(batch["sample_log_prob"], by_hand.log_prob(batch["action"].float()))


def test_torch_categorical_actions_have_the_shape_of_the_batch():
    actor = one_hot_actor(spec=Categorical(4), distribution_class=torch_dist.Categorical)
    batch = actor(rows())
    assert batch["action"].shape == batch["sample_log_prob"].shape == (5,)


def test_actor_changes_its_output_keys_only():
    batch = rows()
    before = batch.clone()
    one_hot_actor()(batch)
    assert set(batch.keys()) == {"observation", "logits", "action", "sample_log_prob"}
    assert (batch.select("observation") == before).all()


def test_actor_takes_nested_and_renamed_keys():
    net = TensorDictModule(nn.Linear(3, 4), in_keys=[("a", "obs")], out_keys=[("a", "scores")])
    actor = one_hot_actor(
        net,
        in_keys={"logits": ("a", "scores")},
        out_keys=[("a", "action")],
        log_prob_key=("a", "log_prob"),
        spec=Composite(a=Composite(action=OneHot(4))),
    )
    batch = actor(TensorDict({"a": {"obs": torch.randn(5, 3)}}, [5]))
    assert batch["a", "action"].dtype == torch.bool
    assert batch["a", "log_prob"].shape == (5,)


def test_actor_reads_a_mask_from_the_batch():
    actor = one_hot_actor(in_keys={"logits": "logits", "mask": "allowed"})
    assert actor.in_keys == ["observation", "allowed"]
    batch = rows().set("allowed", torch.tensor([[False, True, False, False]]).expand(5, 4))
    assert (actor(batch)["action"] == torch.tensor([0, 1, 0, 0])).all()


def test_get_dist_and_log_prob_serve_a_loss():
    actor, batch = one_hot_actor(), rows()
    with random_interaction(), torch.no_grad():
        actor(batch)
    stored = batch.select("observation", "action")
    dist = actor.get_dist(stored)
    assert_close(dist.log_prob(batch["action"]).detach(), batch["sample_log_prob"])
    assert_close(actor.log_prob(stored).detach(), batch["sample_log_prob"])
    dist.log_prob(batch["action"]).sum().backward()
    assert all(parameter.grad is not None for parameter in actor.parameters())


def test_get_dist_with_tensordict_out_is_left_to_tensordict():
    actor, batch, out = one_hot_actor(), rows(), TensorDict({}, [5])
    dist = actor.get_dist(batch, out)
    assert_close(dist.logits, out["logits"].log_softmax(-1))
    assert "logits" not in batch


def test_parameters_put_in_by_to_module_are_used():
    actor, batch = one_hot_actor(), rows()
    zeros = TensorDict.from_module(actor).apply(torch.zeros_like)
    with zeros.to_module(actor):
        assert_close(actor.get_dist(batch).probs, torch.full((5, 4), 0.25))


def test_actor_runs_in_a_sequence_with_a_critic():
    policy = TensorDictSequential(one_hot_actor(), ValueOperator(nn.Linear(3, 1)))
    batch = policy(rows())
    assert {"action", "sample_log_prob", "state_value"} <= set(batch.keys())


def test_actor_scores_an_action_that_its_network_writes():
    parts = (
        network(),
        TensorDictModule(
            lambda x: torch.eye(4)[x.argmin(-1)], in_keys=["logits"], out_keys=["action"]
        ),
    )
    batch = one_hot_actor(TensorDictSequential(*parts))(rows())
    assert torch.equal(batch["action"].argmax(-1), batch["logits"].argmin(-1))
    assert_close(batch["sample_log_prob"], batch["logits"].log_softmax(-1).amin(-1))


def test_last_part_of_an_actor_can_be_replaced():
    actor = one_hot_actor()
    sampling = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=OneHotCategorical
    )
    assert isinstance(actor.module[-1], ProbabilisticTensorDictModule)
    assert sampling(actor.module[0](rows()))["action"].shape == (5, 4)


def test_actor_is_saved_and_copied():
    actor, batch = one_hot_actor(spec=OneHot(4)), rows()
    wanted = actor(batch.clone())["logits"]
    assert_close(copy.deepcopy(actor)(batch.clone())["logits"], wanted)
    file = io.BytesIO()
    torch.save(actor, file)
    file.seek(0)
    assert_close(torch.load(file, weights_only=False)(batch)["logits"], wanted)


def test_default_distribution_returns_its_parameter():
    net = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["param"])
    batch = ProbabilisticActor(net, in_keys=["param"])(rows())
    assert torch.equal(batch["action"], batch["param"])


@pytest.mark.parametrize(
    ("module", "in_keys", "error", "message"),
    [
        (nn.Linear(3, 4), ["logits"], TypeError, r"got Linear. Wrap it: .*out_keys=\['logits'\]"),
        (network(), ["probs"], ValueError, r"writes \['logits'\], the distribution reads"),
        (network(), ["loc"], TypeError, r"no argument \['loc'\]"),
    ],
)
def test_parts_without_common_keys_raise(module, in_keys, error, message):
    with pytest.raises(error, match=message):
        ProbabilisticActor(module, in_keys, distribution_class=OneHotCategorical)


def test_missing_observation_error_names_the_key():
    for call in (one_hot_actor(), one_hot_actor().get_dist):
        with pytest.raises(KeyError, match="'observation' is missing: there are pixels"):
            call(TensorDict({"pixels": torch.zeros(5, 3)}, [5]))


def test_network_of_another_size_raises():
    with pytest.raises(ValueError, match=r"end in shape \(3,\) by its spec: got \(5, 4\)"):
        one_hot_actor(spec=OneHot(3))(rows())


def test_step_with_a_wrong_number_of_tensors_raises():
    with pytest.raises(TypeError, match=r"each of \['observation'\]: got 0"):
        one_hot_actor().step()


def test_deterministic_actor_writes_the_output_of_its_network():
    net, batch = nn.Linear(3, 2), rows()
    actor = Actor(net, spec=Bounded(-9, 9, shape=(2,)))
    assert_close(actor(batch)["action"], net(batch["observation"]))
    assert_close(actor.step(batch["observation"])[0], batch["action"])


def test_safe_actor_projects_in_every_way_of_calling():
    spec = Bounded(-1, 1, shape=(2,))
    actor = Actor(lambda x: 100 * x[:, :2], spec=spec, safe=True)
    batch, out = rows(), TensorDict({}, [5])
    actor(batch, tensordict_out=out)
    for action in (
        out["action"],
        actor(batch)["action"],
        actor(batch["observation"]),
        actor.step(batch["observation"])[0],
    ):
        assert spec.is_in(action)


def test_actor_may_write_more_keys_than_the_action():
    actor = Actor(lambda x: (x[:, :2], x), out_keys=["action", "hidden"])
    assert actor(rows())["hidden"].shape == (5, 3)


def test_action_of_another_shape_raises():
    with pytest.raises(TypeError, match=r"'action' must be torch.float32 by its spec"):
        Actor(nn.Linear(3, 2).double(), spec=Bounded(-1, 1, shape=(2,)))(rows().double())
    with pytest.raises(ValueError, match=r"end in shape \(4,\)"):
        Actor(nn.Linear(3, 2), spec=Bounded(-1, 1, shape=(4,)))(rows())


def test_safe_needs_a_spec():
    with pytest.raises(ValueError, match="pass spec"):
        Actor(nn.Linear(3, 2), safe=True)


def test_gradients_flow_through_a_reparametrised_action():
    actor = tanh_actor()
    with random_interaction():
        actor(rows())["action"].sum().backward()
    assert actor.module[0].module[0].weight.grad.abs().sum() > 0


def test_independent_normal_serves_an_unbounded_action():
    net = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        distribution_kwargs={"tanh_loc": True, "upscale": 2.0},
    )
    batch = actor(rows())
    assert_close(batch["action"], 2 * (batch["loc"] / 2).tanh())


@pytest.mark.parametrize("make", [one_hot_actor, tanh_actor])
def test_acting_and_scoring_can_be_compiled(make):
    actor, x = make(), torch.randn(5, 3)
    with set_interaction_type(InteractionType.MODE):
        step = torch.compile(actor.step, backend="eager", fullgraph=True)
        assert_close(step(x), actor.step(x))

    @torch.compile(backend="eager", fullgraph=True)
    def score(observation, action):
        batch = TensorDict({"observation": observation}, [5])
        return actor.get_dist(batch).log_prob(action)

    action = actor.step(x)[-2].detach()
    assert_close(
        score(x, action), actor.get_dist(TensorDict({"observation": x}, [5])).log_prob(action)
    )
