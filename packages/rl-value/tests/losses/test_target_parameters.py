"""Target parameters of Q-learning: how they follow, and are saved."""

import pytest
import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch.distributions import Categorical

from rl_layout.testing import EndKind, trajectories
from rl_value import (
    A2CLoss,
    DQNLoss,
    HardUpdate,
    SoftUpdate,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]

ACTIONS, ATOMS = 3, 5


@pytest.mark.parametrize("settings", [{"tau": 0.25}, {"eps": 0.75}])
def test_a_soft_update_moves_by_its_share(settings):
    net = TensorDictModule(
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)),
        ["observation"],
        ["action_value"],
    )
    loss = DQNLoss(net, action_space="categorical")
    update = SoftUpdate(loss, **settings)
    with torch.no_grad():
        net.module[0].weight.add_(1)
    net.module[1].num_batches_tracked.fill_(7)
    update.step()
    late = loss.target_value_network.module
    torch.testing.assert_close(net.module[0].weight - late[0].weight, torch.full((3, 2), 0.75))
    assert late[1].num_batches_tracked == 7
    update.init_()
    assert torch.equal(net.module[0].weight, late[0].weight)


def test_a_hard_update_waits_for_its_turn(moved, q_network):
    loss = DQNLoss(q_network(), action_space="categorical")
    update = HardUpdate(loss, value_network_update_interval=3)
    moved(loss)
    weights = loss.value_network.module.weight, loss.target_value_network.module.weight
    for equal in (False, False, True):
        update.step()
        assert torch.equal(*weights) == equal
    moved(loss)
    update.step()
    assert not torch.equal(*weights)


def test_updates_refuse_what_they_cannot_do(q_network):
    loss = DQNLoss(q_network(), action_space="categorical")
    with pytest.raises(ValueError, match="pass one of them"):
        SoftUpdate(loss, eps=0.9, tau=0.1)
    with pytest.raises(ValueError, match="expected eps and tau in"):
        SoftUpdate(loss, tau=1.5)
    with pytest.raises(ValueError, match=r"expected eps and tau in .* got 'slow'"):
        SoftUpdate(loss, tau="slow")
    with pytest.raises(ValueError, match="expected at least 1"):
        HardUpdate(loss, value_network_update_interval=0)
    with pytest.raises(TypeError, match="expected a whole number"):
        HardUpdate(loss, value_network_update_interval=2.5)
    choice = ProbabilisticTensorDictModule(
        {"logits": "action_value"}, ["action"], distribution_class=Categorical
    )
    actor = ProbabilisticTensorDictSequential(q_network(), choice)
    with pytest.raises(RuntimeError, match="A2CLoss has no target network"):
        SoftUpdate(A2CLoss(actor))


def test_target_parameters_are_saved_and_do_not_learn(moved, q_network, q_batch):
    loss = DQNLoss(q_network(), action_space="categorical")
    moved(loss)
    again = DQNLoss(q_network(), action_space="categorical")
    again.load_state_dict(loss.state_dict())
    batch = q_batch(trajectories([3, 4, 2], KINDS))
    torch.testing.assert_close(again(batch.clone())["loss"], loss(batch)["loss"])
    learning = [name for name, value in loss.named_parameters() if value.requires_grad]
    assert learning == ["value_network.module.weight", "value_network.module.bias"]
    shared = loss.target_value_network_params["module", "weight"]
    assert shared.data_ptr() == loss.target_value_network.module.weight.data_ptr()
