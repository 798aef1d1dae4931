"""Fuzzed parts of rl-collect that have no public name: collectors at work, and their parts."""

from __future__ import annotations

import numpy as np
import torch
from fuzz_pools import Pool, each, steps
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn

from rl_collect import (
    Collector,
    Episodes,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    TrajectoryIds,
    WholeTrajectories,
)
from rl_envs import SerialEnv
from rl_envs.testing import CountingEnv


class Buffer(list):
    """Stores every batch."""

    def extend(self, batch: object) -> None:
        """Keep a batch."""
        self.append(batch)

    def add(self, step: object) -> None:
        """Keep a step."""
        self.append(step)


class Choice(nn.Module):
    """Chooses one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Choose the larger output."""
        found = self.layer(observation)
        return found == found.max(-1, keepdim=True)[0]


def policy() -> TensorDictModule:
    """A policy with weights."""
    return TensorDictModule(Choice(), ["observation"], ["action"])


def two_envs() -> SerialEnv:
    """Two environments in turn."""
    return SerialEnv(2, CountingEnv)


def stored() -> Collector:
    """A collector that writes whole trajectories to a buffer."""
    options = {"frames_per_batch": 6, "trajs_per_batch": 1, "total_frames": 12}
    return Collector(CountingEnv(), policy(), replay_buffer=Buffer(), **options)


def workers(kind: type = MultiSyncCollector) -> MultiCollector:
    """Two workers."""
    options = {"frames_per_batch": 4, "total_frames": 8, "mp_start_method": "fork"}
    return kind([CountingEnv] * 2, policy(), **options)


CALLS = [
    ("Collector()", lambda: Collector(two_envs(), policy(), frames_per_batch=6, total_frames=12)),
    ("Collector(replay_buffer)", stored),
    ("MultiSyncCollector()", workers),
    ("MultiAsyncCollector()", lambda: workers(MultiAsyncCollector)),
    ("Episodes()", lambda: Episodes((2,))),
    ("TrajectoryIds()", lambda: TrajectoryIds((2,), producer=0)),
    ("WholeTrajectories()", lambda: WholeTrajectories(2)),
]
POOLS: dict[str, Pool] = {
    "create_env_fn": [CountingEnv, lambda: CountingEnv, two_envs, lambda: [CountingEnv] * 2],
    "policy": [policy, lambda: None, Choice, lambda: CountingEnv().rand_step],
    "policy_factory": [lambda: None, lambda: policy],
    "policy_or_weights": [policy, lambda: policy().state_dict(), lambda: None],
    "frames_per_batch": each(1, 4, 6),
    "total_frames": each(-1, 8),
    "replay_buffer": [Buffer, lambda: None],
    "exploration_type": each(InteractionType.RANDOM, InteractionType.MODE),
    "create_env_kwargs": [dict, lambda: None, lambda: {"max_steps": 3}],
    "postproc": [lambda: None, lambda: lambda batch: batch],
    "pre_collect_hook": [lambda: None, lambda: lambda: None],
    "post_collect_hook": [lambda: None, lambda: lambda batch: None],
    "num_workers": each(1, 2, None),
    "mp_start_method": each("fork"),
    "cat_results": each("stack", 0, -1, None),
    "preemptive_threshold": each(0.5, 1.0, None),
    "producer": each(0, 7, None),
    "init_random_frames": each(0, 5, None),
    "max_frames_per_traj": each(3, None),
    "trajs_per_batch": each(1, 2, None),
    "timeout_s": each(1.0, 5),
    "shutdown_timeout_s": each(1.0, 5),
    "over": [lambda: np.zeros((2, 3), bool), lambda: torch.zeros(2, 3, dtype=torch.bool)],
    "rewards": [lambda: np.zeros((2, 3, 1), np.float32)],
    "rows": [lambda: np.array([True, False]), lambda: torch.tensor([True, False])],
    "batch": [lambda: steps((2, 3)), steps],
    "state": [
        lambda: Collector(two_envs(), policy(), frames_per_batch=6).state_dict(),
        lambda: Episodes((2,)).state_dict(),
        lambda: TrajectoryIds((2,), producer=0).state_dict(),
        lambda: WholeTrajectories(2).state_dict(),
    ],
}
SKIP: dict[str, str] = {}
