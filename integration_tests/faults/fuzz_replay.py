"""Fuzzed parts of rl-replay that have no public name: buffers of every kind, and their parts.

Of storages, samplers, writers and indices those methods are called that users call, or that parts
of their own call. What a buffer calls under its lock, after its checks, is not.
"""

from __future__ import annotations

from typing import Any

import torch
from fuzz_pools import each, steps

from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def filled(kind: type, storage: Any, sampler: Any = None, rows: Any = None, **parts: Any) -> Any:
    """A buffer that holds some steps."""
    buffer = kind(storage=storage, sampler=sampler, batch_size=4, **parts)
    buffer.extend(steps() if rows is None else rows)
    return buffer


CALLS: list[tuple[str, Any]] = [
    ("empty buffer", lambda: ReplayBuffer(storage=LazyTensorStorage(20))),
    ("buffer", lambda: filled(ReplayBuffer, LazyTensorStorage(20), RandomSampler())),
    ("lossless", lambda: filled(TensorDictReplayBuffer, LazyTensorStorage(20, lossless=True))),
    ("mapped", lambda: filled(TensorDictReplayBuffer, LazyMemmapStorage(20))),
    ("shared", lambda: filled(TensorDictReplayBuffer, LazyTensorStorage(80), shared=True)),
    (
        "columns",
        lambda: filled(TensorDictReplayBuffer, LazyTensorStorage(20, ndim=2), rows=steps((2, 3))),
    ),
    (
        "slices",
        lambda: filled(TensorDictReplayBuffer, LazyTensorStorage(20), SliceSampler(slice_len=2)),
    ),
    (
        "slices each once",
        lambda: filled(
            TensorDictReplayBuffer,
            LazyTensorStorage(20),
            SliceSamplerWithoutReplacement(slice_len=2),
        ),
    ),
    ("each once", lambda: filled(ReplayBuffer, LazyTensorStorage(20), SamplerWithoutReplacement())),
    ("tensors", lambda: filled(ReplayBuffer, LazyTensorStorage(20), rows=torch.arange(6))),
    ("tree", lambda: filled(ReplayBuffer, LazyTensorStorage(20), rows={"a": torch.zeros(6)})),
    ("list", lambda: filled(ReplayBuffer, ListStorage(20), rows=["a", None, 3, "b"])),
]


def storage(kind: type = LazyTensorStorage) -> Any:
    """A storage that holds some steps."""
    made = kind(20)
    made.extend(steps())
    return made


PARTS = {
    "memory storage": storage,
    "mapped storage": lambda: storage(LazyMemmapStorage),
    "list storage": lambda: storage(ListStorage),
    "random sampler": RandomSampler,
    "each once sampler": SamplerWithoutReplacement,
    "slice sampler": lambda: SliceSampler(slice_len=2),
    "slices each once sampler": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "writer": RoundRobinWriter,
    "dataset writer": ImmutableDatasetWriter,
    "index": lambda: storage().trajectories(),
}
CALLED = {
    "storage": ("add", "extend", "read", "state_dict", "load_state_dict", "stats", "explain"),
    "sampler": ("sample", "reset", "state_dict", "load_state_dict"),
    "writer": ("check", "state_dict", "load_state_dict"),
    "index": ("lengths", "draw", "locate", "after", "before"),
}


def of(make: Any, method: str) -> Any:
    """A function that makes a new part and returns one of its methods."""
    return lambda: getattr(make(), method)


CALLS += [
    (f"{name}.{method}", of(make, method))
    for name, make in PARTS.items()
    for method in CALLED[name.split()[-1]]
]

POOLS = {
    "storage": [
        storage,
        lambda: LazyTensorStorage(20),
        lambda: LazyMemmapStorage(9),
        lambda: ListStorage(5),
    ],
    "sampler": [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)],
    "max_size": each(1, 6, 20),
    "rows": [lambda: torch.arange(3), lambda: torch.tensor([0, 99])],
    "positions": [lambda: torch.arange(3)],
    "numbers": [lambda: torch.arange(3)],
    "num_slices": each(2, None),
    "slice_len": each(2, None),
}

_WAITS = "waits, as asked, for rows that never come"
SKIP = {
    "ReplayBuffer.wait_until": _WAITS,
    "TensorDictReplayBuffer.wait_until": _WAITS,
}
CHANGES = {"mark_slices": "writes the markers into the sample that it is given, as it says"}
