"""SAC with priorities, TD3, and IQL from a dump, with the losses that are there."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import GymEnv, TransformedEnv
from rl_policies import (
    MLP,
    AdditiveGaussianModule,
    ExplorationType,
    ProbabilisticActor,
    SafeModule,
    TanhNormal,
    ValueOperator,
    set_exploration_type,
)
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl_transforms import Compose, DoubleToFloat, InitTracker, RewardSum, StepCounter
from rl_value import IQLLoss, SACLoss, SoftUpdate, TD3Loss


def make_env():
    return TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(InitTracker(), StepCounter(40), DoubleToFloat(), RewardSum()),
    )


def gaussian(env):
    net = nn.Sequential(MLP(3, 2, num_cells=[32]), NormalParamExtractor(scale_lb=0.1))
    return ProbabilisticActor(
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        module=TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        distribution_class=TanhNormal,
        distribution_kwargs={
            "low": env.action_spec.space.low,
            "high": env.action_spec.space.high,
            "tanh_loc": False,
        },
        default_interaction_type=ExplorationType.RANDOM,
        return_log_prob=False,
    )


def qvalue():
    return ValueOperator(MLP(4, 1, num_cells=[32]), in_keys=["action", "observation"])


def learn(optimizers, total):
    for optim in optimizers:
        optim.zero_grad()
    total.backward()
    for optim in optimizers:
        optim.step()


def optimizer_of(params):
    return torch.optim.Adam(list(params.flatten_keys().values()), lr=1e-3)


def test_sac():
    env = make_env()
    actor = gaussian(env)
    loss_module = SACLoss(
        actor_network=actor,
        qvalue_network=qvalue(),
        num_qvalue_nets=2,
        loss_function="l2",
        delay_actor=False,
        delay_qvalue=True,
        alpha_init=1.0,
    )
    loss_module.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss_module, eps=0.995)
    optimizers = [
        optimizer_of(loss_module.actor_network_params),
        optimizer_of(loss_module.qvalue_network_params),
        torch.optim.Adam([loss_module.log_alpha], lr=3e-3),
    ]
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=LazyTensorStorage(1000), batch_size=32, priority_key="td_error"
    )
    collector = SyncDataCollector(
        env, actor, init_random_frames=50, frames_per_batch=50, total_frames=200
    )
    for data in collector:
        collector.update_policy_weights_()
        buffer.extend(data.reshape(-1))
        for _ in range(4):
            batch = buffer.sample()
            found = loss_module(batch)
            names = ("loss_actor", "loss_qvalue", "loss_alpha")
            total = sum(found[name] for name in names)
            learn(optimizers, total)
            updater.step()
            buffer.update_tensordict_priority(batch)
    collector.shutdown()
    assert total.isfinite()
    assert found["alpha"] < 1
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        rollout = make_env().rollout(50, actor)
    assert rollout["next", "episode_reward"][-1] < 0


def test_td3():
    env = make_env()
    actor = SafeModule(
        nn.Sequential(MLP(3, 1, num_cells=[32]), nn.Tanh()),
        in_keys=["observation"],
        out_keys=["action"],
        spec=env.action_spec,
    )
    noise = AdditiveGaussianModule(
        sigma_init=1, sigma_end=0.1, annealing_num_steps=100, spec=env.action_spec
    )
    loss_module = TD3Loss(
        actor_network=actor,
        qvalue_network=qvalue(),
        num_qvalue_nets=2,
        loss_function="l2",
        delay_actor=True,
        delay_qvalue=True,
        action_spec=env.action_spec,
        policy_noise=0.2,
        noise_clip=0.5,
    )
    loss_module.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss_module, eps=0.99)
    of_actor = optimizer_of(loss_module.actor_network_params)
    of_critics = optimizer_of(loss_module.qvalue_network_params)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
    collector = SyncDataCollector(
        env, TensorDictSequential(actor, noise), frames_per_batch=50, total_frames=150
    )
    updates = 0
    for data in collector:
        buffer.extend(data.reshape(-1))
        noise.step(data.numel())
        for _ in range(4):
            updates += 1
            batch = buffer.sample()
            found = loss_module(batch)
            learn([of_critics], found["loss_qvalue"])
            if updates % 2 == 0:
                learn([of_actor], loss_module(batch)["loss_actor"])
                updater.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert found["loss_qvalue"].isfinite()
    assert found["loss_actor"].isfinite()


def test_iql_from_a_dump(tmp_path):
    env = make_env()
    source = TensorDictReplayBuffer(storage=LazyMemmapStorage(300, scratch_dir=tmp_path / "rows"))
    source.extend(env.rollout(300, break_when_any_done=False))
    source.dumps(tmp_path / "saved")
    dataset = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(300, scratch_dir=tmp_path / "again"), batch_size=64
    )
    dataset.loads(tmp_path / "saved")
    actor = gaussian(env)
    loss_module = IQLLoss(
        actor_network=actor,
        qvalue_network=qvalue(),
        value_network=ValueOperator(MLP(3, 1, num_cells=[32]), in_keys=["observation"]),
        num_qvalue_nets=2,
        temperature=3.0,
        expectile=0.7,
        loss_function="l2",
    )
    loss_module.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss_module, eps=0.99)
    optimizers = [
        optimizer_of(loss_module.actor_network_params),
        optimizer_of(loss_module.qvalue_network_params),
        optimizer_of(loss_module.value_network_params),
    ]
    for _ in range(8):
        found = loss_module(dataset.sample())
        total = found["loss_actor"] + found["loss_qvalue"] + found["loss_value"]
        learn(optimizers, total)
        updater.step()
    assert len(dataset) == 300
    assert total.isfinite()
