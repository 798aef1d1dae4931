"""Actor and critic with a memory each: each has a state key of its own, shared keys are refused."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import SerialEnv, TransformedEnv, wire_policy
from rl_envs.rollouts.policy_plan import policy_plan
from rl_envs.testing import CountingEnv
from rl_layout.synthetic import trajectories
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_recurrent import GRUModule, LSTMModule
from rl_transforms import Compose, InitTracker
from rl_value import GAE, A2CLoss, ClipPPOLoss, DQNLoss, ReinforceLoss, VTrace

SIZE = 4
BODIES = {
    "lstm": lambda out: LSTMModule(1, SIZE, in_key="observation", out_key=out),
    "gru": lambda out: GRUModule(1, SIZE, in_key="observation", out_key=out),
    "python": lambda out: GRUModule(
        1, SIZE, in_key="observation", out_key=out, recurrent_backend="scan", max_length=9
    ),
}


def owned(role, kind=GRUModule):
    """A body whose states are its own."""
    names = [f"{role}_h", f"{role}_c"][: 1 if kind is GRUModule else 2]
    in_keys, out_keys = ["observation", *names], [f"{role}_x", *(("next", n) for n in names)]
    return kind(1, SIZE, in_keys=in_keys, out_keys=out_keys)


def actor_on(body):
    """A policy over a body, with actions and their probabilities."""
    logits = TensorDictModule(nn.Linear(SIZE, 2), [body.out_keys[0]], ["logits"])
    return ProbabilisticActor(
        TensorDictSequential(body, logits),
        in_keys=["logits"],
        out_keys=["action"],
        spec=CountingEnv().action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def critic_on(body):
    """A value head over a body."""
    head = TensorDictModule(nn.Linear(SIZE, 1), [body.out_keys[0]], ["state_value"])
    return TensorDictSequential(body, head)


@pytest.fixture(params=sorted(BODIES))
def short(request):
    """Actor and critic in the short form, used twice: one state key."""
    make = BODIES[request.param]
    return actor_on(make("actor_x")), critic_on(make("critic_x"))


@pytest.mark.parametrize("name", BODIES)
def test_a_recurrent_policy_acts_on_plain_tensors(name):
    """A step of its network is called in the place of its forward, and does the same."""
    policy = actor_on(BODIES[name]("x"))
    plan, env = policy_plan(policy), CountingEnv(policy=policy)
    values = {key: env.reset()[key[0]] for key in plan.in_keys}
    plan(values, env.batch_size)
    assert plan.stats()["flat"]
    assert plan.stats()["fallback"] == plan.stats()["reason"] == ""


NAMED = r"policy\.module\.0.*and 'policy\.module\.1.*'recurrent_state.*in_keys and out_keys"
ROLES = r"'actor_network.*and 'critic_network.*'recurrent_state.*in_keys and out_keys"


@pytest.mark.parametrize(
    "use",
    [
        lambda policy: wire_policy(CountingEnv(), policy),
        lambda policy: CountingEnv(policy=policy),
        lambda policy: SerialEnv(2, CountingEnv, policy=policy),
        lambda policy: TransformedEnv(CountingEnv(), policy=policy),
        lambda policy: Collector(CountingEnv(), policy, frames_per_batch=8),
        lambda policy: CountingEnv().rollout(3, policy),
        policy_plan,
    ],
    ids=["wiring", "own", "serial", "transformed", "collector", "rollout", "plan"],
)
def test_one_state_key_for_two_networks_is_refused_where_a_policy_is_bound(use, short):
    """The message names both modules, the key and the cure."""
    with pytest.raises(ValueError, match=NAMED):
        use(TensorDictSequential(*short))


@pytest.mark.parametrize("loss", [ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_losses_refuse_one_state_key_for_actor_and_critic(loss, short):
    """Networks are named by their role in the loss."""
    with pytest.raises(ValueError, match=ROLES):
        loss(*short)


def test_estimators_refuse_one_state_key_for_two_networks(short):
    """V-trace has two networks, and a value network may be two."""
    actor, critic = short
    with pytest.raises(ValueError, match=r"'actor_network.*and 'value_network"):
        VTrace(gamma=0.9, actor_network=actor, value_network=critic)
    stacked = TensorDictSequential(critic, actor.module[0])
    with pytest.raises(ValueError, match=r"'value_network\.module\.0.*and 'value_network"):
        GAE(gamma=0.9, lmbda=0.9, value_network=stacked)


def test_layers_of_a_value_network_need_states_of_their_own():
    """Stacked networks overwrite each other just the same."""
    first = GRUModule(2, SIZE, in_key="observation", out_key="x")
    second = GRUModule(SIZE, SIZE, in_key="x", out_key="y")
    head = TensorDictModule(nn.Linear(SIZE, 3), ["y"], ["action_value"])
    with pytest.raises(ValueError, match="'recurrent_state'"):
        DQNLoss(TensorDictSequential(first, second, head), action_space="categorical")


def test_rollouts_in_an_environment_with_primers_made_by_hand_refuse_it_too(short):
    """One primer by hand would serve both networks."""
    actor, critic = short
    primer = actor.module[0].module[0].make_tensordict_primer()
    env = TransformedEnv(CountingEnv(), Compose(InitTracker(), primer))
    with pytest.raises(ValueError, match=NAMED):
        env.rollout(3, TensorDictSequential(actor, critic))


@pytest.mark.parametrize("kind", [GRUModule, LSTMModule])
def test_a_shared_backbone_stays_allowed(kind):
    """One module in both places has one state."""
    body = kind(1, SIZE, in_key="observation", out_key="x")
    actor, critic = actor_on(body), critic_on(body)
    collector = Collector(
        CountingEnv(max_steps=4), TensorDictSequential(actor, critic), frames_per_batch=8
    )
    batch = next(iter(collector))
    collector.shutdown()
    loss = ClipPPOLoss(actor, critic)(batch)
    assert torch.isfinite(loss["loss_objective"])
    GAE(gamma=0.9, lmbda=0.9, value_network=critic)(batch)


def test_delayed_copies_of_a_critic_are_no_second_network():
    """Copies of the loss itself read the state of the original."""
    actor, critic = actor_on(owned("actor")), critic_on(owned("critic"))
    loss = ClipPPOLoss(actor, critic, delay_value=True)
    loss.make_value_estimator("VTrace")


@pytest.mark.parametrize("kind", [GRUModule, LSTMModule])
def test_states_of_their_own_are_those_that_each_network_left(kind):
    """Brute force: each network alone, step by step, over what was collected."""
    torch.manual_seed(0)
    actor, critic = actor_on(owned("actor", kind)), critic_on(owned("critic", kind))
    collector = Collector(
        CountingEnv(max_steps=3), TensorDictSequential(actor, critic), frames_per_batch=8
    )
    batch = next(iter(collector))
    collector.shutdown()
    for network in (actor.module[0].module[0], critic.module[0]):
        states = [torch.zeros(1, 1, SIZE) for _ in network.state_keys]
        for row in batch.flatten():
            if row["is_init"]:
                states = [torch.zeros(1, 1, SIZE) for _ in network.state_keys]
            for key, state in zip(network.state_keys, states, strict=True):
                torch.testing.assert_close(row[key], state[0])
            _, *states = network.step(row["observation"][None], *states, row["is_init"][None])


def test_the_short_form_is_right_for_one_network():
    """One network needs no names of its own."""
    body = LSTMModule(2, SIZE, in_key="observation", out_key="x")
    batch = trajectories([3, 2])
    for key in body.state_keys:
        batch[key] = torch.zeros(5, 1, SIZE)
    GAE(gamma=0.9, lmbda=0.9, value_network=critic_on(body))(batch)
    assert batch["advantage"].shape == (5, 1)


def losses_of(actor, critic, batch):
    """Losses of an actor and a critic, and the gradients of their parameters."""
    loss = ClipPPOLoss(actor, critic)
    found = loss(batch.copy())
    total = sum(value for key, value in found.items() if key.startswith("loss_"))
    wanted = list(loss.parameters())
    return total, *torch.autograd.grad(total, wanted, allow_unused=True)


@pytest.mark.parametrize("kind", [GRUModule, LSTMModule])
def test_layers_of_recurrent_networks_in_losses_are_calls_on_tensors(kind):
    """The recurrent part alone is called on a tensordict; the numbers are those of the modules."""
    actor, critic = actor_on(owned("actor", kind)), critic_on(owned("critic", kind))
    env = CountingEnv(policy=TensorDictSequential(actor, critic))
    batch = env.rollout(7, TensorDictSequential(actor, critic)).exclude("state_value")
    GAE(gamma=0.9, lmbda=0.8, value_network=critic)(batch)
    called = []
    hook = nn.modules.module.register_module_forward_hook(lambda net, *_: called.append(type(net)))
    fast = losses_of(actor, critic, batch)
    hook.remove()
    assert called.count(kind) == called.count(nn.Linear) == 2
    assert TensorDictModule not in called
    for network in (actor.module[0], critic):  # a layer with a hook is called as it is
        network.module[1].register_forward_hook(lambda *_: None)
    slow = losses_of(actor, critic, batch)
    assert [None if x is None else x.tolist() for x in fast] == [
        None if x is None else x.tolist() for x in slow
    ]
