"""Recurrent networks: PPO with a GRU on whole trajectories, DQN with an LSTM on slices."""

import torch
from tensordict.nn import TensorDictModule as Mod
from tensordict.nn import TensorDictSequential as Seq

from rl_collect import SyncDataCollector
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_layout import set_recurrent_mode
from rl_policies import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueModule,
    ValueOperator,
)
from rl_recurrent import GRUModule, LSTMModule
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_transforms import Compose, ExcludeTransform, InitTracker, StepCounter
from rl_value import GAE, ClipPPOLoss, DQNLoss, SoftUpdate


def test_recurrent_ppo():
    env = TransformedEnv(
        SerialEnv(2, lambda: GymEnv("CartPole-v1")), Compose(InitTracker(), StepCounter())
    )
    embed = Mod(MLP(4, 16, num_cells=[]), in_keys=["observation"], out_keys=["embed"])
    gru = GRUModule(
        input_size=16,
        hidden_size=16,
        in_keys=["embed", "recurrent_state", "is_init"],
        out_keys=["features", ("next", "recurrent_state")],
    )
    env.append_transform(gru.make_tensordict_primer())
    policy = ProbabilisticActor(
        Seq(embed, gru, Mod(MLP(16, 2, num_cells=[]), in_keys=["features"], out_keys=["logits"])),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        spec=env.action_spec,
    )
    critic = Seq(embed, gru, ValueOperator(MLP(16, 1, num_cells=[]), in_keys=["features"]))
    loss_module = ClipPPOLoss(policy, critic, entropy_coeff=0.01)
    adv = GAE(gamma=0.99, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    optim = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    collector = SyncDataCollector(env, policy, frames_per_batch=64, total_frames=128)
    for data in collector:
        with torch.no_grad(), set_recurrent_mode(True):
            adv(data)
        with set_recurrent_mode(True):
            loss_vals = loss_module(data)
        sum(v for k, v in loss_vals.items() if k.startswith("loss_")).backward()
        optim.step()
        optim.zero_grad()
        collector.update_policy_weights_()
        assert loss_vals["kl_approx"].abs() < 1e-4
    collector.shutdown()


def test_recurrent_dqn_on_slices():
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), StepCounter()))
    lstm = LSTMModule(input_size=16, hidden_size=16, in_key="embed", out_key="embed")
    env.append_transform(lstm.make_tensordict_primer())
    embed = Mod(MLP(4, 16, num_cells=[]), in_keys=["observation"], out_keys=["embed"])
    head = Mod(MLP(16, 2, num_cells=[]), in_keys=["embed"], out_keys=["action_value"])
    qval = QValueModule(action_space=None, spec=env.action_spec)
    stoch_policy = Seq(embed, lstm, head, qval)
    stoch_policy(env.reset())
    exploration = EGreedyModule(annealing_num_steps=1000, spec=env.action_spec, eps_init=0.2)
    stoch_policy = Seq(stoch_policy, exploration)
    loss_fn = DQNLoss(Seq(embed, lstm, head, qval), action_space=env.action_spec, delay_value=True)
    updater = SoftUpdate(loss_fn, eps=0.95)
    optim = torch.optim.Adam(loss_fn.parameters(), lr=3e-4)
    collector = SyncDataCollector(env, stoch_policy, frames_per_batch=50, total_frames=200)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200),
        sampler=SliceSampler(slice_len=8, traj_key=("collector", "traj_ids"), strict_length=False),
        batch_size=32,
        transform=ExcludeTransform("step_count"),
    )
    assert (rb.sampler.slice_len, rb.sampler.traj_key) == (8, ("collector", "traj_ids"))
    for data in collector:
        rb.extend(data.reshape(-1))
        for _ in range(2):
            batch = rb.sample()
            loss_vals = loss_fn(batch)
            loss_vals["loss"].backward()
            optim.step()
            optim.zero_grad()
        exploration.step(data.numel())
        updater.step()
    collector.shutdown()
    assert loss_vals["loss"].isfinite()
