"""Two environments in two processes: gymnasium's, the peer's and ours.

Run with `nox -s "bench(rl-envs)"`. Random actions, one process that drives, all contenders alive
together and taking turns, so that a busy machine slows them all. Medians of the time of an
environment's step; the reset rows of gymnasium's `AsyncVectorEnv`, which are no transitions, are
counted as steps in its favour, and its loop stores nothing. Ours returns a finished batch with all
keys.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import torch
from bench import medians_us, session, table

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


def compare(work: str, make: Callable[[], Any], *, steps: int) -> None:
    """One table: a step of each, and its ratio to ours."""
    contenders: dict[str, Any] = {"gymnasium AsyncVectorEnv": make_gymnasium}
    if importlib.util.find_spec("torchrl") is not None:
        contenders["torchrl"] = make_peer
    contenders["rl_envs ParallelEnv"] = make_ours
    made = {name: build(make) for name, build in contenders.items()}
    counts = {name: max(steps // 10, 1) if name == "torchrl" else steps for name in made}
    calls = [partial(_play, play, counts[name]) for name, (play, _) in made.items()]
    try:
        found = medians_us(9, *calls, warm_up=1, per_unit=True)
    finally:
        for _, close in made.values():
            close()
    table(work, dict(zip(made, found, strict=True)), "rl_envs ParallelEnv")


def _play(play: Callable[[int], object], steps: int) -> int:
    play(steps)
    return WORKERS * steps


def main() -> None:
    """Both tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compare("a step of CartPole-v1, 2 processes", cartpole, steps=1000)
    compare("a step of 1 ms of CPU, 2 processes", BusyEnv, steps=200)


if __name__ == "__main__":
    with session():
        main()
