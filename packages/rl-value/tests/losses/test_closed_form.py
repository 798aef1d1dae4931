"""Losses by equations against the same losses by autograd, which any other distribution takes."""

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
from rl_value.losses.critic_terms import CriticSettings, critic_by_autograd
from rl_value.losses.precomputed_loss import PrecomputedGradients

LOSSES = [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss]


class Other(d.Categorical):
    """The same distribution, of a class that has no equations."""


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


@pytest.fixture
def taken(monkeypatch):
    """Counts how often the equations are taken."""
    calls = []
    whole = PrecomputedGradients.forward

    def counting(*args):
        calls.append(1)
        return whole(*args)

    monkeypatch.setattr(PrecomputedGradients, "forward", staticmethod(counting))
    return calls


@pytest.mark.parametrize("loss_class", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1,)])
def test_equations_give_what_autograd_gives(loss_class, reduction, shape, taken):
    batch = batch_of(shape)
    same(loss_class, batch, reduction=reduction)
    assert len(taken) == 1
    batch[keys.MASK] = torch.arange(math.prod(shape)).view(shape) % 3 != 1
    with torch.no_grad():  # steps that do not count may hold anything
        batch["sample_log_prob"][~batch[keys.MASK]] = -1e300
        batch["advantage"][~batch[keys.MASK]] = torch.nan
    same(loss_class, batch, reduction=reduction)
    assert len(taken) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.floats(0.01, 300),
    st.integers(0, 2**20),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_closed_forms_of_any_logits_equal_autograd(rows, choices, scale, seed, dtype):
    torch.manual_seed(seed)
    scale = min(scale, 4) if dtype == torch.float32 else scale  # a log-probability has its digits
    batch = batch_of((rows,), choices, dtype, scale)
    same(A2CLoss, batch, entropy_coeff=0.3)
    batch["sample_log_prob"] = d.Categorical(logits=batch["x"].detach()).log_prob(batch["action"])
    same(ClipPPOLoss, batch, clip_epsilon=(0.1, 0.3), normalize_advantage=rows > 1)


@pytest.mark.parametrize("scale", [5.0, 1e4])
def test_logits_far_apart(scale):
    same(A2CLoss, batch_of((8,), 5, scale=scale))


def test_ties_of_the_clipped_and_the_free_gain():
    batch = batch_of((6,))
    with torch.no_grad():  # ratios of exactly 1, and advantages of 0
        batch["sample_log_prob"] = (
            batch["x"].log_softmax(-1).gather(-1, batch["action"][:, None])[:, 0]
        )
        batch["advantage"][::2] = 0
    same(ClipPPOLoss, batch)


def test_the_share_of_weights_that_leave_the_range():
    batch = batch_of((5,))
    for far in (800.0, -800.0):
        batch["sample_log_prob"] = -1 - torch.rand(5, dtype=torch.float64) + far
        ours = ClipPPOLoss(actor())(batch)["ESS"]
        torch.testing.assert_close(ours, ClipPPOLoss(actor(Other))(batch)["ESS"])
        assert 0.2 <= ours <= 1


def test_gradients_of_both_losses_and_their_gradients():
    batch = batch_of((4,), 3)
    loss = PPOLoss(actor(), entropy_coeff=0.5)

    def call(x):
        found = loss(TensorDict({**batch, "x": x}, [4]))
        return found["loss_objective"], found["loss_entropy"]

    x = batch["x"].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


def test_a_graph_that_is_kept_gives_the_same_twice():
    batch = batch_of((5,))
    found = ClipPPOLoss(actor())(batch)
    total = found["loss_objective"] + found["loss_entropy"]
    first, second = (torch.autograd.grad(total, batch["x"], retain_graph=True)[0] for _ in "ab")
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_transforms_of_functions_take_autograd(taken):
    batch = batch_of((4,), 3)
    plain = {name: value.detach() for name, value in batch.items()}
    loss = PPOLoss(actor())

    def call(x):
        return loss(TensorDict({**plain, "x": x}, [4]))["loss_objective"]

    found = torch.func.grad(call)(plain["x"])
    assert not taken
    expected = torch.autograd.grad(loss(batch)["loss_objective"], batch["x"])[0]
    torch.testing.assert_close(found, expected)


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
def test_closed_form_leaves_other_batches_to_autograd(change, taken):
    batch = batch_of((4,), 3)
    batch["action"].zero_()
    change(batch)
    same(PPOLoss, batch)
    assert not taken


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_is_none_of_the_choices_is_refused(action):
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


