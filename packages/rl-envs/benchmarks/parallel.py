"""Two environments in two processes: gymnasium's, the peer's and ours.

    python packages/rl-envs/benchmarks/parallel.py

Random actions, one process that drives, all contenders alive together and taking turns, so that a
busy machine slows them all. Environment steps a second, the median of the rounds; the reset rows of
gymnasium's `AsyncVectorEnv`, which are no transitions, are counted as steps in its favour, and its
loop stores nothing. Ours returns a finished batch with all keys.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import torch

from rl_envs import GymEnv
from rl_envs.batched.parallel import ParallelEnv

WORKERS = 2


class BusyEnv(gymnasium.Env[Any, Any]):
    """CartPole's spaces, and a millisecond of CPU time for each step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.low * 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Burn a millisecond."""
        end = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < end:
            pass
        self.count += 1
        return self.observation_space.low * 0, 1.0, self.count % 100 == 0, False, {}


def cartpole() -> gymnasium.Env[Any, Any]:
    """The environment that both sides run."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def make_ours(make: Callable[[], Any]) -> tuple[Callable[[int], object], Callable[[], None]]:
    """Steps a number of times and returns a batch; and what ends it."""
    env = ParallelEnv(WORKERS, lambda: GymEnv(make()))
    return lambda steps: env.rollout(steps, break_when_any_done=False), env.close


def make_gymnasium(make: Callable[[], Any]) -> tuple[Callable[[int], object], Callable[[], None]]:
    """The same loop over gymnasium's vector environment."""
    env = gymnasium.vector.AsyncVectorEnv([make] * WORKERS)
    env.reset(seed=0)
    env.action_space.seed(0)

    def play(steps: int) -> None:
        for _ in range(steps):
            env.step(env.action_space.sample())

    return play, env.close


def make_peer(make: Callable[[], Any]) -> tuple[Callable[[int], object], Callable[[], None]]:
    """The same rollout of the peer's."""
    from torchrl.envs import GymWrapper
    from torchrl.envs import ParallelEnv as PeerEnv

    env = PeerEnv(WORKERS, lambda: GymWrapper(make()), mp_start_method="fork")
    env.reset()
    return lambda steps: env.rollout(steps, break_when_any_done=False), env.close


def compare(title: str, make: Callable[[], Any], *, steps: int, rounds: int) -> None:
    """One table: steps a second of each, and ours as a multiple of it."""
    contenders: dict[str, Any] = {"gymnasium AsyncVectorEnv": make_gymnasium}
    try:
        import torchrl  # noqa: F401

        contenders["torchrl ParallelEnv"] = make_peer
    except ImportError:
        pass
    contenders["rl_envs ParallelEnv"] = make_ours
    made = {name: build(make) for name, build in contenders.items()}
    found: dict[str, list[float]] = {name: [] for name in made}
    try:
        for turn in range(rounds + 1):
            for name, (play, _) in made.items():
                count = max(steps // 10, 1) if name.startswith("torchrl") else steps
                start = time.perf_counter()
                play(count)
                rate = WORKERS * count / (time.perf_counter() - start)
                found[name] += [rate] if turn else []  # the first turn warms up
    finally:
        for _, close in made.values():
            close()
    ours = statistics.median(found["rl_envs ParallelEnv"])
    print(f"\n{title}")
    for name, rates in found.items():
        median = statistics.median(rates)
        print(f"  {name:<28}{median:>10.0f} steps/s   ours is {ours / median:.2f} x")


def main() -> None:
    """Both tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compare("CartPole-v1, 2 processes", cartpole, steps=1000, rounds=9)
    compare("1 ms of CPU a step, 2 processes", BusyEnv, steps=200, rounds=9)


if __name__ == "__main__":
    main()
