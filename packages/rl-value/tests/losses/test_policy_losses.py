"""Losses of actors and critics, against implementations written from the papers."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions as d

from rl_layout import keys, recurrent_mode, set_recurrent_mode
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    ValueEstimators,
    VTrace,
    vtrace,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


class Modal(torch.nn.Linear):
    """A linear layer that is only ever called in recurrent mode."""

    def forward(self, x):
        assert recurrent_mode() is True
        return super().forward(x)


def linear(size):
    return Modal(2, size, dtype=torch.float64)


def discrete():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(linear(3), ["x"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=d.Categorical),
    )


def critic():
    return TensorDictModule(linear(1), ["x"], ["state_value"])


def prepared(batch):
    batch = batch.clone()
    shape = batch.batch_size
    batch["x"] = torch.randn(*shape, 2, dtype=torch.float64)
    batch["next", "x"] = torch.randn(*shape, 2, dtype=torch.float64)
    batch["next", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    batch["action"] = torch.randint(3, shape)
    batch["sample_log_prob"] = -1 - torch.rand(shape, dtype=torch.float64)
    batch["advantage"] = torch.randn(*shape, 1, dtype=torch.float64)
    batch["value_target"] = torch.randn(*shape, 1, dtype=torch.float64)
    return batch


def masked(batch):
    """Steps that do not count for each reason there is, with values that would ruin any mean."""
    batch[keys.MASK] = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 1]).bool()
    batch[keys.SHIFTED_VALID] = torch.tensor([1, 0, 1, 1, 1, 1, 1, 1, 1]).bool()
    # the third step terminated, and needs no next observation
    batch[keys.NEXT_MISSING] = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 0]).bool()
    counted = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1]).bool()
    batch["sample_log_prob"][~counted] = -1e30
    batch["advantage"][~counted] = float("nan")
    batch["value_target"][~counted] = float("inf")
    return counted


def padded(batch):
    """NaN in all that networks read of padding."""
    real = batch[keys.MASK].unsqueeze(-1)
    return batch.set("x", torch.where(real, batch["x"], float("nan")))


def flat_batch():
    return prepared(trajectories([3, 4, 2], KINDS))


def paper(kind, actor, net, batch, rows, **given):
    """Objective, entropy loss and critic loss of some rows, each by its equation."""
    x, action = batch["x"][rows], batch["action"][rows]
    with torch.no_grad():
        old = batch["sample_log_prob"][rows]
        advantage, target = batch["advantage"][rows][:, 0], batch["value_target"][rows][:, 0]
    if given.get("normalize"):
        advantage = (advantage - advantage.mean()) / advantage.std()
    log_p = (x @ actor[0].module.weight.T + actor[0].module.bias).log_softmax(-1)
    now = log_p[torch.arange(len(x)), action]
    ratio = torch.exp(now - old)
    low, high = given.get("epsilon", (0.2, 0.2))
    gain = {
        "ppo": ratio * advantage,
        "clip": torch.where(
            advantage > 0,
            torch.where(ratio > 1 + high, 1 + high, ratio) * advantage,
            torch.where(ratio < 1 - low, 1 - low, ratio) * advantage,
        ),
        "a2c": now * advantage,
    }[kind]
    entropy = -(log_p.exp() * log_p).sum(-1)
    value = (x @ net.module.weight.T + net.module.bias)[:, 0]
    error = (value - target).abs()
    critic_loss = torch.where(error < 1, error**2 / 2, error - 0.5)
    n = len(x)
    return -gain.sum() / n, -0.01 * entropy.sum() / n, critic_loss.sum() / n, ratio


@pytest.mark.parametrize(
    ("kind", "loss_class", "settings", "given"),
    [
        ("ppo", PPOLoss, {}, {}),
        ("ppo", PPOLoss, {"normalize_advantage": True}, {"normalize": True}),
        ("clip", ClipPPOLoss, {}, {}),
        ("clip", ClipPPOLoss, {"clip_epsilon": (0.1, 0.3)}, {"epsilon": (0.1, 0.3)}),
        ("a2c", A2CLoss, {}, {}),
    ],
)
@pytest.mark.parametrize("holes", [False, True])
def test_losses_and_gradients_equal_the_papers(kind, loss_class, settings, given, holes):
    batch, actor, net = flat_batch(), discrete(), critic()
    rows = masked(batch) if holes else torch.ones(9, dtype=torch.bool)
    found = loss_class(actor, net, **settings)(padded(batch) if holes else batch)
    names = ("loss_objective", "loss_entropy", "loss_critic")
    expected = paper(kind, actor, net, batch, rows, **given)[:3]
    parameters = [*actor.parameters(), *net.parameters()]
    for name, value in zip(names, expected, strict=True):
        torch.testing.assert_close(found[name], value)
        ours = torch.autograd.grad(found[name], parameters, retain_graph=True, allow_unused=True)
        theirs = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("holes", [False, True])
def test_statistics_are_over_the_steps_that_count(holes):
    batch, actor, net = flat_batch(), discrete(), critic()
    rows = masked(batch) if holes else torch.ones(9, dtype=torch.bool)
    found = ClipPPOLoss(actor, net)(batch)
    _, entropy, _, ratio = paper("clip", actor, net, batch, rows)
    target = batch["value_target"][rows]
    value = net.module.weight @ batch["x"][rows].T
    residual = target[:, 0] - value[0] - net.module.bias
    expected = {
        "kl_approx": -ratio.log().mean(),
        "clip_fraction": ((ratio > 1.2) | (ratio < 0.8)).double().mean(),
        "ESS": ratio.sum() ** 2 / (ratio**2).sum() / len(ratio),
        "max_ratio": ratio.max(),
        "mean_ratio": ratio.mean(),
        "entropy": entropy / -0.01,
        "explained_variance": 1 - residual.var() / target.var(),
    }
    for name, number in expected.items():
        torch.testing.assert_close(found[name], number.detach())
        assert not found[name].requires_grad
    assert set(found.keys()) == {*ClipPPOLoss(actor, net).out_keys, "explained_variance"}


def test_rows_of_time_count_as_the_same_steps_laid_end_to_end():
    batch = prepared(environments(2, 5, [3, 4], KINDS))
    batch[keys.MASK] = torch.rand(2, 5) < 0.7
    loss = ClipPPOLoss(discrete(), critic())
    for name, value in loss(batch).items():
        torch.testing.assert_close(value, loss(batch.reshape(-1))[name])


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss])
def test_reductions_are_mean_sum_and_none(loss_class):
    batch, actor, net = flat_batch(), discrete(), critic()
    counted = masked(batch)
    mean, total, none = (
        loss_class(actor, net, reduction=how)(batch) for how in ("mean", "sum", "none")
    )
    for name in ("loss_objective", "loss_critic", "loss_entropy"):
        torch.testing.assert_close(total[name], mean[name] * 6)
        assert none[name].shape == (9, 1)
        torch.testing.assert_close(none[name].sum(), total[name])
        assert not none[name][~counted].any()
    with pytest.raises(ValueError, match="reduction: expected 'mean', 'sum' or 'none'"):
        loss_class(actor, net, reduction="median")


@pytest.mark.filterwarnings("ignore:.*no step of this batch counts")
def test_the_mask_may_be_another_or_none():
    batch, actor, net = flat_batch(), discrete(), critic()
    batch["mine"] = torch.arange(9) < 4
    batch[keys.MASK] = torch.zeros(9, dtype=torch.bool)
    for key, rows in (("mine", batch["mine"]), (None, torch.ones(9, dtype=torch.bool))):
        found = PPOLoss(actor, net, loss_mask_key=key)(batch)
        expected = paper("ppo", actor, net, batch, rows)
        torch.testing.assert_close(found["loss_objective"], expected[0])
    nothing = PPOLoss(actor, net)(batch)
    assert nothing["loss_objective"] == nothing["loss_critic"] == 0
    batch[keys.MASK] = torch.zeros(9)
    with pytest.raises(TypeError, match=r"mask.*expected torch.bool"):
        PPOLoss(actor, net)(batch)
    with pytest.raises(KeyError, match="'other' is missing"):
        PPOLoss(actor, net, loss_mask_key="other")(batch)


def test_steps_of_frames_that_are_lost_do_not_count():
    batch, actor, net = flat_batch(), discrete(), critic()
    lost = torch.tensor([1, 1, 0, 1, 0, 0, 0, 1, 0]).bool()  # the first of each trajectory
    batch["collector", "history_missing"] = lost
    batch["advantage"][lost] = float("nan")
    found = PPOLoss(actor, net)(batch)
    for name, value in zip(
        ("loss_objective", "loss_entropy", "loss_critic"),
        paper("ppo", actor, net, batch, ~lost),
        strict=False,
    ):
        torch.testing.assert_close(found[name], value)
    batch["collector", "history_missing"] = lost.float()
    with pytest.raises(TypeError, match=r"history_missing.*expected torch.bool"):
        PPOLoss(actor, net)(batch)


@pytest.mark.filterwarnings("ignore:.*no step of this batch counts")
def test_a_batch_of_padding_leaves_the_weight_of_the_divergence():
    batch = flat_batch()
    batch["logits"] = torch.randn(9, 3, dtype=torch.float64)
    batch[keys.MASK] = torch.zeros(9, dtype=torch.bool)
    loss = KLPENPPOLoss(discrete(), critic(), beta=3.0, dtarg=1.0)
    assert loss(batch)["loss_objective"] == 0
    assert loss.beta == 3


def test_advantages_that_are_missing_are_estimated():
    batch, net = flat_batch(), critic()
    plain = batch.exclude("advantage", "value_target")
    loss = PPOLoss(discrete(), net)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.8)
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=net)(plain.clone())
    found = loss(plain)
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(plain[key], expected[key])
    torch.testing.assert_close(found["loss_objective"], loss(expected)["loss_objective"])
    loss.make_value_estimator("vtrace", gamma=0.9)
    assert isinstance(loss.value_estimator, VTrace)
    loss(batch.exclude("advantage", "value_target"))


@pytest.mark.parametrize("kind", list(ValueEstimators))
def test_every_estimator_is_made_by_its_name(kind):
    loss = A2CLoss(discrete(), critic())
    by_name = loss.make_value_estimator(kind.value, gamma=0.5).value_estimator
    by_kind = loss.make_value_estimator(kind, gamma=0.5).value_estimator
    assert type(by_name) is type(by_kind)
    assert by_kind.gamma == 0.5
    assert not any("estimator" in name for name, _ in loss.named_modules())


def test_networks_and_settings_that_cannot_be_are_refused():
    actor, net = discrete(), critic()
    with pytest.raises(TypeError, match=r"actor_network: .* has get_dist, got TensorDictModule"):
        PPOLoss(net, net)
    with pytest.raises(TypeError, match=r"actor_network: .* has get_dist"):
        VTrace(gamma=0.9, actor_network=net, value_network=net)
    with pytest.raises(TypeError, match=r"critic_network: .*got Modal. Wrap it"):
        PPOLoss(actor, net.module)
    with pytest.raises(ValueError, match=r"clip_value: expected how far .* got -0.1"):
        ClipPPOLoss(actor, net, clip_value=-0.1)
    with pytest.raises(ValueError, match=r"shifted=True .* Set one of them to False"):
        PPOLoss(actor, net, delay_value=True).make_value_estimator("gae", shifted=True)
    loss = PPOLoss(actor, net, normalize_advantage=True, normalize_advantage_exclude_dims=(5,))
    with pytest.raises(ValueError, match=r"exclude_dims=\(5,\): advantages are \[9, 1\]"):
        loss(flat_batch())


def test_an_action_with_a_dimension_too_many_is_refused():
    batch = flat_batch()
    batch["action"] = batch["action"].unsqueeze(-1)
    with pytest.raises(ValueError, match=r"'action': expected \[9\].*got \[9, 1\].*squeeze"):
        PPOLoss(discrete(), critic())(batch)


def test_a_wrong_estimator_is_refused():
    loss = A2CLoss(discrete(), critic())
    with pytest.raises(KeyError, match="there is no value estimator 'best'"):
        loss.make_value_estimator("best")
    with pytest.raises(TypeError, match="expected a ValueEstimators, got int"):
        loss.make_value_estimator(3)


def test_other_names_reach_the_estimator():
    batch, net = flat_batch(), critic()
    loss = PPOLoss(discrete(), net)
    expected = loss(batch.exclude("advantage", "value_target"))
    renamed = batch.exclude("advantage", "value_target")
    renamed.rename_key_("action", "act")
    renamed.rename_key_("sample_log_prob", "old")
    renamed.rename_key_(("next", "reward"), ("next", "gain"))
    loss.make_value_estimator()
    loss.set_keys(action="act", sample_log_prob="old", reward="gain", advantage="a")
    found = loss(renamed)
    torch.testing.assert_close(found["loss_objective"], expected["loss_objective"])
    assert renamed.get("a", None) is not None
    with pytest.raises(KeyError, match="there is no entry 'actions'"):
        loss.set_keys(actions="act")


def test_the_value_may_move_no_further_than_it_is_told():
    batch, net = flat_batch(), critic()
    batch["state_value"] = torch.randn(9, 1, dtype=torch.float64)
    value = net.module.weight @ batch["x"].T + net.module.bias
    old, target = batch["state_value"][:, 0], batch["value_target"][:, 0]
    near = old + (value[0] - old).clamp(-0.2, 0.2)
    worse = torch.maximum((value[0] - target) ** 2, (near - target) ** 2).mean()
    for settings in ({"clip_value": 0.2}, {"clip_value": True}):
        loss = ClipPPOLoss(discrete(), net, loss_critic_type="l2", **settings)
        torch.testing.assert_close(loss(batch)["loss_critic"], worse)
    with pytest.raises(KeyError, match="'state_value' is missing"):
        loss(batch.exclude("state_value"))


def test_shared_parameters_may_learn_from_the_actor_alone():
    body = linear(2)
    shared = TensorDictModule(body, ["x"], ["features"])
    actor = ProbabilisticTensorDictSequential(
        shared,
        TensorDictModule(linear(3), ["features"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=d.Categorical),
    )
    from tensordict.nn import TensorDictSequential

    net = TensorDictSequential(shared, TensorDictModule(linear(1), ["features"], ["state_value"]))
    for separate in (False, True):
        loss = PPOLoss(actor, net, separate_losses=separate)
        loss.zero_grad()
        loss(flat_batch())["loss_critic"].backward()
        assert (body.weight.grad is None) == separate
        assert net[1].module.weight.grad is not None


def continuous():
    def params(x):
        return x, x.exp()

    return ProbabilisticTensorDictSequential(
        TensorDictModule(linear(2), ["x"], ["h"]),
        TensorDictModule(params, ["h"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"],
            ["action"],
            distribution_class=lambda loc, scale: d.Independent(d.Normal(loc, scale), 1),
        ),
    )


def test_the_divergence_is_penalised_and_its_weight_adapts():
    batch, actor, net = flat_batch(), continuous(), critic()
    counted = masked(batch)
    batch["action"] = torch.randn(9, 2, dtype=torch.float64)
    batch["loc"] = torch.randn(9, 2, dtype=torch.float64)
    batch["scale"] = torch.rand(9, 2, dtype=torch.float64) + 0.5
    mean = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    ratio = batch["scale"] / mean.exp()
    moved = (batch["loc"] - mean) / mean.exp()
    kl = ((ratio**2 + moved**2 - 1) / 2 - ratio.log()).sum(-1)[counted].mean()
    kl_number = kl.item()
    plain = PPOLoss(actor, net)(batch)
    for dtarg, factor in ((kl_number / 2, 2.0), (kl_number * 2, 0.5), (kl_number, 1.0)):
        loss = KLPENPPOLoss(actor, net, beta=3.0, dtarg=dtarg)
        found = loss(batch)
        torch.testing.assert_close(found["kl"], kl.detach())
        torch.testing.assert_close(found["loss_objective"], plain["loss_objective"] + 3 * kl)
        assert found["beta"] == 3
        assert loss.beta == 3 * factor
        loss.reset()
        assert loss.beta == 3
    assert set(found.keys()) == {*loss.out_keys, "beta", "kl_approx", "explained_variance"}
    with pytest.raises(KeyError, match="'scale' is missing: the divergence"):
        loss(batch.exclude("scale"))
    with pytest.raises(ValueError, match="expected increment >= 1"):
        KLPENPPOLoss(actor, net, increment=0.5)


def test_a_distribution_without_formulas_is_sampled():
    class Opaque(d.Normal):
        def entropy(self):
            raise NotImplementedError

    batch, net = flat_batch(), critic()
    actor = continuous()
    actor[2].distribution_class = lambda loc, scale: Opaque(loc, scale)
    batch["action"] = torch.randn(9, 2, dtype=torch.float64)
    batch["sample_log_prob"] = torch.zeros(9, 2, dtype=torch.float64)
    batch["advantage"] = torch.randn(9, 2, 1, dtype=torch.float64)
    found = PPOLoss(actor, net, samples_mc_entropy=20_000)(batch)
    mean = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    exact = (mean + 0.5 + 0.5 * math.log(2 * math.pi)).mean()  # of a normal, scale exp(mean)
    torch.testing.assert_close(found["entropy"], exact.detach(), atol=0.02, rtol=0)  # 1 / √20,000


def composite():
    def params(x):
        return x[..., :3], x[..., 3:5], x[..., 5:].exp()

    keys_out = [("params", "a", "logits"), ("params", "b", "loc"), ("params", "b", "scale")]
    return ProbabilisticTensorDictSequential(
        TensorDictModule(linear(7), ["x"], ["h"]),
        TensorDictModule(params, ["h"], keys_out),
        ProbabilisticTensorDictModule(
            ["params"],
            [("act", "a"), ("act", "b")],
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": {"a": d.Categorical, "b": d.Normal},
                "name_map": {"a": ("act", "a"), "b": ("act", "b")},
            },
        ),
    )


@pytest.mark.parametrize("stored", ["one", "heads"])
def test_losses_of_composite_actions_sum_their_heads(stored):
    batch, actor, net = flat_batch().exclude("action"), composite(), critic()
    counted = masked(batch)
    batch["act"] = TensorDict(
        {"a": torch.randint(3, (9,)), "b": torch.randn(9, 2, dtype=torch.float64)}, [9]
    )
    if stored == "heads":
        old = batch["sample_log_prob"]
        batch["act", "a_log_prob"] = old / 4
        batch["act", "b_log_prob"] = torch.stack([old / 2, old / 4], -1)
        batch = batch.exclude("sample_log_prob")
    else:
        old = batch["sample_log_prob"]
    h = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    a, b = d.Categorical(logits=h[:, :3]), d.Normal(h[:, 3:5], h[:, 5:].exp())
    now = a.log_prob(batch["act", "a"]) + b.log_prob(batch["act", "b"]).sum(-1)
    gain = ((now - old).exp() * batch["advantage"][:, 0])[counted].mean()
    coefficients = {("act", "a"): 0.1, ("act", "b"): 0.3}
    found = PPOLoss(actor, net, entropy_coeff=coefficients)(batch)
    torch.testing.assert_close(found["loss_objective"], -gain)
    heads = a.entropy()[counted].mean(), b.entropy().sum(-1)[counted].mean()
    torch.testing.assert_close(found["entropy"], (heads[0] + heads[1]).detach())
    torch.testing.assert_close(found["loss_entropy"], -0.1 * heads[0] - 0.3 * heads[1])
    with pytest.raises(KeyError, match="entropy_coeff has no number for"):
        PPOLoss(actor, net, entropy_coeff={("act", "a"): 0.1})(batch)
    gone = batch.exclude("sample_log_prob", ("act", "b_log_prob"))
    with pytest.raises(KeyError, match=r"log_prob.* is missing"):
        PPOLoss(actor, net)(gone)


@pytest.mark.parametrize("stored", ["one", "heads"])
def test_vtrace_takes_composite_actions(stored):
    batch, actor, net = flat_batch().exclude("action"), composite(), critic()
    batch["act"] = TensorDict(
        {"a": torch.randint(3, (9,)), "b": torch.randn(9, 2, dtype=torch.float64)}, [9]
    )
    h = batch["x"] @ actor[0].module.weight.T + actor[0].module.bias
    a, b = d.Categorical(logits=h[:, :3]), d.Normal(h[:, 3:5], h[:, 5:].exp())
    now = a.log_prob(batch["act", "a"]) + b.log_prob(batch["act", "b"]).sum(-1)
    ratio = (now - batch["sample_log_prob"]).detach()[:, None]
    if stored == "heads":
        old = batch.pop("sample_log_prob")
        batch["act", "a_log_prob"] = old / 4
        batch["act", "b_log_prob"] = torch.stack([old / 2, old / 4], -1)
    estimator = VTrace(gamma=0.9, actor_network=actor, value_network=net)
    found = estimator(batch)
    values = batch["next", "reward"], found["state_value"], found["next", "state_value"]
    ends = batch["is_init"].roll(-1, 0)
    expected = vtrace(*values, ratio, batch["next", "terminated"], ends, gamma=0.9)
    torch.testing.assert_close((found["advantage"], found["value_target"]), expected)


def test_vtrace_reads_nothing_of_padding():
    batch, actor, net = flat_batch(), discrete(), critic()
    batch[keys.MASK] = torch.arange(9) % 4 != 1
    estimator = VTrace(gamma=0.9, actor_network=actor, value_network=net)
    expected = estimator(batch.clone())["advantage"]
    torch.testing.assert_close(estimator(padded(batch))["advantage"], expected)


def test_reinforce_is_its_equation():
    batch, actor, net = flat_batch(), discrete(), critic()
    rows = masked(batch)
    found = ReinforceLoss(actor, net)(batch)
    expected = paper("a2c", actor, net, batch, rows)
    torch.testing.assert_close(found["loss_actor"], expected[0])
    torch.testing.assert_close(found["loss_value"], expected[2])
    alone = ReinforceLoss(actor)(batch.exclude("value_target"))
    assert list(alone.keys()) == ["loss_actor"]
    torch.testing.assert_close(alone["loss_actor"], expected[0])


def test_a_delayed_critic_values_next_states():
    net = critic()
    loss = ReinforceLoss(discrete(), net, delay_value=True)
    with torch.no_grad():
        net.module.weight.mul_(3)
    batch = flat_batch().exclude("advantage", "value_target")
    expected = GAE(gamma=0.99, lmbda=0.95, value_network=net)(
        batch.clone(), target_params=TensorDict.from_module(loss.target_critic_network)
    )
    loss(batch)
    torch.testing.assert_close(batch["advantage"], expected["advantage"])
    with pytest.raises(RuntimeError, match="needs functional=True"):
        ReinforceLoss(discrete(), net, delay_value=True, functional=False)


@pytest.mark.parametrize("setting", [{"functional": True}, {"device": "cpu"}])
def test_settings_of_losses_without_effect_are_deprecated_at_the_caller(setting):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(setting))} has no effect") as caught:
        ClipPPOLoss(discrete(), critic(), **setting)
    assert caught[0].filename == __file__


def test_networks_may_be_passed_as_actor_and_critic():
    actor, net, batch = discrete(), critic(), flat_batch()
    one, other = ClipPPOLoss(actor, net), ClipPPOLoss(actor=actor, critic=net)
    torch.testing.assert_close(one(batch)["loss_objective"], other(batch)["loss_objective"])
    with pytest.raises(TypeError, match="actor_network and actor are the same argument"):
        ClipPPOLoss(actor, net, actor=discrete())


def test_plain_tensors_may_be_passed():
    batch = flat_batch().exclude("advantage", "value_target")
    batch["next", "x"][:-1] = batch["x"][1:]  # plain tensors do not name the time dimension
    loss = A2CLoss(discrete(), critic())
    given = {"_".join((key,) if isinstance(key, str) else key): batch[key] for key in loss.in_keys}
    found = loss(**given)
    expected = loss(batch.select(*loss.in_keys))
    torch.testing.assert_close(found[0], expected["loss_objective"])


def test_compiled_losses_give_the_same():
    batch, loss = flat_batch(), ClipPPOLoss(discrete(), critic(), normalize_advantage=True)
    masked(batch)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for name, value in compiled(batch).items():
        torch.testing.assert_close(value, loss(batch)[name])
    batch = batch.exclude("advantage", "value_target")
    again = torch.compile(loss, backend="eager")(batch.copy())
    expected = loss(batch.copy())
    torch.testing.assert_close(again["loss_objective"], expected["loss_objective"])


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss])
def test_every_loss_is_one_graph_also_of_other_parameters(loss_class):
    batch, loss = flat_batch(), loss_class(discrete(), critic())
    batch["logits"] = torch.randn(9, 3, dtype=torch.float64)
    masked(batch)
    torch.compiler.reset()
    doubled = {name: value.detach() * 2 for name, value in loss.named_parameters()}
    doubled |= {name: value.clone() for name, value in loss.named_buffers()}  # β moves

    def call(batch, given):
        return dict(torch.func.functional_call(loss, given, (batch,)).items())

    expected = call(batch, {name: value.clone() for name, value in doubled.items()})
    found = torch.compile(call, backend="eager", fullgraph=True)(batch, doubled)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("flag", [keys.MASK, keys.SHIFTED_VALID, keys.NEXT_MISSING])
def test_compiled_code_takes_note_of_a_flag_that_was_missing_before(flag):
    batch, loss = flat_batch(), PPOLoss(discrete(), critic())
    compiled = torch.compile(lambda batch: loss(batch)["loss_critic"], backend="eager")
    before = compiled(batch)
    batch[flag] = torch.arange(9) % 2 == 0
    torch.testing.assert_close(compiled(batch), loss(batch)["loss_critic"])
    assert compiled(batch) != before


def test_compiled_code_breaks_once_where_advantages_are_estimated():
    batch, loss = flat_batch(), ClipPPOLoss(discrete(), critic())
    torch.compiler.reset()
    # torch.compiler counts no graph breaks
    found = torch._dynamo.explain(loss)(batch.exclude("advantage"))
    assert (found.graph_count, found.graph_break_count) == (2, 1)


def test_parameters_may_be_swapped_functionally():
    batch, loss = flat_batch(), PPOLoss(discrete(), critic())
    doubled = {name: value.detach() * 2 for name, value in loss.named_parameters()}
    found = torch.func.functional_call(loss, doubled, (batch,))
    before = loss(batch)["loss_critic"]
    loss.actor_network_params.apply_(lambda value: value.detach().mul_(2))
    loss.critic_network_params.apply_(lambda value: value.detach().mul_(2))
    assert before != found["loss_critic"]
    torch.testing.assert_close(loss(batch)["loss_critic"], found["loss_critic"])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 0.9}, TypeError, r"Use make_value_estimator\(gamma=...\)"),
        ({"entropy_coef": 0.1}, TypeError, "Use entropy_coeff"),
        ({"speed": 0.1}, TypeError, "There is none of that name"),
        ({"loss_critic_type": "l3"}, ValueError, "loss_critic_type: expected 'l1', 'l2' or"),
        ({"clip_epsilon": (0.1, 0.2, 0.3)}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": 1.0}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": -0.1}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": math.nan}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": None}, ValueError, "clip_epsilon: expected"),
        ({"clip_value": -1}, ValueError, "clip_value: expected"),
        ({"entropy_coeff": "much"}, TypeError, "entropy_coeff: expected a number.*'much'"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        ClipPPOLoss(discrete(), critic(), **settings)


def test_a_loss_without_actor_is_refused():
    with pytest.raises(TypeError, match="expected an actor"):
        ClipPPOLoss(critic=critic())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b.exclude("action"), KeyError, "'action' is missing"),
        (lambda b: b.exclude("sample_log_prob"), KeyError, "'sample_log_prob' is missing"),
        (
            lambda b: b.set("sample_log_prob", torch.zeros(9, 1)),
            ValueError,
            r"'sample_log_prob': expected \[9\], as the actor gives it, got \[9, 1\]",
        ),
        (
            lambda b: b.set("advantage", torch.zeros(9)),
            ValueError,
            r"'advantage': expected \[9, 1\], one for each log-probability, got \[9\]",
        ),
        (
            lambda b: b.set("value_target", torch.zeros(9)),
            ValueError,
            r"'value_target': expected \[9, 1\], as the critic gives values, got \[9\]",
        ),
    ],
)
def test_wrong_data_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        ClipPPOLoss(discrete(), critic())(change(flat_batch()))


def test_an_action_that_requires_gradients_is_refused():
    batch = flat_batch()
    batch["action"] = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="a stored action is a constant"):
        A2CLoss(continuous(), critic())(batch)


def test_a_bound_that_only_clipping_has_is_refused():
    with pytest.raises(TypeError, match="clip_value=True is for ClipPPOLoss"):
        PPOLoss(discrete(), critic(), clip_value=True)


@pytest.mark.filterwarnings("ignore:'advantage' is stored and 'value_target' is:UserWarning")
@pytest.mark.parametrize("loss_class", [PPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("given", ["advantage", "value_target"])
def test_stored_estimates_are_not_recomputed(loss_class, given):
    batch = flat_batch()
    stored = batch[given].clone()
    batch.exclude("advantage" if given == "value_target" else "value_target", inplace=True)
    whole = GAE(gamma=0.99, lmbda=0.95, value_network=(net := critic()))(
        batch.exclude("advantage", "value_target")
    )
    loss_class(discrete(), net)(batch)
    torch.testing.assert_close(batch[given], stored)
    other = "advantage" if given == "value_target" else "value_target"
    torch.testing.assert_close(batch[other], whole[other])


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_a_batch_of_no_step_is_refused(loss_class):
    for batch in (flat_batch()[:0], flat_batch()[:0].exclude("advantage")):
        with pytest.raises(ValueError, match=r"at least one step"):
            loss_class(discrete(), critic())(batch)


def test_values_that_move_less_than_the_bound_are_not_clipped():
    batch, net = prepared(trajectories([400])).float(), critic().float()
    with set_recurrent_mode(True):
        batch["state_value"] = net(batch.copy())["state_value"].detach() + 1.5
    for bound, share in ((2.0, 0.0), (1.0, 1.0)):
        loss = ClipPPOLoss(discrete().float(), net, clip_value=bound)
        assert loss(batch)["value_clip_fraction"] == share


def test_parameters_that_acted_have_the_shape_of_the_actors():
    batch = flat_batch()
    for shape in ((9, 1, 3), (9, 4)):
        batch["logits"] = torch.randn(*shape, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"'action': expected the parameters .* \[9, 3\], got"):
            KLPENPPOLoss(discrete(), critic())(batch)


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("key", ["action", "advantage", "value_target"])
def test_gradient_of_a_batch_that_changed_after_the_loss_is_refused(loss_class, key):
    batch, loss = flat_batch(), loss_class(discrete(), critic())
    found = loss(batch)
    batch[key].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(value for key, value in found.items() if key.startswith("loss_")).backward()


def test_a_coefficient_may_be_a_tensor():
    batch, net, act = flat_batch(), critic(), discrete()
    wanted = ClipPPOLoss(act, net, critic_coeff=2.0)(batch)["loss_critic"]
    learnt = torch.tensor(2.0, requires_grad=True)
    found = ClipPPOLoss(act, net, critic_coeff=learnt)(batch)["loss_critic"]
    torch.testing.assert_close(found, wanted)
    found.backward()
    torch.testing.assert_close(learnt.grad, wanted.detach().float() / 2)


def test_stored_values_have_the_shape_of_the_critics():
    batch = flat_batch()
    batch["state_value"] = torch.zeros(9, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'state_value': expected \[9, 1\].*got \[9\]"):
        ClipPPOLoss(discrete(), critic(), clip_value=True)(batch)


def test_a_loss_reports_more_than_its_keys():
    batch = flat_batch()
    batch["state_value"] = batch["value_target"]
    loss = ReinforceLoss(discrete(), critic(), clip_value=0.1, log_explained_variance=True)
    reported = {"value_clip_fraction", "explained_variance"}
    assert set(loss(batch).keys()) == {*loss.out_keys, *reported}


def test_a_key_of_one_part_may_be_a_tuple():
    loss = PPOLoss(discrete(), critic(), entropy_coeff={("action",): 0.5})
    found = loss(flat_batch())
    torch.testing.assert_close(found["loss_entropy"], -0.5 * found["entropy"])