def by_autograd(loss, batch):
    """Critic loss and explained variance as torch computes them."""
    value = loss.critic_network(batch.copy())["state_value"]
    settings = CriticSettings(
        "loss_critic", loss.loss_critic_type, loss.critic_coeff, None, True, loss.reduction
    )
    return critic_by_autograd(value, batch["value_target"], None, loss.counted(batch), settings)


@pytest.mark.parametrize("kind", ["l1", "l2", "smooth_l1"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("value_shape", [(), (2,)])
@pytest.mark.parametrize("holes", [False, True])
def test_critics_by_equations(kind, reduction, value_shape, holes, taken):
    batch = with_values((3, 5), *value_shape)
    if holes:
        batch[keys.MASK] = torch.arange(15).view(3, 5) % 4 != 1
        batch["value_target"][~batch[keys.MASK]] = torch.nan
    loss, by = with_critic(reduction=reduction, loss_critic_type=kind, critic_coeff=0.5)
    found, expected = loss(batch), by_autograd(loss, batch)
    assert len(taken) == 2
    ours, theirs = (torch.autograd.grad(made["loss_critic"], by)[0] for made in (found, expected))
    torch.testing.assert_close(ours, theirs)
    for name, number in expected.items():
        torch.testing.assert_close(found[name], number)


def test_values_at_the_bend_and_far_beyond():
    batch = with_values((4,))
    batch["y"] = torch.tensor([1.0, -1.0, 1e300, 0.0], dtype=torch.float64)[:, None]
    batch["value_target"].zero_()
    loss, by = with_critic()
    with torch.no_grad():
        by.copy_(torch.tensor([1.0, 0.0]))
    ours, theirs = loss(batch)["loss_critic"], by_autograd(loss, batch)["loss_critic"]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(made, by)[0] for made in (ours, theirs)))


@pytest.mark.parametrize("first", ["loss_objective", "loss_critic"])
def test_each_network_goes_back_for_itself_where_no_graph_is_kept(first, taken):
    batch = with_values((6,))
    loss, by = with_critic(entropy_bonus=False)
    found = loss(batch)
    assert len(taken) == 2
    for name in sorted(("loss_objective", "loss_critic"), key=lambda name: name != first):
        found[name].backward()
    apart = [batch["x"].grad.clone(), by.grad.clone()]
    batch["x"].grad = by.grad = None
    found = loss(batch)
    (found["loss_objective"] + found["loss_critic"]).backward()
    torch.testing.assert_close(apart, [batch["x"].grad, by.grad], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["loss_objective", "loss_critic"])
def test_closed_form_without_its_graph_is_refused(name):
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
def test_gradients_of_the_critic_and_their_gradients(kind):
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


def test_transforms_of_functions_take_the_critic_of_torch(taken):
    batch = with_values((5,))
    loss, by = with_critic()

    def call(given):
        named = {"critic_network.module.by": given}
        return torch.func.functional_call(loss, named, (batch,))["loss_critic"]

    found = torch.func.vmap(torch.func.grad(call))(torch.stack([by.detach(), by.detach() * 2]))
    assert not taken
    torch.testing.assert_close(found[0], torch.autograd.grad(loss(batch)["loss_critic"], by)[0])


def test_losses_that_are_scaled_scale_their_gradients():
    batch = with_values((6,))
    loss, by = with_critic()
    plain, scaled = loss(batch), loss(batch)
    names = ("loss_objective", "loss_entropy", "loss_critic")
    once = torch.autograd.grad(sum(plain[name] for name in names), [batch["x"], by])
    thrice = torch.autograd.grad(sum(3 * scaled[name] for name in names), [batch["x"], by])
    torch.testing.assert_close(thrice, tuple(3 * grad for grad in once))
