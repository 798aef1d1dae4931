"""Rollouts compared with torchrl's and alongside a loop written by hand on Gymnasium.

Run with `nox -s "bench(rl-envs)"`. Medians of the CPU time of fresh calls that take turns: other
work on the machine counts less that way.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from bench import medians_us, session, table
from tensordict.nn import TensorDictModule
from torch import nn

from rl_envs import GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_specs import Unbounded
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter, TensorDictPrimer

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS = 1000


def by_hand() -> Callable[[], object]:
    """A loop over Gymnasium that stores every key a rollout does, and draws its actions at once."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)

    def play() -> object:
        seen, after = np.zeros((STEPS, 4), "float32"), np.zeros((STEPS, 4), "float32")
        reward, flags = np.zeros((STEPS, 1), "float32"), np.zeros((6, STEPS, 1), bool)
        action = torch.randint(2, (STEPS,))
        one_hot = nn.functional.one_hot(action, 2).bool()
        observation, _ = env.reset()
        for t, move in enumerate(action.tolist()):
            seen[t] = observation
            observation, reward[t], flags[3, t], flags[4, t], _ = env.step(move)
            after[t] = observation
            if flags[3, t] or flags[4, t]:
                observation, _ = env.reset()
        np.logical_or(flags[3], flags[4], out=flags[5])
        return seen, after, reward, flags, one_hot

    return play


def vector_by_hand(num_envs: int, num_steps: int) -> Callable[[], object]:
    """A loop over a native vector that stores the same keys, and drops reset rows at the end."""
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

    def play() -> object:
        room = num_steps + num_steps // 5
        seen, after = (np.zeros((room, num_envs, 4), "float32") for _ in range(2))
        reward, flags = np.zeros((room, num_envs), "float32"), np.zeros((6, room, num_envs), bool)
        action = torch.randint(2, (room, num_envs))
        one_hot, moves = nn.functional.one_hot(action, 2).bool().numpy(), action.numpy()
        real = np.ones((room, num_envs), bool)
        missing = np.full(num_envs, num_steps)
        over = np.zeros(num_envs, bool)
        observation, _ = env.reset()
        for t in range(room):
            real[t], seen[t] = ~over, observation
            observation, reward[t], flags[3, t], flags[4, t], _ = env.step(moves[t])
            after[t] = observation
            over = np.logical_or(flags[3, t], flags[4, t], out=flags[5, t])
            missing -= real[t]
            if (missing <= 0).all():
                break
        order = np.argsort(~real[: t + 1].T, axis=1, kind="stable")[:, :num_steps]
        rows = np.arange(num_envs)[:, None]
        leaves = (seen, after, reward, one_hot, *flags)
        return [leaf.swapaxes(0, 1)[rows, order] for leaf in leaves]

    return play


def compare(work: str, **calls: Callable[[], object]) -> None:
    """Time ours and others, and print how many times longer the others take."""
    found = medians_us(7, *calls.values(), clock=time.process_time, warm_up=1)
    table(work, dict(zip(calls, found, strict=True)), "ours")


def transformed() -> TransformedEnv:
    """CartPole with first-step flags, a recurrent state, counts and sums."""
    primer = TensorDictPrimer(hidden=Unbounded((64,)), expand_specs=True)
    changes = Compose(InitTracker(), primer, StepCounter(), RewardSum())
    return TransformedEnv(GymEnv("CartPole-v1"), changes)


def transformed_peer() -> object:
    """The same of torchrl's."""
    from torchrl.data import Unbounded as PeerUnbounded
    from torchrl.envs import Compose as PeerCompose
    from torchrl.envs import GymEnv as PeerEnv
    from torchrl.envs import InitTracker as PeerInit
    from torchrl.envs import RewardSum as PeerSum
    from torchrl.envs import StepCounter as PeerCounter
    from torchrl.envs import TensorDictPrimer as PeerPrimer
    from torchrl.envs import TransformedEnv as PeerTransformed

    primer = PeerPrimer(hidden=PeerUnbounded((64,)))
    changes = PeerCompose(PeerInit(), primer, PeerCounter(), PeerSum())
    return PeerTransformed(PeerEnv("CartPole-v1"), changes)


def main() -> None:
    """Run everything."""
    from torchrl.envs import GymEnv as PeerEnv
    from torchrl.envs import SerialEnv as PeerSerial

    print(f"pandas is {'' if importlib.util.find_spec('pandas') else 'not '}installed")
    on = {"break_when_any_done": False}
    ours, peer = GymEnv("CartPole-v1"), PeerEnv("CartPole-v1")
    compare(
        f"CartPole, {STEPS} random steps",
        ours=lambda: ours.rollout(STEPS, **on),
        torchrl=lambda: peer.rollout(STEPS, **on),
        by_hand=by_hand(),
    )
    changed, peer_changed = transformed(), transformed_peer()
    compare(
        "the same with flags, a state, counts and sums",
        ours=lambda: changed.rollout(STEPS, **on),
        torchrl=lambda: peer_changed.rollout(STEPS, **on),
    )
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2), nn.Hardtanh(0, 1))
    policy = TensorDictModule(lambda o: net(o).argmax(-1), ["observation"], ["action"])
    mine = SerialEnv(8, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    theirs = PeerSerial(8, lambda: PeerEnv("CartPole-v1", categorical_action_encoding=True))
    compare(
        "8 CartPoles in turn, a small MLP, 125 steps",
        ours=lambda: mine.rollout(125, policy, **on),
        torchrl=lambda: theirs.rollout(125, policy, **on),
    )
    vector = GymVectorEnv("CartPole-v1", 64, vectorization_mode="vector_entry_point")
    compare(
        "64 CartPoles, native vector, 500 steps",
        ours=lambda: vector.rollout(500, **on),
        by_hand=vector_by_hand(64, 500),
    )


if __name__ == "__main__":
    with session():
        main()
