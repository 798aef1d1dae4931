"""A2C with a trunk that actor and critic share, on environments in processes."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_collect import SyncDataCollector
from rl_envs import EnvCreator, GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_policies import (
    MLP,
    ActorValueOperator,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from rl_transforms import Compose, DoubleToFloat, RewardSum, StepCounter, VecNorm
from rl_value import GAE, A2CLoss


def make_env():
    env = TransformedEnv(GymEnv("CartPole-v1"))
    env.append_transform(RewardSum())
    env.append_transform(StepCounter(max_steps=20))
    env.append_transform(VecNorm(in_keys=["observation"]))
    env.append_transform(DoubleToFloat())
    return env


def make_operators(env):
    num_actions = env.action_spec.shape[-1]
    common = TensorDictModule(
        MLP(in_features=4, out_features=16, num_cells=[16], activate_last_layer=True),
        in_keys=["observation"],
        out_keys=["common_features"],
    )
    policy = ProbabilisticActor(
        TensorDictModule(
            MLP(in_features=16, out_features=num_actions, num_cells=[]),
            in_keys=["common_features"],
            out_keys=["logits"],
        ),
        in_keys=["logits"],
        spec=env.full_action_spec[env.action_key],
        distribution_class=OneHotCategorical,
        distribution_kwargs={},
        return_log_prob=True,
    )
    value = ValueOperator(
        MLP(in_features=16, out_features=1, num_cells=[]), in_keys=["common_features"]
    )
    actor_critic = ActorValueOperator(common, policy, value)
    return actor_critic.get_policy_operator(), actor_critic.get_value_operator()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("batched", [SerialEnv, ParallelEnv])
def test_a2c_with_a_shared_trunk(batched):
    options = {"mp_start_method": "fork"} if batched is ParallelEnv else {}
    env = TransformedEnv(batched(2, EnvCreator(make_env), **options), Compose())
    actor, critic = make_operators(env)
    with torch.no_grad():
        td = env.rollout(max_steps=4, break_when_any_done=False)
        actor(td)
        critic(td)

    collector = SyncDataCollector(
        create_env_fn=env,
        policy=actor,
        frames_per_batch=64,
        total_frames=128,
        storing_device="cpu",
        max_frames_per_traj=-1,
    )
    adv_module = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    loss_module = A2CLoss(
        actor_network=actor,
        critic_network=critic,
        loss_critic_type="smooth_l1",
        entropy_coeff=0.01,
        critic_coeff=0.5,
    )
    adv_module.set_keys(done="done", terminated="terminated")
    assert loss_module.tensor_keys.value_target == "value_target"
    optim = torch.optim.RMSprop(loss_module.parameters(), lr=1e-3)
    seen = 0
    for data in collector:
        episode_rewards = data["next", "episode_reward"][data["next", "done"]]
        assert (episode_rewards > 0).all()
        seen += data.numel()
        with torch.no_grad():
            data = adv_module(data)
        for batch in data.reshape(-1).split(32):
            loss = loss_module(batch)
            total = loss["loss_critic"] + loss["loss_objective"] + loss["loss_entropy"]
            optim.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
            optim.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert seen == 128
