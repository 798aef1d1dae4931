"""PPO on a vector of observations, continuous actions, statistics taken in the environment."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import GymEnv, TransformedEnv, check_env_specs
from rl_policies import (
    ExplorationType,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
    set_exploration_type,
)
from rl_replay import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from rl_transforms import Compose, DoubleToFloat, ObservationNorm, StepCounter
from rl_value import GAE, ClipPPOLoss

FRAMES, ROUNDS, EPOCHS, ROWS = 100, 2, 2, 50


def make_env(device):
    return TransformedEnv(
        GymEnv("Pendulum-v1", device=device),
        Compose(ObservationNorm(in_keys=["observation"]), DoubleToFloat(), StepCounter()),
    )


def make_modules(env, device):
    actor_net = nn.Sequential(
        nn.LazyLinear(16, device=device),
        nn.Tanh(),
        nn.LazyLinear(2 * env.action_spec.shape[-1], device=device),
        NormalParamExtractor(),
    )
    policy_module = ProbabilisticActor(
        module=TensorDictModule(actor_net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={
            "low": env.full_action_spec[env.action_key].space.low,
            "high": env.full_action_spec[env.action_key].space.high,
        },
        return_log_prob=True,
    )
    value_module = ValueOperator(
        module=nn.Sequential(nn.LazyLinear(16, device=device), nn.Tanh(), nn.LazyLinear(1)),
        in_keys=["observation"],
    )
    policy_module(env.reset())  # makes the lazy layers
    value_module(env.reset())
    return policy_module, value_module


def make_loss(policy_module, value_module):
    return ClipPPOLoss(
        actor_network=policy_module,
        critic_network=value_module,
        clip_epsilon=0.2,
        entropy_bonus=True,
        entropy_coeff=1e-4,
        critic_coeff=1.0,
        loss_critic_type="smooth_l1",
    )


def step(loss_module, optim, subdata):
    loss_vals = loss_module(subdata)
    loss_value = loss_vals["loss_objective"] + loss_vals["loss_critic"] + loss_vals["loss_entropy"]
    loss_value.backward()
    torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
    optim.step()
    optim.zero_grad()


def test_ppo_on_continuous_actions():
    device = "cpu"
    env = make_env(device)
    env.set_seed(0)
    env.transform[0].init_stats(num_iter := 50, reduce_dim=0, cat_dim=0)
    assert env.transform[0].loc.shape == (3,)
    assert num_iter == 50
    check_env_specs(env)
    eval_env = make_env(device)  # of its own: one that a collector plays is not stepped elsewhere
    eval_env.transform[0].load_state_dict(env.transform[0].state_dict())

    policy_module, value_module = make_modules(env, device)
    collector = SyncDataCollector(
        env,
        policy_module,
        frames_per_batch=FRAMES,
        total_frames=FRAMES * ROUNDS,
        split_trajs=False,
        device=device,
    )
    replay_buffer = ReplayBuffer(
        storage=LazyTensorStorage(max_size=FRAMES), sampler=SamplerWithoutReplacement()
    )
    advantage_module = GAE(gamma=0.99, lmbda=0.95, value_network=value_module, average_gae=True)
    loss_module = make_loss(policy_module, value_module)
    optim = torch.optim.Adam(loss_module.parameters(), 3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optim, ROUNDS, 0.0)
    before = [one.clone() for one in loss_module.parameters()]

    for i, tensordict_data in enumerate(collector):
        for _ in range(EPOCHS):
            advantage_module(tensordict_data)
            data_view = tensordict_data.reshape(-1)
            replay_buffer.extend(data_view.cpu())
            for _ in range(FRAMES // ROWS):
                subdata = replay_buffer.sample(ROWS)
                step(loss_module, optim, subdata.to(device))
        assert tensordict_data["next", "reward"].mean().isfinite()
        if i % 10 == 0:
            with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
                eval_rollout = eval_env.rollout(20, policy_module)
                assert eval_rollout["step_count"].max() == 19
        scheduler.step()
    collector.shutdown()
    assert any(not torch.equal(a, b) for a, b in zip(before, loss_module.parameters(), strict=True))
