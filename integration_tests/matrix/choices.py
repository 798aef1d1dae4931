"""The parts of a training run: one function for each choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from matrix.by_hand import (
    CLIP,
    CRITIC_COEFF,
    ENTROPY_COEFF,
    GAMMA,
    LMBDA,
    RHO,
    Agent,
    C,
)
from rl_collect import Collector, MultiCollector
from rl_envs import EnvBase, SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_layout import split_trajectories
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule, LSTMModule
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_transforms import NextObservationDelta, NextStateReconstructor
from rl_value import GAE, A2CLoss, ClipPPOLoss, ReinforceLoss, TDLambdaEstimator, VTrace

ENDINGS = [
    (3, "terminated"),
    (7, "truncated"),
    (1, "terminated"),
    (2, "truncated"),
    (12, "truncated"),
]
HIDDEN, FRAMES, BATCHES, CAPACITY = 5, 22, 3, 53

COLLECTORS = ["single", "sync", "async"]
STORAGES = ["tensor", "memmap", "lossless", "compact_obs", "delta"]
SAMPLERS = ["slices", "slices without replacement", "whole batch"]
BACKENDS = ["pad", "pack", "scan"] + (["triton"] if torch.cuda.is_available() else [])
NETWORKS = ["mlp", *(f"{cell} {name}" for cell in ("gru", "lstm") for name in BACKENDS)]
ESTIMATORS = ["gae", "gae shifted", "gae chunked", "td_lambda", "vtrace"]
LOSSES = ["ppo", "a2c", "reinforce"]
SHAPES = ["[B, T]", "flat", "padded trajectories", "padded slices", "slices of columns", "columns"]


def pairwise(*choices: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows in which every pair of options of two different choices occurs at least once."""
    spots = list(itertools.combinations(range(len(choices)), 2))
    open_pairs = {
        (i, a, j, b) for i, j in spots for a, b in itertools.product(choices[i], choices[j])
    }

    def gained(row: tuple[str, ...]) -> set[tuple[int, str, int, str]]:
        return open_pairs & {(i, row[i], j, row[j]) for i, j in spots}

    rows = []
    while open_pairs:
        i, a, j, b = min(open_pairs)
        row: list[str] = [each[0] for each in choices]
        row[i], row[j] = a, b
        for k in range(len(choices)):
            if k not in (i, j):
                options = [(*row[:k], option, *row[k + 1 :]) for option in choices[k]]
                row = list(max(options, key=lambda each: len(gained(each))))
        open_pairs -= gained(tuple(row))
        rows.append(tuple(row))
    return rows


