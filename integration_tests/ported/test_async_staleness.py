"""Asynchronous training that looks at how old the acting policy was."""

import torch

from rl_collect import SyncDataCollector
from rl_envs import GymEnv
from rl_policies import MLP, QValueActor
from rl_replay import LazyTensorStorage, ReplayBuffer, StalenessAwareSampler, TensorDictReplayBuffer
from rl_transforms import PolicyAgeFilter
from rl_value import DQNLoss


def make_agent():
    env = GymEnv("CartPole-v1")
    actor = QValueActor(MLP(4, 2, num_cells=[8]), in_keys=["observation"], spec=env.action_spec)
    return env, actor, DQNLoss(actor, delay_value=True)


def test_fresh_rows_are_drawn_and_stale_ones_dropped():
    env, actor, loss_module = make_agent()
    collector = SyncDataCollector(env, actor, frames_per_batch=20, total_frames=100)
    sampler = StalenessAwareSampler(max_staleness=2)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=32)
    recent = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        batch_size=32,
        transform=PolicyAgeFilter(lambda: collector.policy_version, max_policy_lag=1),
    )
    optim = torch.optim.Adam(loss_module.parameters(), 1e-3)
    for data in collector:
        buffer.extend(data)
        recent.extend(data)
        sampler.consumer_version = collector.policy_version
        for batch in (buffer.sample(), recent.sample()):
            lag = collector.policy_version - batch["collector", "policy_version"]
            assert 0 <= lag.min() <= lag.max() <= (2 if len(batch) == 32 else 1)
            loss_module(batch)["loss"].backward()
        optim.step()
        optim.zero_grad()
        collector.update_policy_weights_()
    collector.shutdown()
    assert collector.policy_version == 5


def test_rows_are_consumed_and_written_back_by_their_ids():
    env, _, _ = make_agent()
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), consume_after_n_samples=1, batch_size=10)
    buffer.extend(env.rollout(40, break_when_any_done=False).set("score", torch.zeros(40)))
    batch = buffer.sample()
    buffer.extend(env.rollout(20, break_when_any_done=False).set("score", torch.zeros(20)))
    patch = batch.select("score").apply(lambda score: score + 1)
    written = buffer.update_rows(batch["collector", "row"], patch)
    assert torch.equal(written, batch["collector", "row"] >= 20)  # the others were overwritten
    assert buffer[:]["score"].sum() == written.sum()
