"""Fuzzed parts of rl-envs that have no public name: environments that were reset, and their roots.

Worker processes are not started here: their faults have a session of their own.
"""

from __future__ import annotations

import numpy as np
import torch
from fuzz_pools import Pool, each
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_envs import (
    GymEnv,
    GymVectorEnv,
    Pendulums,
    PolicyPlan,
    RandomPolicy,
    SerialEnv,
    TransformedEnv,
)
from rl_envs.env.env import EnvBase
from rl_envs.testing import CountingEnv, GroupsEnv, MultiAgentEnv
from rl_specs import Bounded, Categorical, Composite, MultiOneHot, OneHot, Unbounded
from rl_transforms import Compose, InitTracker, RewardScaling, RewardSum, StepCounter


def started(env: EnvBase) -> EnvBase:
    """An environment that was reset."""
    env.reset()
    return env


def counting() -> EnvBase:
    """Counts; shows one number."""
    return started(CountingEnv(5))


def serial() -> EnvBase:
    """Two that count."""
    return started(SerialEnv(2, CountingEnv))


def transformed() -> EnvBase:
    """A counter with transforms around it."""
    return started(TransformedEnv(CountingEnv(5), Compose(InitTracker(), StepCounter(3))))


def vector() -> EnvBase:
    """Two CartPoles of Gymnasium."""
    return started(GymVectorEnv("CartPole-v1", 2))


def root(env: EnvBase) -> TensorDict:
    """What a step of an environment takes."""
    return env.rand_action(env.reset())


def changed(key: str, value: Tensor) -> TensorDict:
    """A root of an environment that counts, with another entry."""
    return root(counting()).set(key, value)


CALLS = [
    ("CountingEnv()", counting),
    ("CountingEnv() at first", CountingEnv),
    ("CountingEnv() of two", lambda: started(CountingEnv(5, (2,)))),
    ("SerialEnv()", serial),
    ("TransformedEnv()", transformed),
    ("TransformedEnv(SerialEnv())", lambda: started(TransformedEnv(serial(), RewardSum()))),
    ("GymEnv()", lambda: started(GymEnv("CartPole-v1"))),
    ("GymEnv() of numbers", lambda: started(GymEnv("Pendulum-v1"))),
    ("GymVectorEnv()", vector),
    ("Pendulums()", lambda: started(Pendulums(2))),
    ("MultiAgentEnv()", lambda: started(MultiAgentEnv(3))),
    ("GroupsEnv()", lambda: started(GroupsEnv())),
    ("RandomPolicy()", lambda: RandomPolicy(OneHot(2))),
    ("PolicyPlan()", lambda: PolicyPlan(policy())),
]


def policy() -> TensorDictModule:
    """Chooses the first of two actions."""
    first = lambda seen: torch.eye(2, dtype=torch.bool)[0].expand(*seen.shape[:-1], 2)  # noqa: E731
    return TensorDictModule(first, ["observation"], ["action"])


def with_mask(mask: Tensor) -> TensorDict:
    """A root of an environment that counts, with a mask of what to reset."""
    return counting().reset().set("_reset", mask)


