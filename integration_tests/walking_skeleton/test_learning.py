"""The walking skeleton replays what was played, and learns from it."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

from collections import deque

import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl_layout import keys
from skeleton.buffer import ListBuffer
from skeleton.environments import CartPoleEnv
from skeleton.gae import gae
from skeleton.gru import STATE, GRUAgent
from skeleton.ppo import ppo_loss, update
from skeleton.rows import Collector
from skeleton.slices import sample_slices

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated"), (2, "truncated")]


@pytest.fixture
def one_thread():
    """Keep torch to one thread: more only wait for each other in a loop over small rows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_replay_equals_the_steps_that_were_played(collector, agent):
    collector.collect(4)  # so that the rows begin in the middle of trajectories
    rows = collector.collect(9).reshape(-1)
    assert not rows[keys.IS_INIT][0]

    states = agent.unroll(rows)
    assert_close(states, rows["next", STATE])
    log_probs = agent.actor(states).log_softmax(-1)
    assert_close(log_probs.gather(-1, rows["action"][:, None])[:, 0], rows["sample_log_prob"])


def test_replay_of_slices_equals_the_steps_that_were_played(collector, agent, generator, filled):
    sample = sample_slices(filled(collector, 4, 9), 11, 3, generator)

    assert_close(agent.unroll(sample), sample["next", STATE])


def test_segment_starts_from_the_state_stored_in_its_first_row(collector, agent):
    rows = collector.collect(9)[0]
    starts = rows[keys.IS_INIT][:, 0]
    rows[STATE][starts] = 0.5

    states = agent.unroll(rows)
    assert_close(states[starts], agent.cell(rows["observation"][starts], rows[STATE][starts]))


def test_gradient_goes_back_to_the_start_of_the_segment_and_no_further(collector, agent):
    rows = collector.collect(9)[0]
    rows["observation"].requires_grad_()

    agent.unroll(rows)[6].sum().backward()
    # row 6 is step 3 of the second episode, whose first row is row 3
    assert rows[keys.TRAJ_STEP].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    reached = rows["observation"].grad.any(-1)
    assert reached.tolist() == [False] * 3 + [True] * 4 + [False] * 2


def test_next_values_are_of_the_real_next_observation(collector, agent):
    rows = collector.collect(9).reshape(-1)

    value, next_value = agent.values(rows)
    after = agent.cell(rows["next", "observation"], rows["next", STATE])
    assert_close(next_value, agent.critic(after))
    assert_close(value, agent.critic(rows["next", STATE]))


# rewards 1, 2, 4; every value is 1, and that of the last next observation is 8; γ = λ = ½
# terminated: δ = 1 + ½ - 1, 2 + ½ - 1, 4 - 1           A = ½ + 2.25/4, 1.5 + 3/4, 3
# going on:   δ = 1 + ½ - 1, 2 + ½ - 1, 4 + 8/2 - 1     A = ½ + 3.25/4, 1.5 + 7/4, 7
TERMINATED = [1.0625, 2.25, 3.0]

GOING_ON = [1.3125, 3.25, 7.0]


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (keys.NEXT_TERMINATED, TERMINATED),
        (keys.NEXT_TRUNCATED, GOING_ON),
        (None, GOING_ON),
    ],
)
def test_gae_of_each_ending(ending, expected, one_trajectory):
    first, second = one_trajectory(3), one_trajectory(3)
    if ending is not None:
        first[ending][-1] = first[keys.NEXT_DONE][-1] = True
    second[keys.TRAJ_IDS] += 1
    value, next_value = torch.ones(6, 1), torch.tensor([[1.0], [1.0], [8.0]]).repeat(2, 1)

    advantage, target = gae(torch.cat([first, second]), value, next_value, 0.5, 0.5)
    # the batch ends in the middle of the second
    assert advantage.flatten().tolist() == expected + GOING_ON
    assert torch.equal(target, advantage + 1)


def test_gae_leaves_out_a_row_without_its_next_observation(one_trajectory):
    rows = one_trajectory(3)
    rows[keys.NEXT_MISSING] = torch.tensor([False, False, True])
    next_value = torch.tensor([[1.0], [1.0], [float("nan")]])

    advantage, _ = gae(rows, torch.ones(3, 1), next_value, 0.5, 0.5)
    # as after a cut after the second row: A = ½ + 1.5/4, 1.5
    assert advantage.flatten().tolist() == [0.875, 1.5, 0.0]


@pytest.mark.parametrize(("key", "left_out"), [(keys.MASK, False), (keys.NEXT_MISSING, True)])
def test_loss_is_over_real_steps_only(collector, agent, generator, key, left_out):
    rows = collector.collect(9).reshape(-1)
    rows["advantage"] = torch.randn(18, 1, generator=generator)
    rows["value_target"] = torch.randn(18, 1, generator=generator)
    expected = ppo_loss(agent, rows[:13])

    rows["advantage"][13:] = rows["value_target"][13:] = float("nan")
    rows[key] = torch.full((18,), not left_out)
    rows[key][13:] = left_out
    assert_close(ppo_loss(agent, rows), expected)


def test_loss_clips_the_gain(collector, agent):
    rows = collector.collect(2).reshape(-1)
    rows["advantage"] = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    rows["value_target"] = agent.values(rows)[0].detach()
    # the actions are now e² times as likely as when they were drawn
    rows["sample_log_prob"] = rows["sample_log_prob"] - 2

    loss = ppo_loss(agent, rows)
    log_probs = agent.actor(agent.unroll(rows)).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    # advantages over their deviation √(4/3); the good ones gain 1.2, the bad ones cost e²
    gain = (1.2 - torch.e**2) / 2 / (4 / 3) ** 0.5
    assert_close(loss, -gain - 0.01 * entropy, check_dtype=False)


def mean_return(batches):
    """Mean over the episodes that ended: a step of CartPole is worth 1, so a length is a return."""
    rows = torch.cat(list(batches), 1)
    return float((rows[keys.TRAJ_STEP][rows[keys.NEXT_DONE][..., 0]] + 1).float().mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ppo_learns_cartpole(generator):
    environments = [CartPoleEnv(seed) for seed in range(8)]
    agent = GRUAgent(4, 32, 2, generator)

    def act_at_random(root):
        return root.set("action", torch.randint(2, (), generator=generator))

    random = mean_return([Collector(environments, act_at_random, TensorDict()).collect(200)])
    collector = Collector(environments, agent, agent.primer())
    buffer = ListBuffer(8 * 64)
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-3)
    latest = deque(maxlen=5)
    for _ in range(40):
        latest.append(collector.collect(64))
        buffer.extend(latest[-1])
        for _ in range(12):
            update(agent, optimizer, sample_slices(buffer, 8, 48, generator))
        collector.policy_version += 1
        # enough is enough: what is slow on a slow core stops as early as it can
        if len(latest) == 5 and mean_return(latest) > 3 * random:
            break

    assert 15 < random < 30
    assert mean_return(latest) > 3 * random
