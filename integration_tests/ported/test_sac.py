"""SAC and DDPG written by hand, as scripts do that have a loss of their own."""

import copy

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import GymEnv
from rl_policies import (
    MLP,
    AdditiveGaussianModule,
    ProbabilisticActor,
    SafeModule,
    SafeSequential,
    TanhNormal,
    ValueOperator,
)
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import DoubleToFloat, InitTracker, MultiStepTransform, RewardSum, StepCounter
from rl_value import SoftUpdate


def make_env():
    env = GymEnv("Pendulum-v1").append_transform(DoubleToFloat())
    env.append_transform(RewardSum())
    env.append_transform(StepCounter())
    return env.append_transform(InitTracker())


def critics(number):
    return [
        ValueOperator(
            MLP(in_features=4, out_features=1, num_cells=[16]),
            in_keys=["observation", "action"],
            out_keys=["state_action_value"],
        )
        for _ in range(number)
    ]


def value_of(critic, observation, action):
    """Q(s, a) of tensors; networks of one module concatenate what they are given."""
    return critic.module(torch.cat([observation, action], -1))


def make_actor(env):
    high = env.action_spec.space.high
    return ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(MLP(3, 2, num_cells=[16]), NormalParamExtractor()),
            in_keys=["observation"],
            out_keys=["loc", "scale"],
        ),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -high, "high": high},
        return_log_prob=False,
    )


def losses_of_sac(batch, actor, pair, late, alpha):
    """Losses of the critics and of the actor, and log-probabilities of its actions."""
    with torch.no_grad():
        ahead = actor.get_dist(batch["next"])
        action = ahead.rsample()
        values = torch.stack([value_of(net, batch["next", "observation"], action) for net in late])
        soft = values.min(0).values - alpha * ahead.log_prob(action).unsqueeze(-1)
        alive = ~batch["next", "terminated"]
        target = batch["next", "reward"] + 0.99 * alive * soft
    found = [value_of(net, batch["observation"], batch["action"]) for net in pair]
    loss_q = sum(nn.functional.smooth_l1_loss(one, target) for one in found)
    now = actor.get_dist(batch)
    action = now.rsample()
    log_prob = now.log_prob(action).unsqueeze(-1)
    best = torch.stack([value_of(net, batch["observation"], action) for net in pair]).min(0)
    return loss_q, (alpha * log_prob - best.values).mean(), log_prob


def test_sac_by_hand():
    env = make_env()
    actor = make_actor(env)
    pair = critics(2)
    late = copy.deepcopy(pair)
    updaters = [SoftUpdate(net, target, tau=0.05) for net, target in zip(pair, late, strict=True)]
    log_alpha = torch.zeros((), requires_grad=True)
    optim = torch.optim.Adam([*actor.parameters(), *pair[0].parameters(), *pair[1].parameters()])
    optim_alpha = torch.optim.Adam([log_alpha])
    collector = SyncDataCollector(
        env,
        actor,
        init_random_frames=50,
        frames_per_batch=50,
        total_frames=200,
        max_frames_per_traj=-1,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
    for data in collector:
        buffer.extend(data)
        batch = buffer.sample()
        alpha = log_alpha.exp().detach()
        loss_q, loss_actor, log_prob = losses_of_sac(batch, actor, pair, late, alpha)
        optim.zero_grad()
        (loss_q + loss_actor).backward()
        optim.step()
        optim_alpha.zero_grad()
        (-log_alpha * (log_prob.detach() - 1)).mean().backward()
        optim_alpha.step()
        for updater in updaters:
            updater.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert loss_q.isfinite()
    assert log_alpha.item() != 0


def test_ddpg_by_hand_on_rows_of_several_steps():
    env = make_env()
    spec = env.action_spec
    actor = SafeModule(
        nn.Sequential(MLP(3, 1, num_cells=[16]), nn.Tanh()),
        in_keys=["observation"],
        out_keys=["action"],
        spec=spec,
        safe=False,
    )
    noise = AdditiveGaussianModule(spec=spec, annealing_num_steps=100, sigma_init=0.5)
    explore = SafeSequential(actor, noise)
    (critic,) = critics(1)
    late_actor, late_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    updaters = [SoftUpdate(actor, late_actor, tau=0.05), SoftUpdate(critic, late_critic, tau=0.05)]
    optim = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-3)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000),
        batch_size=32,
        transform=MultiStepTransform(n_steps=3, gamma=0.99),
    )
    collector = SyncDataCollector(env, explore, frames_per_batch=50, total_frames=150)
    for data in collector:
        buffer.extend(data)
        noise.step(data.numel())
        batch = buffer.sample()
        with torch.no_grad():
            action = late_actor(batch["next"].select("observation"))["action"]
            ahead = value_of(late_critic, batch["next", "observation"], action)
            power = 0.99 ** batch["next", "steps_to_next_obs"]
            target = batch["next", "reward"] + power * ~batch["next", "terminated"] * ahead
        found = value_of(critic, batch["observation"], batch["action"])
        loss_q = nn.functional.mse_loss(found, target)
        acted = actor(batch.select("observation"))["action"]
        loss_actor = -value_of(critic, batch["observation"], acted).mean()
        optim.zero_grad()
        (loss_q + loss_actor).backward()
        optim.step()
        for updater in updaters:
            updater.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert loss_q.isfinite()
