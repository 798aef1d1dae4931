"""PPO on stacked frames, with environments in processes and a trunk that actor and critic share."""

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import EnvCreator, GymEnv, ParallelEnv, TransformedEnv
from rl_policies import (
    MLP,
    ActorValueOperator,
    ConvNet,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from rl_replay import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from rl_transforms import (
    CatFrames,
    EndOfLife,
    GrayScale,
    NoopReset,
    PermuteTransform,
    Resize,
    RewardSum,
    SignTransform,
    StepCounter,
)
from rl_value import GAE, ClipPPOLoss


class Falling(gymnasium.Env):
    """A bright square falls; catch it in one of two columns. Three lives."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def frame(self):
        frame = np.zeros((40, 40, 3), np.uint8)
        frame[8 * self.row : 8 * self.row + 8, 20 * self.column : 20 * self.column + 20] = 200
        return frame

    def drop(self):
        self.row, self.column = 0, int(self.np_random.integers(2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lives = 3
        self.drop()
        return self.frame(), {"lives": self.lives}

    def step(self, action):
        self.row += 1
        reward, is_down = 0.0, self.row == 4
        if is_down:
            reward = 5.0 if action == self.column else -5.0
            self.lives -= reward < 0
            self.drop()
        return self.frame(), reward, self.lives == 0, False, {"lives": self.lives}


def make_base():
    return GymEnv(Falling(), info_keys=["lives"])


def make_env():
    env = TransformedEnv(ParallelEnv(2, EnvCreator(make_base), mp_start_method="fork"))
    frames = ["observation"]
    for one in (
        NoopReset(3),
        PermuteTransform((-1, -3, -2), frames),
        GrayScale(frames),
        Resize(20, 20, in_keys=frames),
        CatFrames(N=2, dim=-3, in_keys=frames, out_keys=["frames"]),
        EndOfLife(),
        RewardSum(),
        StepCounter(max_steps=40),
        SignTransform(in_keys=["reward"]),
    ):
        env.append_transform(one)
    return env


class Scaled(nn.Module):
    """A network of bytes, which are scaled in it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, frames):
        return self.net(frames / 255)


def make_agent(env):
    cnn = ConvNet(in_features=2, num_cells=[8, 8], kernel_sizes=[4, 3], strides=[2, 2])
    width = cnn(torch.zeros(2, 20, 20)).shape[-1]
    trunk = nn.Sequential(cnn, MLP(width, 32, num_cells=[], activate_last_layer=True))
    policy = ProbabilisticActor(
        TensorDictModule(MLP(32, 2, num_cells=[]), ["hidden"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    agent = ActorValueOperator(
        TensorDictModule(Scaled(trunk), ["frames"], ["hidden"]),
        policy,
        ValueOperator(MLP(32, 1, num_cells=[]), in_keys=["hidden"]),
    )
    return agent.get_policy_operator(), agent.get_value_operator()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_ppo_on_frames():
    env = make_env()
    actor, critic = make_agent(env)
    collector = SyncDataCollector(env, actor, frames_per_batch=80, total_frames=240)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(80), sampler=SamplerWithoutReplacement(), batch_size=40
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=0.1,
        loss_critic_type="l2",
        entropy_coeff=0.01,
        critic_coeff=0.5,
        normalize_advantage=True,
    )
    loss_module.set_keys(done="end-of-life", terminated="end-of-life")
    advantage.set_keys(done="end-of-life", terminated="end-of-life")
    optim = torch.optim.Adam(loss_module.parameters(), lr=2.5e-4, eps=1e-5)
    for data in collector:
        assert data["frames"].dtype == torch.uint8
        assert data["frames"].shape == (2, 40, 2, 20, 20)
        assert set(data["next", "reward"].unique().tolist()) <= {-1.0, 0.0, 1.0}
        for _ in range(2):
            with torch.no_grad():
                data = advantage(data)
            buffer.empty()
            buffer.extend(data.reshape(-1))
            for batch in buffer:
                loss = loss_module(batch)
                total = loss["loss_critic"] + loss["loss_objective"] + loss["loss_entropy"]
                total.backward()
                torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optim.step()
                optim.zero_grad()
        collector.update_policy_weights_()
        scores = data["next", "episode_reward"][data["next", "done"]]
        assert len(scores) > 0
    collector.shutdown()
    lost = data["next", "end-of-life"]
    assert lost.sum() >= data["next", "terminated"].sum()
    assert total.isfinite()
