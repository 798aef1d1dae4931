"""What every loss of an actor and critics keeps, whatever its equation is."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import keys
from rl_layout.testing import trajectories
from rl_value import (
    BCLoss,
    CQLLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    REDQLoss,
    SACLoss,
    TD3BCLoss,
    TD3Loss,
)
from rl_value.losses.bootstrapped.action_space import uniform_actions
from rl_value.testing import check_bootstrapped_loss, check_loss

CHOICES = {"DiscreteSACLoss", "DiscreteCQLLoss", "DQNLoss"}
NARROW = (-1e-9, 1e-9)  # random actions between these are all the same


def makers(nets, group=None):
    """A loss of each kind, none of which depends on chance."""
    spec, choices = {"action_spec": nets.Spec()}, {"action_space": "categorical"}
    narrow = {"action_spec": nets.Spec(*NARROW), "check_finite": False}

    def actor():
        return nets.actor(nets.still, group)

    names = ("deterministic", "critic", "chooser", "action_critic", "state_critic")
    det, critic, chooser, values, worth = (partial(getattr(nets, name), group) for name in names)
    return {
        "SACLoss": lambda: SACLoss(actor(), critic(), **spec),
        "REDQLoss": lambda: REDQLoss(
            actor(), critic(), num_qvalue_nets=3, sub_sample_len=3, **spec
        ),
        "CrossQLoss": lambda: CrossQLoss(actor(), critic(), **spec),
        "CQLLoss": lambda: CQLLoss(actor(), critic(), num_random=2, **narrow),
        "CQLLoss, lagrange": lambda: CQLLoss(
            actor(), critic(), with_lagrange=True, max_q_backup=True, **narrow
        ),
        "IQLLoss": lambda: IQLLoss(actor(), critic(), worth(), **spec),
        "TD3Loss": lambda: TD3Loss(det(), critic(), policy_noise=0.0, **spec),
        "TD3BCLoss": lambda: TD3BCLoss(det(), critic(), policy_noise=0.0, **spec),
        "DDPGLoss": lambda: DDPGLoss(det(), critic(), **spec),
        "BCLoss": lambda: BCLoss(actor()),
        "BCLoss, distance": lambda: BCLoss(det()),
        "DiscreteSACLoss": lambda: DiscreteSACLoss(chooser(), values(), num_actions=3, **choices),
        "DiscreteCQLLoss": lambda: DiscreteCQLLoss(values(), **choices),
        "DQNLoss": lambda: DQNLoss(values(), **choices),
    }


NAMES = [
    *("SACLoss", "REDQLoss", "CrossQLoss", "CQLLoss", "CQLLoss, lagrange", "IQLLoss", "TD3Loss"),
    *("TD3BCLoss", "DDPGLoss", "BCLoss", "BCLoss, distance", "DiscreteSACLoss"),
    *("DiscreteCQLLoss", "DQNLoss"),
]
BOOTSTRAPPED = [name for name in NAMES if not name.startswith("BC")]


def made(nets, name, group=None):
    torch.manual_seed(0)
    return makers(nets, group)[name]().double()


def flat(nets, name, lengths=(3, 4, 2)):
    torch.manual_seed(1)
    batch = nets.flat(list(lengths))
    if name in CHOICES:
        batch["action"] = torch.randint(3, (len(batch),))
    return batch


def slopes(loss, batch, call=None):
    loss.zero_grad()
    found = (loss if call is None else call)(batch)
    sum(value for key, value in found.items() if key.startswith("loss")).backward()
    return found.detach().to_dict(), [
        one.grad.clone() for one in loss.parameters() if one.grad is not None
    ]


@pytest.mark.parametrize("name", NAMES)
def test_losses_keep_the_promises_of_losses(nets, name):
    check = check_bootstrapped_loss if name in BOOTSTRAPPED else check_loss
    check(lambda: made(nets, name), flat(nets, name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("marker", [keys.HISTORY_MISSING, keys.NEXT_MISSING])
def test_steps_left_out_change_no_loss_and_no_gradient(nets, name, marker):
    batch, loss = flat(nets, name), made(nets, name)
    out = torch.zeros(9, dtype=torch.bool)
    out[[6, 8]] = True  # they end segments: one truncated, one cut
    batch[marker] = out
    other = batch.clone()
    other["action"][out] = 0
    other["next", "reward"][out] = 100.0
    other["next", "observation"][out] = 100.0
    one, two = slopes(loss, batch), slopes(loss, other)
    torch.testing.assert_close(one, two)
    whole = slopes(loss, flat(nets, name))[0]
    assert not all(torch.equal(whole[key], one[0][key]) for key in whole)
    if name in BOOTSTRAPPED:
        assert not batch["td_error"][out].any()
        assert batch["td_error"][~out].all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:torch._dynamo.config:FutureWarning")
def test_compiled_losses_are_one_graph_and_equal(nets, name):
    batch, loss = flat(nets, name), made(nets, name)
    batch[keys.MASK] = torch.arange(9) != 4
    torch.compiler.reset()
    call = torch.compile(loss, backend="eager", fullgraph=True)
    torch.manual_seed(2)
    one = slopes(loss, batch.clone())
    torch.manual_seed(2)
    torch.testing.assert_close(slopes(loss, batch.clone(), call), one)


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_targets_of_a_whole_batch_serve_its_parts(nets, name):
    batch, loss = flat(nets, name), made(nets, name)
    found = loss(batch.clone())
    stored = loss.targets(batch)
    assert stored is batch
    whole = loss(batch)
    for key, value in found.items():
        torch.testing.assert_close(whole[key], value)
    error = batch["td_error"].clone()
    for part in batch.split(4):
        loss(part)
    torch.testing.assert_close(batch["td_error"], error)
    assert "targets: stored" in loss.explain(batch)
    assert "next values:" in loss.explain(batch.exclude("action_value_target"))


@pytest.mark.parametrize("name", ["SACLoss", "TD3Loss", "IQLLoss"])
def test_gradients_of_torch_func_are_those_of_autograd(nets, name):
    loss, batch = made(nets, name), flat(nets, name)
    torch.manual_seed(2)
    given = loss.targets(batch.clone())  # outside: what is made inside has no numbers to look at

    def total(parameters):
        found = torch.func.functional_call(loss, parameters, (given,))
        return sum(value for key, value in found.items() if key.startswith("loss"))

    learned = {key: one.detach() for key, one in loss.named_parameters() if one.requires_grad}
    ours = torch.func.grad(total)(learned)
    torch.manual_seed(2)
    slopes(loss, batch.clone())
    theirs = {key: one.grad for key, one in loss.named_parameters() if one.requires_grad}
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_weights_of_priorities_weigh_the_steps(nets, name):
    loss, batch = made(nets, name), flat(nets, name)
    batch["priority_weight"] = (torch.arange(9) == 3).double()
    key = "loss" if name == "DQNLoss" else "loss_value" if name == "DDPGLoss" else "loss_qvalue"
    torch.manual_seed(3)
    alone = loss(batch.clone())[key]
    torch.manual_seed(3)
    loss.targets(batch)
    torch.testing.assert_close(loss(batch[3:4].exclude("priority_weight"))[key], alone)


@pytest.mark.parametrize("name", NAMES)
def test_missing_entries_are_named_with_all_that_is_read(nets, name):
    loss, batch = made(nets, name), flat(nets, name)
    for key in ("action", "observation"):
        with pytest.raises(KeyError, match=rf"'{key}' is missing.*reads \['action'"):
            loss(batch.exclude(key))


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_missing_rewards_and_flags_are_named_with_all_that_is_read(nets, name):
    loss, batch = made(nets, name), flat(nets, name)
    for left_out, key in (("reward",), "reward"), (("terminated", "done"), "terminated"):
        short = batch.exclude(*(("next", one) for one in left_out))
        with pytest.raises(KeyError, match=rf"\('next', '{key}'\) is missing.*reads \['action'"):
            loss(short)
        with pytest.raises(KeyError, match=rf"{type(loss).__name__} reads"):
            loss.targets(short)
    stored = loss.targets(batch).exclude(("next", "reward"))  # which is in the targets
    assert loss(stored).keys() == loss(flat(nets, name)).keys()


@pytest.mark.parametrize(
    "name", [name for name in BOOTSTRAPPED if name not in CHOICES and "CQL" not in name]
)
def test_actions_outside_of_their_spec_are_refused(nets, name):
    loss, batch = made(nets, name), flat(nets, name)
    batch["action"][4, 1] = 1.5
    with pytest.raises(ValueError, match=r"'action' is outside of its spec in 1 of 9.*\(4,\)"):
        loss(batch)
    batch[keys.HISTORY_MISSING] = torch.arange(9) == 4  # it does not count
    loss(batch)


@pytest.mark.parametrize("wrong", [[0, 0, 0], [1, 0, 1]], ids=["none", "two"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("name", sorted(CHOICES))
def test_one_hot_actions_that_are_no_choice_are_refused(nets, name, wrong, dtype):
    loss, batch = made(nets, name), flat(nets, name)
    loss.action_space = "one_hot"
    batch["action"] = torch.nn.functional.one_hot(batch["action"], 3).to(dtype)
    right = loss(batch.clone())
    batch["action"][4] = torch.tensor(wrong).to(dtype)
    with pytest.raises(ValueError, match=r"'action' is no choice in 1 of 9.*\(4,\).* among 3, got"):
        loss(batch.clone())
    batch[keys.HISTORY_MISSING] = torch.arange(9) == 4  # it does not count
    assert loss(batch).keys() == right.keys()


def test_critics_of_different_shapes_are_refused(nets):
    one, other = nets.critic(), nets.critic()
    other.module.weight = torch.nn.Parameter(torch.zeros(1, 7))
    with pytest.raises(ValueError, match=r"'module.weight' is \[1, 4\] in critic 0 and \[1, 7\]"):
        SACLoss(nets.actor(), [one, other], target_entropy=-1.0)
    with pytest.raises(ValueError, match="expected 3 critics, got a list of 2"):
        SACLoss(nets.actor(), [one, nets.critic()], num_qvalue_nets=3, target_entropy=-1.0)


def test_a_composite_has_the_spec_of_the_action_that_the_actor_writes(nets):
    key = "agents", "action"
    actor, det, critic = (
        make(group="agents") for make in (nets.actor, nets.deterministic, nets.critic)
    )
    actor.spec = det.spec = {key: nets.Spec(-1.0, 2.0), ("others", "action"): nets.Spec()}
    for loss in (SACLoss(actor, critic), TD3Loss(det, critic), BCLoss(actor), BCLoss(det)):
        loss.set_keys(action=key)
        assert [bound.tolist() for bound in loss.bounds] == [[-1, -1], [2, 2]]
    named = SACLoss(actor, critic, action_spec={"action": nets.Spec(), key: nets.Spec(-1.0, 2.0)})
    assert named.bounds[1].tolist() == [1, 1]
    with pytest.raises(KeyError, match="action"):
        SACLoss(actor, critic, action_spec={("others", "action"): nets.Spec()})


@pytest.mark.parametrize("key", ["action", ("agents", "action")])
def test_a_critic_that_would_remember_the_actions_of_an_actor_is_refused(nets, key):
    net = TensorDictModule(lambda x, h: (x, h), [key, "memory"], ["value", ("next", "memory")])
    with pytest.raises(ValueError, match=r"recurrent part of qvalue_network reads .*action"):
        DDPGLoss(nets.deterministic(group=key[0] if isinstance(key, tuple) else None), net)


def test_an_automatic_target_entropy_needs_a_spec(nets):
    with pytest.raises(ValueError, match="target_entropy='auto' is not known: pass action_spec="):
        SACLoss(nets.actor(), nets.critic())
    with pytest.raises(ValueError, match="target_entropy='auto' is not known: pass num_actions="):
        DiscreteSACLoss(nets.chooser(), nets.action_critic(), action_space="categorical")
    assert SACLoss(nets.actor(), nets.critic(), action_spec=nets.Spec()).target_entropy == -2


def test_other_bad_arguments_are_named(nets):
    actor, critic, spec = nets.actor(), nets.critic(), {"action_spec": nets.Spec()}
    for given, message in [
        ({"alpha_init": 0.0}, "expected alpha_init, min_alpha and max_alpha above 0"),
        ({"min_alpha": 2.0, "max_alpha": 1.0}, "expected min_alpha below max_alpha"),
        ({"loss_function": "l3"}, "loss_function"),
        ({"num_qvalue_nets": 0}, "num_qvalue_nets: expected at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            SACLoss(actor, critic, **given, **spec)
    with pytest.raises(TypeError, match=r"unexpected argument 'gamma'. Use make_value_estimator"):
        SACLoss(actor, critic, gamma=0.9, **spec)
    with pytest.raises(TypeError, match=r"Use set_keys\(priority="):
        SACLoss(actor, critic, priority_key="error", **spec)
    with pytest.raises(TypeError, match="draws no actions that gradients pass through"):
        SACLoss(nets.chooser(), critic, **spec).double()(nets.flat([3]))
    wide = [nets.critic() for _ in range(2)]
    for one in wide:
        one.module = type(one.module)(4, 3)
    with pytest.raises(ValueError, match="expected values of critics"):
        SACLoss(actor, wide, **spec).double()(nets.flat([3]))
    for given in ((None, critic), (actor, None)):
        with pytest.raises(TypeError, match="_network: expected a module with in_keys"):
            SACLoss(*given, **spec)
    with pytest.raises(ValueError, match="has no copies of its critics"):
        CrossQLoss(actor, critic, delay_qvalue=True, **spec)
    with pytest.raises(ValueError, match="random actions need bounds"):
        CQLLoss(actor, critic, target_entropy=-1.0)
    with pytest.raises(ValueError, match="expectile: expected a number between 0 and 1"):
        IQLLoss(actor, critic, nets.state_critic(), expectile=1.0)


def members_of(name):
    """Five steps of a group of two, one of which is out in the second step."""
    torch.manual_seed(0)
    batch, shape = trajectories([3, 2]), (5, 2)
    for key in ("observation", ("next", "observation")):
        place = ("agents", key) if isinstance(key, str) else ("next", "agents", key[1])
        batch[place] = torch.randn(*shape, 2, dtype=torch.float64)
    batch["agents", "action"] = torch.rand(*shape, 2, dtype=torch.float64)
    if name in CHOICES:
        batch["agents", "action"] = torch.randint(3, shape)
    batch["next", "agents", "reward"] = torch.randn(*shape, 1, dtype=torch.float64)
    for flag in ("done", "terminated"):
        batch["next", "agents", flag] = batch["next", flag][:, None].expand(5, 2, 1).clone()
    batch["agents", "mask"] = torch.ones(shape, dtype=torch.bool)
    batch["agents", "mask"][1, 0] = False
    return batch.exclude("action", "observation", ("next", "observation"))


@pytest.mark.parametrize("name", NAMES)
def test_members_that_are_out_do_not_count(nets, name):
    loss, batch = made(nets, name, "agents"), members_of(name)
    roles = ["action", "reward", "done", "terminated"]
    roles += [key for key in ("action_value",) if name in ("DQNLoss", "DiscreteCQLLoss")]
    loss.set_keys(**{role: ("agents", role) for role in roles})
    other = batch.clone()
    other["next", "agents", "reward"][1, 0] = 50.0
    other["agents", "action"][1, 0] = 0 if name in CHOICES else 0.5
    one = slopes(loss, batch)
    torch.testing.assert_close(slopes(loss, other), one)
    other["agents", "mask"][1, 0] = True
    assert not all(torch.equal(value, one[0][key]) for key, value in loss(other).items())
    if name in BOOTSTRAPPED:
        assert batch["td_error"].shape == (5, 2, 1)
        assert not batch["td_error"][1, 0].any()


def test_random_actions_of_members_are_even_between_the_bounds_of_each(nets):
    spec, batch = nets.Spec(), members_of("CQLLoss")
    spec.shape = torch.Size([2, 2])
    spec.space.low = torch.tensor([[-1.0, -1.0], [-2.0, -3.0]])
    spec.space.high = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    parts = nets.still, "agents"
    loss = CQLLoss(nets.actor(*parts), nets.critic("agents"), action_spec=spec).double()
    roles = ("action", "reward", "done", "terminated")
    loss.set_keys(**{role: ("agents", role) for role in roles})
    assert loss(batch)["loss_cql"].isfinite()
    drawn, density = uniform_actions(loss.bounds, batch["agents", "action"], 50)
    assert drawn[:, :, 1, 1].min() < -1 < drawn[:, :, 0].min()
    torch.testing.assert_close(density.exp(), torch.tensor([[1 / 4], [1 / 16]]).double())
