"""Offline: rows that are written once and read many times, cloned and valued."""

import torch
from tensordict.nn import TensorDictModule

from rl_envs import GymEnv, RandomPolicy
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor, QValueActor, ValueOperator
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_transforms import Compose, RenameTransform, RewardScaling
from rl_value import DQNLoss, SoftUpdate, TD0Estimator


def recorded(folder):
    env = GymEnv("CartPole-v1")
    policy = RandomPolicy(env.action_spec)
    data = env.rollout(200, policy, break_when_any_done=False)
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(200, scratch_dir=folder / "rows"))
    buffer.extend(data)
    buffer.dumps(folder / "saved")
    return env, data


def test_rows_are_cloned_and_valued(tmp_path):
    env, data = recorded(tmp_path)
    loaded = TensorDictReplayBuffer(storage=LazyMemmapStorage(200, scratch_dir=tmp_path / "again"))
    loaded.loads(tmp_path / "saved")
    dataset = TensorDictReplayBuffer(
        storage=TensorStorage(loaded[:].exclude("index")),
        sampler=SamplerWithoutReplacement(),
        writer=ImmutableDatasetWriter(),
        batch_size=50,
        transform=Compose(RewardScaling(0.0, 0.1), RenameTransform(["observation"], ["state"])),
    )
    assert len(dataset) == 200
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[16]), in_keys=["state"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        spec=env.action_spec,
    )
    critic = QValueActor(MLP(4, 2, num_cells=[16]), in_keys=["state"], spec=env.action_spec)
    loss_module = DQNLoss(critic, delay_value=True)
    loss_module.make_value_estimator(gamma=0.9)
    updater = SoftUpdate(loss_module, tau=0.01)
    optim = torch.optim.Adam([*actor.parameters(), *loss_module.parameters()], 1e-2)
    clone_losses, count = [], 0
    for _ in range(4):
        for batch in dataset:
            count += len(batch)
            log_prob = actor.get_dist(batch).log_prob(batch["action"])
            clone = -log_prob.mean()
            total = clone + loss_module(batch)["loss"]
            optim.zero_grad()
            total.backward()
            optim.step()
            updater.step()
            clone_losses.append(clone.item())
    assert count == 4 * 200
    assert abs(clone_losses[-1] - 0.69) < 0.2  # what is random cannot be cloned better
    value = ValueOperator(MLP(4, 1, num_cells=[8]), in_keys=["observation"])
    TD0Estimator(gamma=0.9, value_network=value)(data)
    assert data["value_target"].shape == (200, 1)
