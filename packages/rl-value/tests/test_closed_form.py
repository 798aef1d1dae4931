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
from rl_value.losses import closed_form

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
    whole = closed_form._Choice.forward

    def counting(*args):
        calls.append(1)
        return whole(*args)

    monkeypatch.setattr(closed_form._Choice, "forward", staticmethod(counting))
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
def test_any_logits(rows, choices, scale, seed, dtype):
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
def test_what_the_equations_are_not_for(change, taken):
    batch = batch_of((4,), 3)
    batch["action"].zero_()
    change(batch)
    same(PPOLoss, batch)
    assert not taken


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_is_none_of_the_choices_is_refused(action):
    batch = batch_of((4,), 3)
    batch["action"][2] = action
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        PPOLoss(actor())(batch)


def test_logits_that_are_no_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(d.Distribution, "_validate_args", True)  # compiled tests switch it off
    batch = batch_of((4,), 3)
    batch["x"].data[1, 1] = torch.nan
    with pytest.raises(ValueError, match="Expected parameter logits"):
        PPOLoss(actor())(batch)
