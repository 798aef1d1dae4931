"""Four processes write one buffer while a fifth samples it: the peer, and rl-replay.

    python packages/rl-replay/benchmarks/shared.py

Rows have 9 leaves, all stored and returned on both sides; a write is one of 64 rows, a sample 256
rows drawn uniformly. The contenders take turns of a few seconds with writers of their own, so that
a busy machine slows them all; medians over the turns. Throughput is rows written and rows sampled
together. The ratio says how it depends on what is counted: writing and sampling alone come with it.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from rl_replay.samplers import SliceSampler

WRITERS, WRITTEN, SAMPLED, ROWS = 4, 64, 256, 400_000
TURN_S, TURNS = 3.0, 5


class Rates(NamedTuple):
    """Rows a second."""

    written: float
    sampled: float


def batch(who: int) -> TensorDict:
    """Rows of one environment, the same every time: making them is not what is measured."""
    rows = trajectories([WRITTEN], EndKind.TERMINATED, first_id=who)
    seen = torch.rand(WRITTEN + 1, 8)
    return TensorDict(
        {
            "observation": seen[:-1],
            "action": torch.rand(WRITTEN, 2),
            "is_init": rows["is_init"],
            "collector": {"traj_ids": rows["collector", "traj_ids"]},
            "next": {
                "observation": seen[1:],
                "reward": rows["next", "reward"],
                "done": rows["next", "done"],
                "terminated": rows["next", "terminated"],
                "truncated": rows["next", "truncated"],
            },
        },
        batch_size=[WRITTEN],
    )


def ours(*, file: bool = False, lossless: bool = False, slices: bool = False) -> object:
    """Our buffer, shared."""
    kind = LazyMemmapStorage if file else LazyTensorStorage
    sampler = SliceSampler(num_slices=8, slice_len=32) if slices else None
    storage = kind(ROWS, lanes=WRITERS, lossless=lossless)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=SAMPLED, shared=True)


def peer() -> object | None:
    """TorchRL's shared buffer, or None where it is not installed."""
    try:
        from torchrl.data import LazyMemmapStorage as PeerStorage
        from torchrl.data import ReplayBuffer as PeerBuffer
    except ImportError:
        return None
    made = PeerBuffer(storage=PeerStorage(ROWS), batch_size=SAMPLED, shared=True)
    made.extend(batch(0))  # it is shared from its first rows on
    return made


def write(buffer: object, who: int) -> None:
    """Write forever."""
    torch.set_num_threads(1)
    rows = batch(who)
    while True:
        buffer.extend(rows)  # type: ignore[attr-defined]


def turn(buffer: object) -> Rates:
    """Four writers and one reader for a while."""
    children = []
    for who in range(1, WRITERS + 1):
        child = os.fork()
        if not child:
            write(buffer, who)
        children.append(child)
    try:
        begin = buffer.write_count  # type: ignore[attr-defined]
        while buffer.write_count < begin + WRITERS * WRITTEN * 8:  # type: ignore[attr-defined]
            time.sleep(0.01)  # until all of them are under way
        buffer.sample()  # type: ignore[attr-defined]
        first, start, samples = buffer.write_count, time.perf_counter(), 0  # type: ignore[attr-defined]
        while (elapsed := time.perf_counter() - start) < TURN_S:
            buffer.sample()  # type: ignore[attr-defined]
            samples += 1
        written = buffer.write_count - first  # type: ignore[attr-defined]
        return Rates(written / elapsed, samples * SAMPLED / elapsed)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def contenders() -> dict[str, Callable[[], object | None]]:
    """What is compared, the peer first."""
    return {
        "torchrl, LazyMemmapStorage": peer,
        "memory": ours,
        "file": lambda: ours(file=True),
        "memory, lossless": lambda: ours(lossless=True),
        "memory, 8 slices of 32": lambda: ours(slices=True),
    }


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    # the children run no thread of torch's
    warnings.simplefilter("ignore", DeprecationWarning)
    found: dict[str, list[Rates]] = {name: [] for name in contenders()}
    for _ in range(TURNS):
        for name, make in contenders().items():
            # made anew: a peer's lock is lost with a writer that is killed while it has it
            buffer = make()
            if buffer is not None:
                found[name].append(turn(buffer))
    medians = {
        name: [statistics.median(column) for column in zip(*rates, strict=True)]
        for name, rates in found.items()
        if rates
    }
    base = next(iter(medians.values()))
    head = "".join(f" {name:>11s}" for name in ("written", "sampled", "together"))
    print(f"{'rows a second':32s}{head}   x the first")
    for name, (written, sampled) in medians.items():
        ratios = [written / base[0], sampled / base[1], (written + sampled) / sum(base)]
        said = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"{name:32s} {written:11,.0f} {sampled:11,.0f} {written + sampled:11,.0f}   {said}")


if __name__ == "__main__":
    main()