ROOTS: Pool = [
    lambda: root(counting()),
    lambda: root(counting()),
    lambda: root(counting()),
    lambda: root(serial()),
    lambda: root(serial()),
    lambda: root(transformed()),
    lambda: root(GymEnv("CartPole-v1")),
    lambda: root(GymEnv("Pendulum-v1")),
    lambda: root(Pendulums(2)),
    lambda: root(MultiAgentEnv(3)),
    lambda: root(GroupsEnv()),
    lambda: counting().reset(),
    lambda: counting().rand_step(counting().reset()),
    lambda: changed("action", torch.ones(2, dtype=torch.bool)),
    lambda: changed("action", torch.zeros(2, dtype=torch.bool)),
    lambda: changed("action", torch.full((2,), torch.nan)),
    lambda: changed("action", torch.tensor(1)),
    lambda: changed("action", torch.ones(3, dtype=torch.bool)),
    lambda: changed("observation", torch.ones(5)),
    lambda: changed("done", torch.tensor([True])),
    lambda: changed("done", torch.tensor([1.0])),
    lambda: changed("next", TensorDict({"hidden": torch.ones(3)}, [])),
    lambda: with_mask(torch.tensor([True])),
    lambda: with_mask(torch.tensor([1])),
    lambda: with_mask(torch.ones(3, 1, dtype=torch.bool)),
]
ARRAYS = {
    ("observation",): np.zeros(1, np.float32),
    ("action",): np.array([True, False]),
    ("reward",): np.zeros(1, np.float32),
    ("done",): np.zeros(1, bool),
}
COLUMNS = {key: np.repeat(array[None], 3, 0) for key, array in ARRAYS.items()}
SPACES: Pool = each(
    spaces.Box(-1, 1, (3,)),
    spaces.Discrete(4, start=2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Text(5),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (2,))),
    spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
    spaces.Sequence(spaces.Discrete(2)),
)
SPECS: Pool = each(
    OneHot(2),
    Categorical(3),
    Bounded(-1, 1, (2,)),
    Unbounded((3,)),
    MultiOneHot([2, 3]),
    Composite(action=OneHot(2)),
)
POLICIES: Pool = [policy, lambda: RandomPolicy(OneHot(2)), lambda: None, lambda: nn.Linear(1, 2)]
MAKERS: Pool = [
    lambda: CountingEnv,
    lambda: [CountingEnv, CountingEnv],
    lambda: lambda: CountingEnv(3),
]
POOLS: dict[str, Pool] = {
    "tensordict": ROOTS,
    "policy": POLICIES,
    "create_env_fn": MAKERS,
    "create_env_kwargs": each(None, {}, {"max_steps": 3}, [{}, {"max_steps": 4}]),
    "num_workers": each(1, 2),
    "num_envs": each(1, 2, 3),
    "env": [counting, serial, transformed, lambda: GymEnv("CartPole-v1")],
    "base_env": [counting, serial, transformed, lambda: GymEnv("CartPole-v1")],
    "transform": [StepCounter, InitTracker, lambda: RewardScaling(0, 2.0), lambda: None],
    "transforms": [StepCounter, InitTracker, lambda: RewardScaling(0, 2.0)],
    "index": each(0, 1),
    "max_steps": each(1, 2, 5, 30),
    "num_steps": each(1, 3),
    "seed": each(0, 3, None),
    "static_seed": each(True, False),
    "out": [lambda: counting().rollout(3).clone(), lambda: None],
    "callback": [lambda: None, lambda: lambda env, step: None],
    "root": [lambda: dict(COLUMNS), lambda: dict(ARRAYS)],
    "after": [lambda: dict(COLUMNS), lambda: dict(ARRAYS)],
    "rows": [lambda: dict(ARRAYS), dict],
    "mask": [lambda: None, lambda: np.array([True]), lambda: np.array([False])],
    "in_keys": each(None, [("observation",)], []),
    "state_dict": [lambda: counting().state_dict(), lambda: transformed().state_dict()],
    "place": each("environment", "worker", "buffer"),
    "space": SPACES,
    "spec": SPECS,
    "action_spec": SPECS,
    "action_key": each("action", ("agents", "action")),
    "id": each("CartPole-v1", "Pendulum-v1"),
    "frame_skip": each(None, 1, 3),
    "info_keys": each(None, ["lives"], {"x": Unbounded(())}),
    "vectorization_mode": each("sync", "vector_entry_point"),
    "frames": [lambda: torch.zeros(2, 4, 4, 3, dtype=torch.uint8)],
    "values": [lambda: {("observation",): torch.zeros(1)}],
    "tensors": [lambda: {("observation",): torch.zeros(1)}],
    "batch_size": each(torch.Size([]), torch.Size([2]), ()),
    "text": each("go left", ""),
}
SKIP = {
    "ParallelEnv": "starts processes",
    "WorkerPool": "starts processes",
    "EnvPoolEnv": "needs an extra",
    "FrameRecorder": "renders",
    "RandomPolicy().__eq__": "Python's own",
    "*.raw_step": "takes what `step` has checked; says that it checks its result alone",
    "*.raw_reset": "takes what `reset` has checked; says that it checks its result alone",
}
CHANGES = dict.fromkeys(
    ["*.step_into", "*.reset_into"], "writes the next rows into the columns that it is given"
) | {"*.rollout": "overwrites the batch that out= names"}
