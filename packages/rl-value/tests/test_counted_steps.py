"""Padding may hold anything: results and gradients are those of the real steps alone."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from tensordict.nn.distributions import NormalParamExtractor
from torch import distributions as d
from torch import nn

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import (
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    KLPENPPOLoss,
    ReinforceLoss,
    VTrace,
)
from rl_value.counted_steps import counted_steps, readable

NAN = float("nan")
REAL = torch.tensor([0, 1, 1, 1, 1, 0, 1, 1, 0]).bool()  # padding in front, between and after


class Normals(d.Independent):
    """Normals of several dimensions, which check nothing."""

    def __init__(self, loc, scale):
        super().__init__(d.Normal(loc, scale, validate_args=False), 1, validate_args=False)


def actor(kind):
    if kind is Normals:
        net = nn.Sequential(nn.Linear(2, 4), NormalParamExtractor())
        names = ["loc", "scale"]
    else:
        net, names = nn.Linear(2, 3), ["logits"]
    choice = ProbabilisticTensorDictModule(names, ["action"], distribution_class=kind)
    return ProbabilisticTensorDictSequential(
        TensorDictModule(net, ["observation"], names), choice
    ).double()


def critic():
    return TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"]).double()


def stored(kind):
    """Real steps as the actor left them."""
    batch = trajectories([4, 2], EndKind.TERMINATED)
    for key in ("observation", ("next", "observation")):
        batch[key] = torch.randn(6, 2).double()
    batch["next", "reward"] = torch.randn(6, 1).double()
    for key in ("advantage", "value_target"):
        batch[key] = torch.randn(6, 1).double()
    batch["sample_log_prob"] = torch.randn(6).double()
    if kind is Normals:
        batch["loc"], batch["scale"] = torch.randn(6, 2).double(), torch.rand(6, 2).double() + 0.1
        batch["action"] = torch.randn(6, 2).double()
    else:
        batch["logits"] = torch.randn(6, 3).double()
        batch["action"] = torch.randint(3, (6,))
        if kind is d.OneHotCategorical:
            batch["action"] = nn.functional.one_hot(batch["action"], 3)
    return batch


def padded(batch, **held):
    """The same steps among padding that holds what is given, and zeros elsewhere."""
    made = batch.apply(lambda leaf: leaf.new_zeros(9, *leaf.shape[1:]), batch_size=[9])
    made[REAL] = batch
    for key, value in held.items():
        made[key][~REAL] = value
    made["observation"][~REAL] = NAN
    made["collector", "traj_ids"][~REAL] = -1
    made[keys.MASK] = REAL
    return made


def slopes(module):
    return {
        name: parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


PADDING = {
    "zeros": (Normals, {}),
    "no numbers": (Normals, {"action": NAN, "loc": NAN, "scale": NAN}),
    "a scale below 0": (Normals, {"scale": -1.0}),
    "no choice": (d.Categorical, {"action": -1}),
    "a choice too many": (d.Categorical, {"action": 3, "logits": NAN}),
    "one-hot zeros": (d.OneHotCategorical, {}),
}


@pytest.mark.parametrize("name", PADDING)
@pytest.mark.parametrize("loss_class", [ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_of_actors_read_nothing_of_padding(name, loss_class, reduction, monkeypatch):
    kind, held = PADDING[name]
    monkeypatch.setattr(d.Distribution, "_validate_args", kind is not Normals)
    loss = loss_class(actor(kind), critic(), reduction=reduction)
    results = []
    batch = stored(kind)
    for given in (batch, padded(batch, **held)):
        loss.zero_grad()
        found = loss(given)
        total = sum(value.sum() for key, value in found.items() if key.startswith("loss_"))
        total.backward()
        statistics = {key: value for key, value in found.items() if not value.ndim}
        results.append((total.detach(), statistics, slopes(loss)))
        if loss_class is KLPENPPOLoss:
            loss.reset()
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("loss_class", [A2CLoss, KLPENPPOLoss])
def test_actions_and_parameters_of_other_names(loss_class):
    network = actor(Normals)
    network.select_out_keys("action")
    loss, results = loss_class(network, critic(), entropy_bonus=False), []
    loss.set_keys(action="acted")
    batch = stored(Normals).rename_key_("action", "acted")
    for given in (batch, padded(batch, acted=NAN, scale=0.0)):
        loss.zero_grad()
        loss(given)["loss_objective"].backward()
        results.append(slopes(network))
        if loss_class is KLPENPPOLoss:
            loss.reset()
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", PADDING)
def test_padded_batch_gives_the_same_loss_compiled(name):
    kind, held = PADDING[name]
    loss = ClipPPOLoss(actor(kind), critic())
    batch = stored(kind)
    torch.compiler.reset()
    found = torch.compile(loss, backend="eager", fullgraph=True)(padded(batch, **held))
    torch.testing.assert_close(found.to_dict(), loss(batch).to_dict())


@pytest.mark.parametrize("action", [-1, 3])
@pytest.mark.parametrize("atoms", [None, 5])
def test_losses_of_action_values_read_nothing_of_padding(action, atoms):
    batch = stored(d.Categorical)
    if atoms is None:
        net, key = nn.Linear(2, 3), {"action_space": "categorical"}
        make = DQNLoss
    else:
        net = nn.Sequential(nn.Linear(2, 15), nn.Unflatten(-1, (5, 3)), nn.LogSoftmax(-2))
        key = {"action_space": "categorical", "gamma": 0.9, "support": torch.linspace(0, 1, 5)}
        make = DistributionalDQNLoss
    network = TensorDictModule(net, ["observation"], ["action_value"]).double()
    loss, results = make(network, **key), []
    for given in (batch, padded(batch, action=action)):
        network.zero_grad()
        found = loss(given)["loss"]
        found.backward()
        results.append((found.detach(), slopes(network)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", PADDING)
def test_ratios_of_v_trace_read_nothing_of_padding(name, monkeypatch):
    kind, held = PADDING[name]
    monkeypatch.setattr(d.Distribution, "_validate_args", kind is not Normals)
    network, net = actor(kind), critic()
    made = VTrace(gamma=0.9, actor_network=network, value_network=net, differentiable=True)
    batch, results = stored(kind), []
    for given, where in ((batch, slice(None)), (padded(batch, **held), REAL)):
        seen = given["observation"].requires_grad_()
        found = made(given)["value_target"][where]
        found.square().sum().backward()
        results.append((found.detach(), seen.grad[where]))
    torch.testing.assert_close(*results)


def test_numbers_that_an_embedding_does_not_have():
    table = nn.Embedding(4, 2)
    net = nn.Sequential(table, nn.Linear(2, 1), nn.Flatten(-1))
    batch = padded(stored(d.Categorical))
    batch["room"] = torch.where(REAL, torch.arange(9) % 4, -1)
    batch["next", "room"] = batch["room"].roll(-1)
    critic = TensorDictModule(net, ["room"], ["state_value"])
    batch["value_target"] = batch["value_target"].float()
    A2CLoss(actor(d.Categorical), critic)(batch)["loss_critic"].backward()
    assert table.weight.grad.isfinite().all()


def test_marks_of_padding_stay_what_they_are():
    batch = padded(stored(d.Categorical))
    net = TensorDictModule(lambda *_: None, [keys.IS_INIT, keys.MASK, "group", "name"], ["out"])
    batch["name"] = NonTensorData("room", batch_size=[9])
    batch["group"] = TensorDict({"x": torch.arange(9.0)}, [9])
    seen = readable(batch, net)
    for key in (keys.IS_INIT, keys.MASK):
        assert (seen[key] == batch[key]).all()
    assert seen["group", "x"].tolist() == [1, 1, 2, 3, 4, 1, 6, 7, 1]
    assert batch["group", "x"].tolist() == list(range(9))


@pytest.mark.filterwarnings("ignore:.*no step of this batch counts")
def test_padding_alone_has_no_effect():
    batch = padded(stored(Normals))
    batch[keys.MASK] = torch.zeros(9).bool()
    loss = ClipPPOLoss(actor(Normals), critic())
    total = loss(batch)["loss_objective"]
    total.backward()
    assert total == 0
    assert all((slope == 0).all() for slope in slopes(loss).values())


def test_counted_steps_leave_out_padding():
    batch = trajectories([3])
    batch["collector", "mask"] = torch.tensor([True, True, False])
    assert counted_steps(batch).tolist() == [True, True, False]
