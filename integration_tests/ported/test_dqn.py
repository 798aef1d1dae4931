"""DQN and C51 with priorities, and DQN on stacked frames."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictSequential
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import GymEnv, TransformedEnv
from rl_policies import (
    MLP,
    ConvNet,
    DistributionalQValueActor,
    EGreedyModule,
    ExplorationType,
    QValueActor,
    set_exploration_type,
)
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl_specs import Composite
from rl_transforms import (
    BinarizeReward,
    CatFrames,
    Compose,
    GrayScale,
    Resize,
    RewardSum,
    StepCounter,
    ToTensorImage,
)
from rl_value import DistributionalDQNLoss, DQNLoss, HardUpdate, SoftUpdate


class Squares(gymnasium.Env):
    """Shows a square that moves; it pays to end on the left."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 5, 0
        return np.full(1, self.place, np.float32), {}

    def step(self, action):
        self.place, self.time = min(max(self.place + 2 * int(action) - 1, 0), 9), self.time + 1
        seen = np.full(1, self.place, np.float32)
        return seen, float(self.place < 5), self.time == 7, False, {}

    def render(self):
        frame = np.zeros((40, 40, 3), np.uint8)
        frame[10:20, 4 * self.place : 4 * self.place + 4] = 255
        return frame


def of_values(env):
    net = MLP(in_features=4, out_features=2, num_cells=[16], activation_class=nn.ReLU)
    actor = QValueActor(net, spec=Composite(action=env.action_spec), in_keys=["observation"])
    loss = DQNLoss(actor, loss_function="l2", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    return actor, loss


def of_distributions(env):
    net = nn.Sequential(
        MLP(in_features=4, out_features=51 * 2, num_cells=[16]), nn.Unflatten(-1, (51, 2))
    )
    support = torch.linspace(0, 200, 51)
    actor = DistributionalQValueActor(net, support, ["observation"], spec=env.action_spec)
    return actor, DistributionalDQNLoss(actor, gamma=0.99, delay_value=True)


def make_buffer():
    return TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        pin_memory=False,
        prefetch=None,
        storage=LazyTensorStorage(1000),
        batch_size=32,
        priority_key="td_error",
    )


@pytest.mark.parametrize("make", [of_values, of_distributions])
def test_dqn_with_priorities(make):
    env, eval_env = (
        TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), StepCounter())) for _ in range(2)
    )
    env.set_seed(0)
    model, loss_module = make(env)
    greedy_module = EGreedyModule(
        annealing_num_steps=200, eps_init=1.0, eps_end=0.05, spec=model.spec
    )
    model_explore = TensorDictSequential(model, greedy_module)
    collector = SyncDataCollector(
        env,
        model_explore,
        frames_per_batch=50,
        total_frames=200,
        exploration_type=ExplorationType.RANDOM,
        init_random_frames=50,
        split_trajs=False,
    )
    replay_buffer = make_buffer()
    target_net_updater = SoftUpdate(loss_module, eps=0.98)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    losses = []
    for data in collector:
        collector.update_policy_weights_()
        greedy_module.step(data.numel())
        data = data.reshape(-1)
        replay_buffer.extend(data)
        if len(replay_buffer) < 100:
            continue
        for _ in range(2):
            sampled_tensordict = replay_buffer.sample()
            loss_td = loss_module(sampled_tensordict)
            loss = loss_td["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_net_updater.step()
            replay_buffer.update_tensordict_priority(sampled_tensordict)
            losses.append(loss.item())
    assert len(losses) == 6
    assert "priority_weight" in sampled_tensordict
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        rollout = eval_env.rollout(100, model)
    assert rollout["next", "episode_reward"][-1] == len(rollout)
    collector.shutdown()


def test_dqn_on_stacked_frames(tmp_path):
    env = TransformedEnv(
        GymEnv(Squares(), from_pixels=True, pixels_only=True),
        Compose(
            ToTensorImage(),
            GrayScale(),
            Resize(32, 32),
            BinarizeReward(),
            RewardSum(),
        ),
    )
    env.append_transform(CatFrames(N=3, dim=-3, in_keys=["pixels"], out_keys=["frames"]))
    cnn = ConvNet(
        num_cells=[8], kernel_sizes=[5], strides=[3], activation_class=nn.ReLU, in_features=3
    )
    features = cnn(torch.zeros(3, 32, 32)).shape[-1]
    net = nn.Sequential(cnn, MLP(in_features=features, out_features=2, num_cells=[16]))
    actor = QValueActor(net, in_keys=["frames"], spec=env.action_spec)
    loss_module = DQNLoss(value_network=actor, double_dqn=True, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    updater = HardUpdate(loss_module, value_network_update_interval=2)
    buffer = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(100, scratch_dir=tmp_path),
        sampler=RandomSampler(),
        batch_size=16,
    )
    collector = SyncDataCollector(env, actor, frames_per_batch=24, total_frames=48)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    for data in collector:
        assert data["frames"].shape == (24, 3, 32, 32)
        buffer.extend(data)
        loss = loss_module(buffer.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updater.step()
    collector.shutdown()
    assert loss.isfinite()
