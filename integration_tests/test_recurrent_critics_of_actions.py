"""SAC with recurrent networks on flat slices: targets by single steps of the cell."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from rl_layout.testing import EndKind, trajectories
from rl_policies import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_value import SACLoss

GAMMA, HIDDEN = 0.9, 5
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


class Still(IndependentNormal):
    """A distribution whose samples are its mean, so that targets do not depend on chance."""

    def rsample(self, sample_shape=()):
        """The mean."""
        return self.loc.expand(*sample_shape, *self.loc.shape)


def gru(name, **settings):
    given = {"in_key": "observation", "out_key": f"{name}_features"}
    keys_of_state = {"in_keys": ["observation", f"{name}_state", "is_init"]}
    del given["in_key"], given["out_key"]
    out_keys = [f"{name}_features", ("next", f"{name}_state")]
    return GRUModule(2, HIDDEN, **keys_of_state, out_keys=out_keys, **settings)


def made(**settings):
    torch.manual_seed(0)
    body = nn.Sequential(MLP(HIDDEN, 2, num_cells=[7]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictSequential(
            gru("actor", **settings), TensorDictModule(body, ["actor_features"], ["loc", "scale"])
        ),
        ["loc", "scale"],
        distribution_class=Still,
    )
    heads = ValueOperator(MLP(HIDDEN + 1, 1, num_cells=[7]), ["critic_features", "action"])
    critic = TensorDictSequential(gru("critic", **settings), heads.ensemble(2))
    loss = SACLoss(actor, critic, target_entropy=-1.0).double()
    with torch.no_grad():
        for value in loss.target_qvalue_network.parameters():
            value.add_(torch.randn_like(value) / 3)
    return loss.make_value_estimator(gamma=GAMMA)


def rows(lengths=(3, 4, 2)):
    torch.manual_seed(1)
    batch, size = trajectories(list(lengths), KINDS), sum(lengths)
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].double() / 10
    batch["action"] = torch.rand(size, 1, dtype=torch.float64)
    batch["next", "reward"] = torch.randn(size, 1, dtype=torch.float64)
    for name in ("actor", "critic"):
        batch[f"{name}_state"] = torch.randn(size, 1, HIDDEN, dtype=torch.float64)
    return batch


def features(module, batch, start, end):
    """Outputs of a cell over rows and the last next observation, one step at a time."""
    cell = nn.GRUCell(2, HIDDEN).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    found = {name.removesuffix("_l0").split(".")[-1]: p for name, p in module.named_parameters()}
    cell.load_state_dict({name: found[name] for name in names})
    seen = torch.cat([batch["observation"][start:end], batch["next", "observation"][end - 1 : end]])
    state, out = batch[module.in_keys[1]][start, 0][None], []
    for one in seen:
        state = cell(one[None], state)
        out.append(state)
    return torch.cat(out)


def test_targets_continue_the_state_into_the_next_observation():
    loss, batch, lengths = made(), rows(), (3, 4, 2)
    loss.targets(batch)
    wanted, start = [], 0
    actor, critic = loss.actor_network.module[0], loss.target_qvalue_network.module
    for length in lengths:
        end = start + length
        body = actor.module if hasattr(actor, "module") else actor
        mine = features(body[0], batch, start, end)[1:]
        loc, scale = body[1].module(mine)
        q = critic[1].module(features(critic[0], batch, start, end)[1:], loc)
        log_prob = IndependentNormal(loc, scale).log_prob(loc)[:, None]
        alive = (~batch["next", "terminated"][start:end]).double()
        worth = q.amin(-2) - log_prob
        wanted.append(batch["next", "reward"][start:end] + GAMMA * alive * worth)
        start = end
    torch.testing.assert_close(batch["action_value_target"], torch.cat(wanted).detach())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:torch._dynamo.config:FutureWarning")
def test_each_slice_depends_on_its_own_rows(compiled):
    loss, batch = made(max_length=8) if compiled else made(), rows()
    torch.compiler.reset()
    call = torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss
    call(batch)
    for part in batch.split([3, 4, 2]):
        alone = part.clone()
        loss(alone)
        torch.testing.assert_close(alone["td_error"], part["td_error"])


def test_a_recurrent_part_that_reads_the_action_is_refused():
    memory = GRUModule(
        1,
        HIDDEN,
        in_keys=["action", "critic_state", "is_init"],
        out_keys=["critic_features", ("next", "critic_state")],
    )
    head = ValueOperator(nn.Linear(HIDDEN, 1), ["critic_features"]).ensemble(2)
    critic = TensorDictSequential(memory, head)
    with pytest.raises(ValueError, match="would remember actions that were not taken"):
        SACLoss(made().actor_network, critic, target_entropy=-1.0)
    plain = TensorDictSequential(
        gru("critic"), ValueOperator(nn.Linear(HIDDEN + 1, 1), ["critic_features", "action"])
    )
    with pytest.raises(ValueError, match="keeps a recurrent state, which its copies would share"):
        SACLoss(made().actor_network, plain, target_entropy=-1.0)
