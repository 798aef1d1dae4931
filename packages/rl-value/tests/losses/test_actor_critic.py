"""Losses of an actor and a critic: logits against torch's own distribution, critics by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions as d

from rl_layout import keys
from rl_value import A2CLoss, ClipPPOLoss, PPOLoss, ReinforceLoss

LOSSES = [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss]


class Other(d.Categorical):
    """The same distribution by its own `log_prob` and `entropy`."""


def actor(kind=d.Categorical):
    return ProbabilisticTensorDictSequential(
        TensorDictModule(lambda x: x * 1.0, ["x"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=kind),
    )


def batch_of(shape, choices=4, dtype=torch.float64, scale=1.0):
    rows = {
        "x": torch.randn(*shape, choices, dtype=dtype) * scale,
        "action": torch.randint(choices, shape),
        "sample_log_prob": -1 - torch.rand(shape, dtype=dtype),
        "advantage": torch.randn(*shape, 1, dtype=dtype),
        "value_target": torch.randn(*shape, 1, dtype=dtype),
    }
    batch = TensorDict(rows, shape)
    batch["x"].requires_grad_()
    return batch


def losses_and_gradients(loss, batch):
    found = dict(loss(batch).items())
    names = [name for name in found if name.startswith("loss_")]
    grads = [torch.autograd.grad(found[name], batch["x"], retain_graph=True)[0] for name in names]
    return found, grads


def same(loss_class, batch, **given_settings):
    ours, grads = losses_and_gradients(loss_class(actor(), **given_settings), batch)
    theirs, others = losses_and_gradients(loss_class(actor(Other), **given_settings), batch)
    assert set(ours) == set(theirs)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(grads, others)


@pytest.mark.parametrize("loss_class", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1,)])
def test_losses_of_categorical_logits_equal_those_of_its_distribution(loss_class, reduction, shape):
    batch = batch_of(shape)
    same(loss_class, batch, reduction=reduction)
    batch[keys.MASK] = torch.arange(math.prod(shape)).view(shape) % 3 != 1
    with torch.no_grad():  # steps that do not count may hold anything
        batch["sample_log_prob"][~batch[keys.MASK]] = -1e300
        batch["advantage"][~batch[keys.MASK]] = torch.nan
    same(loss_class, batch, reduction=reduction)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.floats(0.01, 300),
    st.integers(0, 2**20),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_losses_of_any_logits_equal_those_of_its_distribution(rows, choices, scale, seed, dtype):
    torch.manual_seed(seed)
    scale = min(scale, 4) if dtype == torch.float32 else scale  # a log-probability has its digits
    batch = batch_of((rows,), choices, dtype, scale)
    same(A2CLoss, batch, entropy_coeff=0.3)
    batch["sample_log_prob"] = d.Categorical(logits=batch["x"].detach()).log_prob(batch["action"])
    same(ClipPPOLoss, batch, clip_epsilon=(0.1, 0.3), normalize_advantage=rows > 1)


@pytest.mark.parametrize("scale", [5.0, 1e4])
def test_losses_of_logits_far_apart_are_those_of_its_distribution(scale):
    same(A2CLoss, batch_of((8,), 5, scale=scale))


def test_gradient_where_the_clipped_and_the_free_gain_are_equal_is_torchs():
    batch = batch_of((6,))
    with torch.no_grad():  # ratios of exactly 1, and advantages of 0
        batch["sample_log_prob"] = (
            batch["x"].log_softmax(-1).gather(-1, batch["action"][:, None])[:, 0]
        )
        batch["advantage"][::2] = 0
    same(ClipPPOLoss, batch)


def test_effective_sample_size_of_weights_that_leave_the_range_is_a_share():
    batch = batch_of((5,))
    for far in (800.0, -800.0):
        batch["sample_log_prob"] = -1 - torch.rand(5, dtype=torch.float64) + far
        loss = ClipPPOLoss(actor(), check_finite=False)  # the objective leaves the range
        assert 0.2 <= loss(batch)["ESS"] <= 1


def test_losses_of_the_actor_are_differentiable_twice():
    batch = batch_of((4,), 3)
    loss = PPOLoss(actor(), entropy_coeff=0.5)

    def call(x):
        found = loss(TensorDict({**batch, "x": x}, [4]))
        return found["loss_objective"], found["loss_entropy"]

    x = batch["x"].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


def test_gradients_of_a_graph_that_is_kept_are_the_same_twice():
    batch = batch_of((5,))
    found = ClipPPOLoss(actor())(batch)
    total = found["loss_objective"] + found["loss_entropy"]
    first, second = (torch.autograd.grad(total, batch["x"], retain_graph=True)[0] for _ in "ab")
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_losses_of_the_actor_have_gradients_under_torch_func():
    batch = batch_of((4,), 3)
    plain = {name: value.detach() for name, value in batch.items()}
    loss = PPOLoss(actor())

    def call(x):
        return loss(TensorDict({**plain, "x": x}, [4]))["loss_objective"]

    found = torch.func.grad(call)(plain["x"])
    expected = torch.autograd.grad(loss(batch)["loss_objective"], batch["x"])[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.*no step of this batch counts")
@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["x"].data.__setitem__((0, 1), -torch.inf),
        lambda b: b.set("advantage", b["advantage"].float()),
        lambda b: b.set("action", b["action"].int()),
        lambda b: b.set(keys.MASK, torch.zeros(4, dtype=torch.bool)),
    ],
    ids=["infinite", "dtypes", "int32", "nothing"],
)
def test_losses_of_unusual_batches_equal_those_of_its_distribution(change):
    batch = batch_of((4,), 3)
    batch["action"].zero_()
    change(batch)
    same(PPOLoss, batch)


@pytest.mark.parametrize("action", [-1, 3])
def test_action_that_is_none_of_the_choices_is_refused(action):
    batch = batch_of((4,), 3)
    batch["action"][2] = action
    with pytest.raises(IndexError, match="'action': expected numbers from 0 to 2, got some from"):
        PPOLoss(actor())(batch)


def test_logits_that_are_no_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(d.Distribution, "_validate_args", True)  # compiled tests switch it off
    batch = batch_of((4,), 3)
    batch["x"].data[1, 1] = torch.nan
    with pytest.raises(ValueError, match="Expected parameter logits"):
        PPOLoss(actor())(batch)


class Critic(torch.nn.Module):
    """Values that are shifted and scaled by parameters of their own."""

    def __init__(self):
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor([0.7, 0.2], dtype=torch.float64))

    def forward(self, value):
        return value * self.by[0] + self.by[1]


def with_values(shape, *value_shape):
    batch = batch_of(shape)
    batch["y"] = torch.randn(*shape, *value_shape, 1, dtype=torch.float64) * 2
    batch["value_target"] = torch.randn(*shape, *value_shape, 1, dtype=torch.float64)
    return batch


def with_critic(**given_settings):
    critic = TensorDictModule(Critic(), ["y"], ["state_value"])
    return ClipPPOLoss(actor(), critic, **given_settings), critic.module.by


def by_hand(batch, by, kind, reduction):
    """Half of the critic's loss, and the explained variance, of the rows that count."""
    counted = batch.get(keys.MASK, torch.ones(batch.shape, dtype=torch.bool))
    value, target = (batch["y"] * by[0] + by[1])[counted], batch["value_target"][counted]
    apart = (value - target).abs()
    bent = torch.where(apart < 1, apart**2 / 2, apart - 0.5)
    each = {"l1": apart, "l2": apart**2, "smooth_l1": bent}[kind]
    loss = 0.5 * (each.mean() if reduction == "mean" else each.sum())
    return loss, 1 - (value - target).var(correction=0) / target.var(correction=0)


