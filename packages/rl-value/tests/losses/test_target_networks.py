"""Networks that follow others: those of a loss, and any two."""

from copy import deepcopy

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_value import DQNLoss, HardUpdate, SoftUpdate


def network(width=3):
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def moved(net):
    net = deepcopy(net)
    with torch.no_grad():
        for value in (*net.parameters(), net[1].running_mean):
            value.add_(1)
        net[1].num_batches_tracked.add_(5)
    return net


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("share", [{"eps": 0.75}, {"tau": 0.25}, {"tau": torch.tensor(0.25)}])
def test_soft_update_moves_any_network_towards_another(by_name, share):
    late = network()
    net, before = moved(late), deepcopy(late)
    given = {"source": net, "target": late} if by_name else {}
    SoftUpdate(*(() if by_name else (net, late)), **given, **share).step()
    for now, was in zip(late.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(now, was + 0.25)
    torch.testing.assert_close(late[1].running_mean, before[1].running_mean + 0.25)
    assert late[1].num_batches_tracked == 5  # counts are copied


def test_hard_update_copies_any_network_at_its_interval():
    late = network()
    net = moved(late)
    update = HardUpdate(net, late, value_network_update_interval=2)
    update.step()
    assert not torch.equal(late[0].weight, net[0].weight)
    again = HardUpdate(source=net, target=late, value_network_update_interval=2)
    again.load_state_dict(update.state_dict())
    again.step()
    assert torch.equal(late[0].weight, net[0].weight)
    assert again.state_dict() == {"counter": 0}
    assert SoftUpdate(net, late).state_dict() == {}


def test_a_loss_may_be_named_as_the_peer_names_it():
    net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
    loss = DQNLoss(net, action_space="categorical")
    update = SoftUpdate(loss_module=loss, tau=0.5)
    assert update.pairs == [(loss.value_network, loss.target_value_network)]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (network(4), r"'0.weight': expected \[3, 2\] torch.float32 on cpu.* got \[4, 2\]"),
        (network().double(), r"'0.weight': expected .*torch.float32.* got \[3, 2\] torch.float64"),
        (nn.Sequential(nn.Linear(2, 3)), "'1.weight' is in the source and not in the target"),
        (nn.Sequential(*network(), nn.Linear(1, 1)), "'3.weight' is in the target and not in"),
        (nn.Sequential(nn.LazyLinear(3), *network()[1:]), "'0.weight' has no shape yet: call"),
    ],
)
@pytest.mark.parametrize("kind", [SoftUpdate, HardUpdate])
def test_networks_that_differ_are_refused_by_name(kind, target, message):
    with pytest.raises(ValueError, match=message):
        kind(network(), target)


@pytest.mark.parametrize("kind", [SoftUpdate, HardUpdate])
def test_updates_refuse_wrong_pairs_of_networks(kind):
    net = network()
    with pytest.raises(ValueError, match="the same module, and nothing would move"):
        kind(net, net)
    with pytest.raises(TypeError, match="source: expected a module, got NoneType"):
        kind()
    with pytest.raises(TypeError, match="target: expected a module, got dict"):
        kind(net, {})
    with pytest.raises(TypeError, match="pass one of them"):
        kind(net, loss_module=net)
    with pytest.raises(RuntimeError, match="Sequential has no target network: make it with delay"):
        kind(net)


def test_a_share_is_a_number():
    with pytest.raises(ValueError, match=r"eps and tau in \[0, 1\]: got True"):
        SoftUpdate(network(), network(), tau=True)


def test_modules_without_parameters_need_no_counterpart():
    source = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5))
    target = torch.nn.Sequential(torch.nn.Linear(2, 3))
    SoftUpdate(source, target, tau=1.0).step()
    assert torch.equal(source[0].weight, target[0].weight)
