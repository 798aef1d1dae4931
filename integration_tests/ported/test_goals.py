"""Hindsight: a sparse reward for reaching a goal, learned from goals that were reached."""

import gymnasium
import numpy as np
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_collect import SyncDataCollector
from rl_envs import GymEnv, TransformedEnv
from rl_policies import MLP, EGreedyModule, QValueModule
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import CatTensors, Compose, HindsightRelabel, StepCounter
from rl_value import DQNLoss, SoftUpdate

BITS, STEPS = 3, 4


class Bits(gymnasium.Env):
    """Flip one of several bits in a step, to make them those of the goal."""

    observation_space = gymnasium.spaces.Dict(
        {
            name: gymnasium.spaces.Box(0, 1, (BITS,), np.float32)
            for name in ("achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Discrete(BITS)

    def seen(self):
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = self.np_random.integers(0, 2, (2, BITS)).astype(np.float32)
        self.bits, self.goal = drawn
        return self.seen(), {}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        is_there = bool((self.bits == self.goal).all())
        return self.seen(), float(is_there) - 1, is_there, False, {}


def is_reached(rows):
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1)


def make_agent(env):
    names = ["achieved_goal", "desired_goal"]
    net = TensorDictModule(
        MLP(2 * BITS, BITS, num_cells=[64]), in_keys=["both"], out_keys=["action_value"]
    )
    cat = TensorDictModule(lambda *parts: torch.cat(parts, -1), in_keys=names, out_keys=["both"])
    return TensorDictSequential(cat, net, QValueModule(spec=env.action_spec))


def test_dqn_with_goals_in_hindsight():
    torch.manual_seed(0)
    env = TransformedEnv(GymEnv(Bits()), Compose(StepCounter(max_steps=STEPS)))
    env.set_seed(0)
    actor = make_agent(env)
    greedy = EGreedyModule(spec=env.action_spec, eps_init=0.3, eps_end=0.1, annealing_num_steps=500)
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.8)
    updater = SoftUpdate(loss_module, tau=0.1)
    optim = torch.optim.Adam(loss_module.parameters(), 1e-2)
    change = HindsightRelabel(
        lambda rows: is_reached(rows).float() - 1, her_ratio=0.8, terminated_fn=is_reached
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(5000), batch_size=128, transform=change
    )
    collector = SyncDataCollector(
        env, TensorDictSequential(actor, greedy), frames_per_batch=60, total_frames=1200
    )
    for data in collector:
        buffer.extend(data)
        greedy.step(data.numel())
        for _ in range(15):
            batch = buffer.sample()
            assert torch.equal(batch["next", "terminated"].squeeze(-1), is_reached(batch))
            loss_module(batch)["loss"].backward()
            optim.step()
            optim.zero_grad()
            updater.step()
    collector.shutdown()
    assert batch["collector", "relabelled"].float().mean() > 0.5
    trials = TransformedEnv(GymEnv(Bits()), StepCounter(max_steps=STEPS))
    trials.set_seed(1)
    ends = [trials.rollout(STEPS, actor)["next", "terminated"][-1].item() for _ in range(40)]
    assert sum(ends) > 35  # a random walk reaches every second goal


def test_goals_are_parts_of_an_observation_too():
    names = ["achieved_goal", "desired_goal"]
    env = TransformedEnv(GymEnv(Bits()), CatTensors(names, "observation", del_keys=False))
    assert env.rollout(3)["observation"].shape[-1] == 2 * BITS
