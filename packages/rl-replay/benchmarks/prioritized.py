"""Priorities alongside cpprb: the tree alone, the whole buffer, slices, and writes.

    nox -s "bench(rl-replay)"

Draws are stratified, of 256 rows; an update sets the priorities of the rows drawn last, as a
learner does. Contenders take turns, so that each finds the caches of another. cpprb keeps
the same leaves; torchrl's tree needs a binary that this version of torch does not load, so it is no
peer here. `numpy` is this package without numba.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cpprb
import numpy as np
import torch
from bench import medians_us, report, session, table
from replay import BATCH, LONG, ROWS, steps

from rl_replay import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl_replay.priorities import tree as trees
from rl_replay.priorities.tree import PriorityTree

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
ALPHA, BETA = 0.6, 0.4
Call = Callable[[], object]


@contextmanager
def without_numba() -> Iterator[None]:
    """Trees run their loops in numpy."""
    loader, trees.load_compiled = trees.load_compiled, lambda _: None
    try:
        yield
    finally:
        trees.load_compiled = loader


def in_numpy(call: Call) -> Call:
    """The same call without numba."""

    def run() -> object:
        with without_numba():
            return call()

    return run


def of_tree(count: int) -> Call:
    """Draw, weigh and update with the tree alone."""
    rng = np.random.default_rng(0)
    tree = PriorityTree.private(count)
    tree.put(0, np.arange(1, count + 1, dtype=np.uint32), np.float32(rng.random(count)))

    def run() -> object:
        fractions = (np.arange(BATCH) + rng.random(BATCH)) / BATCH
        positions, probabilities = tree.draw(fractions)
        weights = (count * probabilities) ** -BETA
        priorities = np.float32((rng.random(BATCH) + 1e-8) ** ALPHA)
        tree.update(positions, tree.ids[positions], priorities)
        return weights / weights.max()

    return run


def of_cpprb(count: int) -> Call:
    """The same with cpprb, of rows of a single float."""
    rng = np.random.default_rng(0)
    peer = cpprb.PrioritizedReplayBuffer(count, {"a": {}}, alpha=ALPHA)
    peer.add(a=np.zeros(count, np.float32), priorities=rng.random(count))

    def run() -> object:
        sample = peer.sample(BATCH, beta=BETA)
        peer.update_priorities(sample["indexes"], rng.random(BATCH))
        return sample

    return run


def whole_buffers() -> tuple[Call, Call]:
    """Sample and update nine leaves, ours and cpprb's."""
    batch = steps(ROWS)
    ours = TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(ROWS), batch_size=BATCH
    )
    index = ours.extend(batch)
    first = torch.rand(ROWS)
    ours.update_priority(index, first)
    flat = {
        ".".join(key) if isinstance(key, tuple) else key: leaf.numpy()
        for key, leaf in batch.items(True, True)
    }
    shapes = {
        name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in flat.items()
    }
    peer = cpprb.PrioritizedReplayBuffer(ROWS, shapes, alpha=ALPHA)
    peer.add(**flat, priorities=first.double().numpy())
    rng = np.random.default_rng(0)

    def run() -> object:
        sample = ours.sample()
        sample["td_error"] = torch.rand(BATCH)
        return ours.update_tensordict_priority(sample)

    def theirs() -> object:
        sample = peer.sample(BATCH, beta=BETA)
        return peer.update_priorities(sample["indexes"], rng.random(BATCH))

    return run, theirs


def slices() -> dict[str, Call]:
    """8 slices of 32 rows after 64 rows were written, by priority and uniformly."""
    more = [steps(64, ROWS + 64 * number) for number in range(64)]
    calls: dict[str, Call] = {}
    for name, sampler in {
        "by priority": PrioritizedSliceSampler(ROWS, ALPHA, BETA, slice_len=32),
        "uniform": SliceSampler(slice_len=32, strict_length=True),
    }.items():
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(ROWS), sampler=sampler, batch_size=256
        )
        buffer.extend(steps(ROWS))
        buffer.sample()
        turn = iter(range(1 << 40))

        def run(buffer: TensorDictReplayBuffer = buffer, turn: Iterator[int] = turn) -> object:
            buffer.extend(more[next(turn) % len(more)])
            return buffer.sample()

        calls[name] = run
    return calls


def writes() -> dict[str, Call]:
    """`extend` by 10,000 rows, where priorities are kept and where not."""
    batch = steps(LONG)
    storage = {"by priority": {"alpha": ALPHA, "beta": BETA}, "uniform": {}}
    calls: dict[str, Call] = {}
    for name, options in storage.items():
        kind = TensorDictPrioritizedReplayBuffer if options else TensorDictReplayBuffer
        buffer = kind(storage=LazyTensorStorage(ROWS), batch_size=BATCH, **options)
        buffer.extend(batch)
        buffer.sample()
        calls[name] = lambda buffer=buffer: buffer.extend(batch)
    return calls


def main() -> None:
    """Print the tables."""
    with session():
        for count in (100_000, ROWS, 10 * ROWS):
            ours, theirs = of_tree(count), of_cpprb(count)
            found = medians_us(400, ours, in_numpy(ours), theirs, shuffle=True)
            names = ("numba", "numpy", "cpprb")
            table(
                f"tree alone, sample + weights + update of {BATCH} in {count:,}",
                dict(zip(names, found, strict=True)),
                "numba",
            )
        ours, theirs = whole_buffers()
        found = medians_us(400, ours, in_numpy(ours), theirs, shuffle=True)
        table(
            f"whole buffer of 9 leaves, sample + update of {BATCH} in {ROWS:,}",
            dict(zip(("numba", "numpy", "cpprb"), found, strict=True)),
            "numba",
        )
        for work, calls in {
            f"slices 8 x 32 of {ROWS:,}, 64 rows written before": slices(),
            f"extend by {LONG:,} rows": writes(),
        }.items():
            found = medians_us(200, *calls.values(), shuffle=True)
            report(work, found[0], found[1], peer="uniform")


if __name__ == "__main__":
    main()