class Networks:
    """A body, an actor and a critic on it."""

    def __init__(self, name: str) -> None:
        self.family, _, backend = name.partition(" ")
        torch.manual_seed(3)
        if self.family == "mlp":
            body = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh())
            self.body: Any = TensorDictModule(body, ["observation"], ["features"])
        else:
            kind = {"gru": GRUModule, "lstm": LSTMModule}[self.family]
            self.body = kind(
                2, HIDDEN, in_key="observation", out_key="features", recurrent_backend=backend
            )
        self.actor_head, self.critic_head = nn.Linear(HIDDEN, 2), nn.Linear(HIDDEN, 1)
        self.actor = ProbabilisticActor(
            TensorDictSequential(
                self.body, TensorDictModule(self.actor_head, ["features"], ["logits"])
            ),
            in_keys=["logits"],
            spec=EpisodeStepEnv().action_spec,
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        value = ValueOperator(self.critic_head, in_keys=["features"])
        self.critic = TensorDictSequential(self.body, value)

    def by_hand(self) -> Agent:
        """A copy to be stepped by hand."""
        inner = self.body.module if self.family == "mlp" else getattr(self.body, self.family)
        return Agent(self.family, inner, self.actor_head, self.critic_head)


def make_env(first_episode: int, delta: bool) -> EnvBase:
    """An environment whose observations prove their neighbours."""
    env = EpisodeStepEnv(ENDINGS, first_episode=first_episode)
    return TransformedEnv(env, NextObservationDelta()) if delta else env


def collect_columns(policy: Any) -> TensorDictBase:
    """A batch `[3, T]` that begins in mid-trajectory."""
    makers = [lambda first=first: make_env(first, delta=False) for first in (0, 2, 4)]
    collector = Collector(SerialEnv(3, makers), policy, frames_per_batch=3 * FRAMES)
    collector.next()
    return collector.next()


def collect(kind: str, storage: str, policy: Any) -> list[TensorDictBase]:
    """Some batches of a collector."""
    makers: list[Callable[[], EnvBase]] = [
        lambda first=first: make_env(first, storage == "delta") for first in (0, 2)
    ]
    options: dict[str, Any] = {"compact_obs": True} if storage == "compact_obs" else {}
    if kind == "single":
        collector: Any = Collector(makers[0], policy, frames_per_batch=FRAMES, **options)
    else:
        options |= {"mp_start_method": "fork", "timeout_s": 60}
        frames = 2 * FRAMES if kind == "sync" else FRAMES
        collector = MultiCollector(
            makers, policy, sync=kind == "sync", frames_per_batch=frames, **options
        )
    with collector:
        return [batch.clone() for batch, _ in zip(collector, range(BATCHES), strict=False)]


def make_buffer(storage: str, sampler: Any) -> TensorDictReplayBuffer:
    """A buffer that is smaller than what is written to it."""
    kinds: dict[str, Any] = {
        "memmap": lambda: LazyMemmapStorage(CAPACITY),
        "lossless": lambda: LazyTensorStorage(CAPACITY, lossless=True),
    }
    rebuilt = {
        "compact_obs": NextStateReconstructor,
        "delta": lambda: NextObservationDelta(in_keys=["observation"]),
    }
    buffer = TensorDictReplayBuffer(
        storage=kinds.get(storage, lambda: LazyTensorStorage(CAPACITY))(),
        sampler=sampler,
        batch_size=24,
        generator=torch.Generator().manual_seed(5),
    )
    if storage in rebuilt:
        buffer.append_transform(rebuilt[storage]())
    return buffer


def draw(storage: str, sampler: str, batches: list[TensorDictBase]) -> TensorDictBase:
    """Store batches, and take a sample."""
    kinds: dict[str, Any] = {
        "slices": SliceSampler,
        "slices without replacement": SliceSamplerWithoutReplacement,
    }
    made = kinds[sampler](slice_len=4) if sampler in kinds else None
    buffer = make_buffer(storage, made)
    for batch in batches:
        buffer.extend(batch)
    sample: TensorDictBase = buffer[:] if made is None else buffer.sample()
    return sample


def shaped(shape: str, batch: TensorDictBase) -> TensorDictBase:
    """The steps of a batch `[B, T]`, laid out in another way."""
    if shape == "[B, T]":
        return batch
    if shape == "flat":
        return batch.reshape(-1)
    if shape == "padded trajectories":
        padded: TensorDictBase = split_trajectories(batch)
        return padded
    ndim = 1 if shape == "padded slices" else 2
    sampler = SliceSampler(slice_len=6, pad_output=ndim == 1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200, ndim=ndim), sampler=sampler, batch_size=48
    )
    buffer.extend(batch)
    rows: TensorDictBase = buffer[:] if shape == "columns" else buffer.sample()
    return rows


def make_estimator(kind: str, networks: Networks) -> Any:
    """An estimator of advantages."""
    settings: dict[str, Any] = {"gamma": GAMMA, "value_network": networks.critic}
    if kind == "vtrace":
        return VTrace(actor_network=networks.actor, rho_thresh=RHO, c_thresh=C, **settings)
    if kind == "td_lambda":
        return TDLambdaEstimator(lmbda=LMBDA, **settings)
    extra: dict[str, dict[str, Any]] = {
        "gae shifted": {"shifted": True, "shifted_budget": 4},
        "gae chunked": {"num_chunks": 3},
    }
    return GAE(lmbda=LMBDA, **settings, **extra.get(kind, {}))


def make_loss(kind: str, networks: Networks) -> Any:
    """A loss of an actor and a critic."""
    settings: dict[str, Any] = {"critic_coeff": CRITIC_COEFF, "loss_critic_type": "l2"}
    if kind == "reinforce":
        return ReinforceLoss(networks.actor, networks.critic, **settings)
    settings["entropy_coeff"] = ENTROPY_COEFF
    if kind == "a2c":
        return A2CLoss(networks.actor, networks.critic, **settings)
    return ClipPPOLoss(networks.actor, networks.critic, clip_epsilon=CLIP, **settings)
