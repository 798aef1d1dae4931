"""Losses of actors and critics, against implementations written from the papers."""

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions as d

from rl_layout import keys
from rl_layout.testing import EndKind, environments
from rl_value import (
    A2CLoss,
    ClipPPOLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


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
def test_losses_and_gradients_equal_the_papers(
    kind,
    loss_class,
    settings,
    given,
    holes,
    linear_critic,
    discrete_actor,
    flat_batch,
    masked,
    padded,
):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
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
def test_statistics_are_over_the_steps_that_count(
    holes, linear_critic, discrete_actor, flat_batch, masked
):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
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


def test_rows_of_time_count_as_the_same_steps_laid_end_to_end(
    linear_critic, discrete_actor, policy_batch
):
    batch = policy_batch(environments(2, 5, [3, 4], KINDS))
    batch[keys.MASK] = torch.rand(2, 5) < 0.7
    loss = ClipPPOLoss(discrete_actor(), linear_critic())
    for name, value in loss(batch).items():
        torch.testing.assert_close(value, loss(batch.reshape(-1))[name])


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss])
def test_reductions_are_mean_sum_and_none(
    loss_class, linear_critic, discrete_actor, flat_batch, masked
):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
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
def test_the_mask_may_be_another_or_none(linear_critic, discrete_actor, flat_batch):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
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


def test_steps_of_frames_that_are_lost_do_not_count(linear_critic, discrete_actor, flat_batch):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
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
def test_a_batch_of_padding_leaves_the_weight_of_the_divergence(
    linear_critic, discrete_actor, flat_batch
):
    batch = flat_batch()
    batch["logits"] = torch.randn(9, 3, dtype=torch.float64)
    batch[keys.MASK] = torch.zeros(9, dtype=torch.bool)
    loss = KLPENPPOLoss(discrete_actor(), linear_critic(), beta=3.0, dtarg=1.0)
    assert loss(batch)["loss_objective"] == 0
    assert loss.beta == 3


def test_shared_parameters_may_learn_from_the_actor_alone(flat_batch, linear_layer):
    body = linear_layer(2)
    shared = TensorDictModule(body, ["x"], ["features"])
    actor = ProbabilisticTensorDictSequential(
        shared,
        TensorDictModule(linear_layer(3), ["features"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=d.Categorical),
    )
    from tensordict.nn import TensorDictSequential

    net = TensorDictSequential(
        shared, TensorDictModule(linear_layer(1), ["features"], ["state_value"])
    )
    for separate in (False, True):
        loss = PPOLoss(actor, net, separate_losses=separate)
        loss.zero_grad()
        loss(flat_batch())["loss_critic"].backward()
        assert (body.weight.grad is None) == separate
        assert net[1].module.weight.grad is not None


def test_reinforce_is_its_equation(linear_critic, discrete_actor, flat_batch, masked):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
    rows = masked(batch)
    found = ReinforceLoss(actor, net)(batch)
    expected = paper("a2c", actor, net, batch, rows)
    torch.testing.assert_close(found["loss_actor"], expected[0])
    torch.testing.assert_close(found["loss_value"], expected[2])
    alone = ReinforceLoss(actor)(batch.exclude("value_target"))
    assert list(alone.keys()) == ["loss_actor"]
    torch.testing.assert_close(alone["loss_actor"], expected[0])


@pytest.mark.parametrize("setting", [{"functional": True}, {"device": "cpu"}])
def test_settings_of_losses_without_effect_are_deprecated_at_the_caller(
    setting, linear_critic, discrete_actor
):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(setting))} has no effect") as caught:
        ClipPPOLoss(discrete_actor(), linear_critic(), **setting)
    assert caught[0].filename == __file__


def test_networks_may_be_passed_as_actor_and_critic(linear_critic, discrete_actor, flat_batch):
    actor, net, batch = discrete_actor(), linear_critic(), flat_batch()
    one, other = ClipPPOLoss(actor, net), ClipPPOLoss(actor=actor, critic=net)
    torch.testing.assert_close(one(batch)["loss_objective"], other(batch)["loss_objective"])
    with pytest.raises(TypeError, match="actor_network and actor are the same argument"):
        ClipPPOLoss(actor, net, actor=discrete_actor())


def test_plain_tensors_may_be_passed(linear_critic, discrete_actor, flat_batch):
    batch = flat_batch().exclude("advantage", "value_target")
    batch["next", "x"][:-1] = batch["x"][1:]  # plain tensors do not name the time dimension
    loss = A2CLoss(discrete_actor(), linear_critic())
    given = {"_".join((key,) if isinstance(key, str) else key): batch[key] for key in loss.in_keys}
    found = loss(**given)
    expected = loss(batch.select(*loss.in_keys))
    torch.testing.assert_close(found[0], expected["loss_objective"])


def test_parameters_may_be_swapped_functionally(linear_critic, discrete_actor, flat_batch):
    batch, loss = flat_batch(), PPOLoss(discrete_actor(), linear_critic())
    doubled = {name: value.detach() * 2 for name, value in loss.named_parameters()}
    found = torch.func.functional_call(loss, doubled, (batch,))
    before = loss(batch)["loss_critic"]
    loss.actor_network_params.apply_(lambda value: value.detach().mul_(2))
    loss.critic_network_params.apply_(lambda value: value.detach().mul_(2))
    assert before != found["loss_critic"]
    torch.testing.assert_close(loss(batch)["loss_critic"], found["loss_critic"])


def test_a_coefficient_may_be_a_tensor(linear_critic, discrete_actor, flat_batch):
    batch, net, act = flat_batch(), linear_critic(), discrete_actor()
    wanted = ClipPPOLoss(act, net, critic_coeff=2.0)(batch)["loss_critic"]
    learnt = torch.tensor(2.0, requires_grad=True)
    found = ClipPPOLoss(act, net, critic_coeff=learnt)(batch)["loss_critic"]
    torch.testing.assert_close(found, wanted)
    found.backward()
    torch.testing.assert_close(learnt.grad, wanted.detach().float() / 2)


def test_a_loss_reports_more_than_its_keys(linear_critic, discrete_actor, flat_batch):
    batch = flat_batch()
    batch["state_value"] = batch["value_target"]
    loss = ReinforceLoss(
        discrete_actor(), linear_critic(), clip_value=0.1, log_explained_variance=True
    )
    reported = {"value_clip_fraction", "explained_variance"}
    assert set(loss(batch).keys()) == {*loss.out_keys, *reported}


def test_a_range_of_ratios_counts_from_when_it_is_set(linear_critic, discrete_actor, flat_batch):
    batch, actor, net = flat_batch(), discrete_actor(), linear_critic()
    loss, narrow = ClipPPOLoss(actor, net), ClipPPOLoss(actor, net, clip_epsilon=(0.01, 0.03))
    wanted = narrow(batch)["loss_objective"]
    assert loss(batch)["loss_objective"] != wanted
    loss.clip_epsilon = (0.01, 0.03)
    assert loss(batch)["loss_objective"] == wanted
    loss.clip_epsilon = -0.1
    with pytest.raises(ValueError, match="clip_epsilon: expected"):
        loss(batch)
