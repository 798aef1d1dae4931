"""Keeping the best of many rows, alongside the peer's writer.

    PYTHONPATH=tools python packages/rl-replay/benchmarks/max_value.py

Each turn writes other rows to a full buffer: some of them are better than stored ones, or all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, TensorDictMaxValueWriter, TensorDictReplayBuffer

ROWS, CAPACITY = 10_000, 100_000


def steps(count: int, low: float = 0.0) -> TensorDict:
    """Rows whose rewards are drawn from `low` on."""
    return TensorDict(
        {
            "observation": torch.rand(count, 4),
            "action": torch.rand(count, 2),
            "next": {"observation": torch.rand(count, 4), "reward": torch.rand(count, 1) + low},
        },
        [count],
    )


def batches(rise: float) -> Iterator[TensorDict]:
    """Batches whose rewards rise, so that more and more of their rows are kept."""
    low = 0.0
    while True:
        low += rise
        yield steps(ROWS, low)


def ours() -> Any:
    """Our buffer, full."""
    writer = TensorDictMaxValueWriter()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), writer=writer)
    buffer.extend(steps(CAPACITY))
    return buffer


def peer() -> Any:
    """TorchRL's buffer, full, or None if it is not installed."""
    try:
        from torchrl.data import LazyTensorStorage as Theirs
        from torchrl.data import TensorDictMaxValueWriter as TheirWriter
        from torchrl.data import TensorDictReplayBuffer as TheirBuffer
    except ImportError:
        return None
    buffer = TheirBuffer(storage=Theirs(CAPACITY), writer=TheirWriter(), batch_size=256)
    buffer.extend(steps(CAPACITY))
    return buffer


def extending(buffer: Any, rise: float) -> tuple[Callable[[], None], Callable[[], object]]:
    """What makes the next batch, and what writes it."""
    source, ready = batches(rise), []
    return lambda: ready.append(next(source)), lambda: buffer.extend(ready.pop())


def main() -> None:
    """Print every figure."""
    with session():
        for name, rise in (("some are kept", 0.02), ("all are kept", 2.0)):
            contenders = [extending(ours(), rise)]
            theirs = peer()
            if theirs is not None:
                contenders.append(extending(theirs, rise))
            before, calls = zip(*contenders, strict=True)
            found = medians_us(7, *calls, before=before, warm_up=1)
            report(f"{ROWS:,} rows into {CAPACITY:,}, {name}", *found)


if __name__ == "__main__":
    main()
