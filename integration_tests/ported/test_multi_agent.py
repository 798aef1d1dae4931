"""PPO of several agents that share a network, with a critic that sees all of them."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import SyncDataCollector
from rl_envs import TransformedEnv, check_env_specs
from rl_envs.testing import MultiAgentEnv
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor
from rl_replay import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from rl_transforms import RewardSum
from rl_value import ClipPPOLoss, ValueEstimators


class Central(nn.Module):
    """One value for each agent, of what all of them see."""

    def __init__(self, agents, width):
        super().__init__()
        self.net = MLP(agents * width, agents, num_cells=[16])

    def forward(self, seen):
        return self.net(seen.flatten(-2)).unsqueeze(-1)


def make_env():
    base = MultiAgentEnv(3, [(5, "terminated"), (4, "truncated")], batch_size=(2,))
    return TransformedEnv(
        base, RewardSum(in_keys=[("agents", "reward")], out_keys=[("agents", "episode_reward")])
    )


def make_modules(env):
    observation = ("agents", "observation")
    width = env.observation_spec[observation].shape[-1]
    spec = env.full_action_spec[env.action_key]
    policy = ProbabilisticActor(
        module=TensorDictModule(
            MLP(width, spec.space.n, num_cells=[16]),
            in_keys=[observation],
            out_keys=[("agents", "logits")],
        ),
        spec=env.full_action_spec,
        in_keys=[("agents", "logits")],
        out_keys=[env.action_key],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        log_prob_key=("agents", "sample_log_prob"),
    )
    critic = TensorDictModule(
        Central(3, width), in_keys=[observation], out_keys=[("agents", "state_value")]
    )
    return policy, critic


def make_loss(env, policy, critic):
    loss_module = ClipPPOLoss(
        actor_network=policy, critic_network=critic, clip_epsilon=0.2, entropy_coeff=1e-3
    )
    loss_module.set_keys(
        reward=("agents", "reward"),
        action=env.action_key,
        sample_log_prob=("agents", "sample_log_prob"),
        value=("agents", "state_value"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
        advantage=("agents", "advantage"),
        value_target=("agents", "value_target"),
    )
    loss_module.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)
    return loss_module


def test_ppo_of_several_agents():
    env = make_env()
    check_env_specs(env)
    policy, critic = make_modules(env)
    collector = SyncDataCollector(env, policy, frames_per_batch=60, total_frames=120)
    replay_buffer = ReplayBuffer(
        storage=LazyTensorStorage(60), sampler=SamplerWithoutReplacement(), batch_size=20
    )
    loss_module = make_loss(env, policy, critic)
    assert loss_module.value_estimator.tensor_keys.reward == ("agents", "reward")
    optim = torch.optim.Adam(loss_module.parameters(), 1e-3)
    for data in collector:
        with torch.no_grad():
            loss_module.value_estimator(data)
        assert data["agents", "advantage"].shape == (2, 30, 3, 1)
        replay_buffer.extend(data.reshape(-1))
        for subdata in replay_buffer:
            loss_vals = loss_module(subdata)
            total = (
                loss_vals["loss_objective"] + loss_vals["loss_critic"] + loss_vals["loss_entropy"]
            )
            optim.zero_grad()
            total.backward()
            optim.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert total.isfinite()
