"""Rollouts beside torchrl's and beside a loop written by hand on Gymnasium.

Run with `nox -s "bench(rl-envs)"`. Medians of fresh calls in one process, ratios printed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_envs import GymEnv, SerialEnv

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS = 1000


def median_ms(call: Callable[[], object], repeats: int = 7) -> float:
    """Median duration of a call, in milliseconds, after one call to warm up."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) * 1e3


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


def report(name: str, ours: float, others: dict[str, float]) -> None:
    """Print our time, and how many times longer the others take."""
    print(f"{name:44}{ours:9.1f} ms")
    for other, duration in others.items():
        print(f"  {other:42}{duration:9.1f} ms  {duration / ours:6.2f} times ours")


def main() -> None:
    """Run everything."""
    from torchrl.envs import GymEnv as PeerEnv
    from torchrl.envs import SerialEnv as PeerSerial

    print(f"pandas is {'' if importlib.util.find_spec('pandas') else 'not '}installed")
    ours, peer = GymEnv("CartPole-v1"), PeerEnv("CartPole-v1")
    report(
        f"CartPole, {STEPS} random steps",
        median_ms(lambda: ours.rollout(STEPS, break_when_any_done=False)),
        {
            "torchrl": median_ms(lambda: peer.rollout(STEPS, break_when_any_done=False), 3),
            "by hand": median_ms(by_hand()),
        },
    )
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2), nn.Hardtanh(0, 1))
    policy = TensorDictModule(lambda o: net(o).argmax(-1), ["observation"], ["action"])
    mine = SerialEnv(8, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    theirs = PeerSerial(8, lambda: PeerEnv("CartPole-v1", categorical_action_encoding=True))
    report(
        "8 CartPoles in turn, a small MLP, 125 steps",
        median_ms(lambda: mine.rollout(125, policy, break_when_any_done=False)),
        {"torchrl": median_ms(lambda: theirs.rollout(125, policy, break_when_any_done=False), 3)},
    )


if __name__ == "__main__":
    main()
