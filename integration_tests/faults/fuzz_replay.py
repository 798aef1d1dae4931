"""What is fuzzed of rl-replay beside its public names: buffers of every kind that hold rows.

Methods of storages, rings and indices are called by the buffer, under its lock and after its
checks; they are not called here.
"""

from __future__ import annotations

from typing import Any

import torch
from fuzz_pools import each, steps

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
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

POOLS = {
    "storage": [
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

_WAITS = "waits, as asked, for rows that nobody writes"
SKIP = {
    "ReplayBuffer.wait_until": _WAITS,
    "TensorDictReplayBuffer.wait_until": _WAITS,
}
