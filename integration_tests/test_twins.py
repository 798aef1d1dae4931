"""The packages take the places of the skeleton's twins: the same data give the same numbers."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import itertools

import gymnasium
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import EpisodeStepEnv
from rl_layout import Segments, check_layout, set_recurrent_mode
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_value import GAE, ClipPPOLoss
from skeleton.buffer import ListBuffer
from skeleton.environments import CountingEnv
from skeleton.gae import gae
from skeleton.gru import STATE, GRUAgent
from skeleton.ppo import ppo_loss
from skeleton.rows import Collector as TwinCollector
from skeleton.slices import stored_runs

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated"), (2, "truncated")]
HIDDEN, ACTIONS = 7, 2


@pytest.fixture
def agent():
    torch.manual_seed(0)
    return GRUAgent(2, HIDDEN, ACTIONS, torch.Generator().manual_seed(0))


@pytest.fixture
def rows(agent):
    """Flat rows of the twin: two environments, end to end."""
    environments = [CountingEnv(ENDINGS), CountingEnv(ENDINGS[::-1], first_episode=100)]
    twin = TwinCollector(environments, agent, agent.primer(), producer=6)
    twin.collect(3)  # so that the rows begin in mid-trajectory
    return stored(twin.collect(20).reshape(-1))


def stored(batch):
    """The twin's rows as ours are: a state has a dimension of layers, an action is one-hot."""
    ours = batch.clone()
    ours["action"] = nn.functional.one_hot(batch["action"], ACTIONS).bool()
    ours["recurrent_state"] = batch[STATE].unsqueeze(-2)
    ours["next", "recurrent_state"] = batch["next", STATE].unsqueeze(-2)
    ours["twin", "action"], ours["twin", STATE] = batch["action"], batch[STATE]
    return ours


def as_twin(ours):
    batch = ours.clone()
    batch["action"], batch[STATE] = ours["twin", "action"], ours["twin", STATE]
    return batch


def networks(agent):
    """The twin's agent as modules of ours, with its weights."""
    body = GRUModule(2, HIDDEN, in_key="observation", out_key="features")
    weights = {f"{name}_l0": value for name, value in agent.cell.state_dict().items()}
    body.gru.load_state_dict(weights)
    actor_head = TensorDictModule(agent.actor, ["features"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(body, actor_head),
        in_keys=["logits"],
        spec=EpisodeStepEnv().action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(body, ValueOperator(agent.critic, in_keys=["features"]))
    return body, actor, critic


def test_the_collector_writes_what_its_twin_writes():
    def push(root):
        action = torch.zeros(*root.batch_size, ACTIONS, dtype=torch.bool)
        action[..., 1] = True
        return root.set("action", action)

    def push_one(root):
        return root.set("action", torch.tensor(1))

    twins = [CountingEnv(ENDINGS), CountingEnv(ENDINGS[::-1], first_episode=100)]
    twin = TwinCollector(twins, push_one, CountingEnv(ENDINGS).reset().empty(), producer=6)
    makers = [
        lambda: EpisodeStepEnv(ENDINGS),
        lambda: EpisodeStepEnv(ENDINGS[::-1], first_episode=100),
    ]
    ours = Collector(SerialEnv(2, makers), push, frames_per_batch=14, producer=6)
    for _ in range(4):
        expected, found = twin.collect(7), ours.next()
        for key in expected.exclude("action").keys(True, True):
            assert torch.equal(found[key], expected[key]), key


def test_a_recurrent_policy_leaves_the_states_that_its_twin_replays(agent):
    _, actor, critic = networks(agent)
    collector = Collector(
        lambda: EpisodeStepEnv(ENDINGS), TensorDictSequential(actor, critic), frames_per_batch=15
    )
    collector.next()
    batch = collector.next()
    batch[STATE] = batch["recurrent_state"].squeeze(-2)
    assert collector.stats()["policy"]["flat"]
    assert_close(agent.unroll(batch), batch["next", "recurrent_state"].squeeze(-2))


def test_an_unroll_gives_what_its_twin_gives(agent, rows):
    body, _, _ = networks(agent)
    with set_recurrent_mode(True):
        features = body(rows.clone())["features"]
    assert_close(features, agent.unroll(as_twin(rows)))


def test_advantages_are_those_of_the_twin(agent, rows):
    _, _, critic = networks(agent)
    with torch.no_grad():
        value, next_value = agent.values(as_twin(rows))
        advantage, target = gae(rows, value, next_value, 0.95, 0.9)
        GAE(gamma=0.95, lmbda=0.9, value_network=critic)(rows)
    assert_close(rows["advantage"], advantage)
    assert_close(rows["value_target"], target)


def test_a_loss_and_its_gradients_are_those_of_the_twin(agent, rows):
    _, actor, critic = networks(agent)
    rows["sample_log_prob"] += torch.linspace(-0.4, 0.4, len(rows))
    with torch.no_grad():
        GAE(gamma=0.95, lmbda=0.9, value_network=critic)(rows)
    expected = ppo_loss(agent, as_twin(rows))
    grads = torch.autograd.grad(expected, [agent.actor.weight, agent.critic.weight])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.01,
        critic_coeff=0.05,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    found = loss(rows)
    total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
    assert_close(total, expected)
    mine = torch.autograd.grad(total, list(loss.parameters()), allow_unused=True)
    by_shape = {tuple(grad.shape): grad for grad in mine if grad is not None}
    assert_close(by_shape[ACTIONS, HIDDEN], grads[0])
    assert_close(by_shape[1, HIDDEN], grads[1])


@pytest.mark.parametrize("capacity", [64, 31])
def test_slices_are_pieces_of_the_runs_that_the_twin_finds(rows, capacity):
    twin = ListBuffer(capacity)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SliceSampler(slice_len=4),
        batch_size=32,
        generator=torch.Generator().manual_seed(0),
    )
    for start, stop in itertools.pairwise([0, 9, 20, 27, 40]):
        twin.extend(rows[start:stop].exclude("twin"))
        buffer.extend(rows[start:stop].exclude("twin"))
    runs = ["".join(map(chr, run)) for run in stored_runs(twin)]
    seen = set()
    for _ in range(50):
        sample = buffer.sample()
        assert not check_layout(sample).errors
        for places in sample["index"].split(Segments.of(sample).lengths.tolist()):
            piece = "".join(map(chr, places.tolist()))
            assert sum(piece in run for run in runs) == 1
            seen.update(places.tolist())
    assert seen == set(range(len(twin)))


def test_a_network_says_the_same_step_by_step_and_all_at_once(agent):
    _, actor, critic = networks(agent)
    space = gymnasium.spaces.Box(-10, 10, (2,))
    seen = gymnasium.wrappers.TransformObservation(
        gymnasium.make("CartPole-v1"), lambda observation: observation[[0, 2]], space
    )
    policy = TensorDictSequential(actor, critic)
    batch = Collector(GymEnv(seen), policy, frames_per_batch=60).next()
    with torch.no_grad(), set_recurrent_mode(True):
        again = critic(batch.exclude("state_value", "features"))
    assert_close(again["state_value"], batch["state_value"])