@pytest.mark.parametrize("kind", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("value_shape", [(), (2,)])
@pytest.mark.parametrize("holes", [False, True])
def test_critic_loss_is_its_equation(kind, reduction, value_shape, holes):
    batch = with_values((3, 5), *value_shape)
    if holes:
        batch[keys.MASK] = torch.arange(15).view(3, 5) % 4 != 1
        batch["value_target"][~batch[keys.MASK]] = torch.nan
    loss, by = with_critic(reduction=reduction, loss_critic_type=kind, critic_coeff=0.5)
    found = loss(batch)
    expected, explained = by_hand(batch, by, kind, reduction)
    torch.testing.assert_close(found["loss_critic"], expected)
    torch.testing.assert_close(found["explained_variance"], explained.detach())
    ours, theirs = (torch.autograd.grad(made, by)[0] for made in (found["loss_critic"], expected))
    torch.testing.assert_close(ours, theirs)


def test_critic_loss_at_the_bend_and_far_beyond_is_finite():
    batch = with_values((4,))
    batch["y"] = torch.tensor([1.0, -1.0, 1e300, 0.0], dtype=torch.float64)[:, None]
    batch["value_target"].zero_()
    loss, by = with_critic()
    with torch.no_grad():
        by.copy_(torch.tensor([1.0, 0.0]))
    found = loss(batch)["loss_critic"]
    torch.testing.assert_close(found.item(), 0.25e300)
    slope = torch.autograd.grad(found, by)[0]  # the bend has the slope 1 on both sides
    torch.testing.assert_close(slope.tolist(), [0.25e300, 0.25])


@pytest.mark.parametrize("first", ["loss_objective", "loss_critic"])
def test_backward_of_each_network_needs_no_graph_of_the_other(first):
    batch = with_values((6,))
    loss, by = with_critic(entropy_bonus=False)
    found = loss(batch)
    for name in sorted(("loss_objective", "loss_critic"), key=lambda name: name != first):
        found[name].backward()
    apart = [batch["x"].grad.clone(), by.grad.clone()]
    batch["x"].grad = by.grad = None
    found = loss(batch)
    (found["loss_objective"] + found["loss_critic"]).backward()
    torch.testing.assert_close(apart, [batch["x"].grad, by.grad], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["loss_objective", "loss_critic"])
def test_backward_without_its_graph_is_refused(name):
    batch = with_values((6,))
    batch["y"].requires_grad_()
    policy = actor()
    policy.module[0].module = torch.nn.Identity()  # nothing but the loss has a graph
    found = ClipPPOLoss(policy, TensorDictModule(torch.nn.Identity(), ["y"], ["state_value"]))(
        batch
    )
    found[name].backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        found[name].backward()


@pytest.mark.parametrize("kind", ["l2", "smooth_l1"])
def test_loss_of_the_critic_is_differentiable_twice(kind):
    batch = with_values((5,))
    batch[keys.MASK] = torch.tensor([True, True, False, True, True])
    loss, by = with_critic(loss_critic_type=kind, critic_coeff=0.5)

    def call(given):
        named = {"critic_network.module.by": given}
        return torch.func.functional_call(loss, named, (batch,))["loss_critic"]

    given = by.detach().clone().requires_grad_()
    once, again = (
        torch.autograd.grad(call(given), given, create_graph=how)[0] for how in (False, True)
    )
    torch.testing.assert_close(once, again.detach())
    assert torch.autograd.gradcheck(call, (given,))
    assert torch.autograd.gradgradcheck(call, (given,))


def test_loss_of_the_critic_has_gradients_under_torch_func():
    batch = with_values((5,))
    loss, by = with_critic()

    def call(given):
        named = {"critic_network.module.by": given}
        return torch.func.functional_call(loss, named, (batch,))["loss_critic"]

    found = torch.func.vmap(torch.func.grad(call))(torch.stack([by.detach(), by.detach() * 2]))
    torch.testing.assert_close(found[0], torch.autograd.grad(loss(batch)["loss_critic"], by)[0])


def test_gradients_of_scaled_losses_are_scaled():
    batch = with_values((6,))
    loss, by = with_critic()
    plain, scaled = loss(batch), loss(batch)
    names = ("loss_objective", "loss_entropy", "loss_critic")
    once = torch.autograd.grad(sum(plain[name] for name in names), [batch["x"], by])
    thrice = torch.autograd.grad(sum(3 * scaled[name] for name in names), [batch["x"], by])
    torch.testing.assert_close(thrice, tuple(3 * grad for grad in once))
