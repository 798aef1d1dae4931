"""IMPALA: processes that act with old weights, and V-trace that corrects for them."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_collect import MultiAsyncCollector
from rl_envs import EnvCreator, GymEnv, TransformedEnv
from rl_policies import (
    MLP,
    ActorValueOperator,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from rl_replay import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from rl_transforms import Compose, RewardSum, StepCounter
from rl_value import A2CLoss, VTrace

FRAMES, ROUNDS, BATCHES = 40, 8, 2


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), StepCounter(200)))


def make_agent(spec):
    common = TensorDictModule(
        MLP(4, 32, num_cells=[], activate_last_layer=True), ["observation"], ["hidden"]
    )
    policy = ProbabilisticActor(
        TensorDictModule(MLP(32, 2, num_cells=[]), ["hidden"], ["logits"]),
        in_keys=["logits"],
        spec=spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    agent = ActorValueOperator(
        common, policy, ValueOperator(MLP(32, 1, num_cells=[]), in_keys=["hidden"])
    )
    return agent.get_policy_operator(), agent.get_value_operator()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_impala():
    actor, critic = make_agent(make_env().action_spec)
    collector = MultiAsyncCollector(
        create_env_fn=[EnvCreator(make_env)] * 2,
        policy=actor,
        frames_per_batch=FRAMES,
        total_frames=FRAMES * ROUNDS,
        max_frames_per_traj=-1,
        mp_start_method="fork",
    )
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(BATCHES * FRAMES),
        sampler=SamplerWithoutReplacement(),
        batch_size=FRAMES,
    )
    adv_module = VTrace(gamma=0.99, value_network=critic, actor_network=actor, average_adv=False)
    loss_module = A2CLoss(
        actor_network=actor, critic_network=critic, loss_critic_type="l2", entropy_coeff=0.01
    )
    loss_module.set_keys(done="done", terminated="terminated")
    optim = torch.optim.RMSprop(loss_module.parameters(), lr=1e-3)
    seen, lags, held = 0, [], []
    for data in collector:
        seen += data.numel()
        lags.append(collector.policy_version - data["collector", "policy_version"].min().item())
        held.append(data)
        if len(held) < BATCHES:
            continue
        batch, held = torch.stack(held).contiguous(), []
        assert batch.shape == (BATCHES, FRAMES)
        with torch.no_grad():
            batch = adv_module(batch)
        rb.empty()
        rb.extend(batch)
        for sample in rb:
            loss = loss_module(sample)
            sum(value for key, value in loss.items() if key.startswith("loss_")).backward()
            torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 40.0)
            optim.step()
            optim.zero_grad()
        collector.update_policy_weights_()
    collector.shutdown()
    assert seen == FRAMES * ROUNDS
    assert min(lags) >= 0
    assert loss["loss_objective"].isfinite()
