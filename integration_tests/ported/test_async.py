"""Collecting in the background, and in several processes, into one buffer."""

import pytest
import torch
from tensordict.nn import TensorDictSequential

from rl_collect import MultiAsyncCollector, MultiSyncCollector, SyncDataCollector
from rl_envs import EnvCreator, GymEnv, TransformedEnv
from rl_policies import MLP, EGreedyModule, QValueActor
from rl_replay import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from rl_transforms import StepCounter
from rl_value import DQNLoss, SoftUpdate


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


def make_agent():
    env = make_env()
    actor = QValueActor(MLP(4, 2, num_cells=[16]), in_keys=["observation"], spec=env.action_spec)
    explore = TensorDictSequential(actor, EGreedyModule(spec=env.action_spec, eps_init=0.3))
    loss = DQNLoss(actor, delay_value=True)
    return explore, loss, SoftUpdate(loss, tau=0.05), torch.optim.Adam(loss.parameters(), 1e-3)


def train(buffer, loss_module, updater, optim):
    loss = loss_module(buffer.sample().reshape(-1))["loss"]
    optim.zero_grad()
    loss.backward()
    optim.step()
    updater.step()
    return loss.item()


def test_a_learner_trains_while_a_thread_collects():
    explore, *learner = make_agent()
    buffer = ReplayBuffer(storage=LazyTensorStorage(500), batch_size=32)
    collector = SyncDataCollector(
        make_env, explore, frames_per_batch=25, total_frames=-1, replay_buffer=buffer
    )
    collector.start(min_frames=100)
    losses = [train(buffer, *learner) for _ in range(5)]
    collector.async_shutdown()
    assert buffer.write_count >= 100
    assert all(loss >= 0 for loss in losses)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_several_processes_deliver_batches(kind):
    explore, *learner = make_agent()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=32)
    options = {"cat_results": 0} if kind is MultiSyncCollector else {}
    collector = kind(
        [EnvCreator(make_env)] * 2,
        explore,
        frames_per_batch=40,
        total_frames=160,
        mp_start_method="fork",
        **options,
    )
    seen = set()
    for data in collector:
        buffer.extend(data.reshape(-1))
        seen |= set(data["collector", "policy_version"].flatten().tolist())
        train(buffer, *learner)
        collector.update_policy_weights_()
    collector.shutdown()
    assert len(buffer) == 160
    assert 0 in seen
