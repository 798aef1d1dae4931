"""Slices of trajectories, with a write between any two samples: the peer, and rl-replay.

    nox -s "bench(rl-replay)"
    PYTHONPATH=tools python packages/rl-replay/benchmarks/slices.py --large --rows 100000000
    PYTHONPATH=tools python packages/rl-replay/benchmarks/slices.py --large --mapped

One process; 8 slices of 32 rows with 9 leaves, every one stored and returned on both sides,
episodes of 200 steps; 64 rows are written before each sample. Medians in microseconds; the
contenders take turns, twenty calls each, so that a busy machine slows them all. Of ours the sample
includes taking the new rows into the trajectory index, which the storage puts off until asked.

The last table, which `--large` prints alone, is the first slices of a large buffer, of small rows:
100 million rows, or as many as a quarter of the free memory holds. The index is built while rows
are written or loaded under a sampler of slices, and when the sampler is exchanged for one.
With `--mapped` rows lie in files. After each line comes the peak of memory: of the process's own,
and with the pages of files that it has mapped, which the system may take back.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch
from bench import medians_us, report, session, table
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from rl_replay.samplers import RandomSampler, SliceSampler
from rl_replay.trajectories.index import TrajectoryIndex

SLICES, LENGTH, WRITTEN, EPISODE = 8, 32, 64, 200
ROWS, FEW_ROWS, MANY_ROWS = 1_000_000, 10_000, 10_000_000
CHUNK, LARGE, LARGE_CHUNK = 10_000, 100_000_000, 1_000_000
LARGE_ROW = 128  # bytes that a small row takes while it is written, at most

Call = Callable[[], object]


def batches(count: int) -> Iterator[TensorDict]:
    """Rows of one environment after another, `count` at a time, forever.

    A next observation is the observation of the row after it, as it is of real rows.
    """
    start, seen = 0, torch.rand(1, 8)
    while True:
        seen = torch.cat([seen[-1:], torch.rand(count, 8)])
        first, offset = divmod(start, EPISODE)
        lengths = [EPISODE - offset] + [EPISODE] * (count // EPISODE + 1)
        batch = trajectories(lengths, EndKind.TERMINATED, first_id=first, first_step=offset)[:count]
        yield TensorDict(
            {
                "observation": seen[:-1],
                "action": torch.rand(count, 2),
                "is_init": batch["is_init"],
                "collector": {"traj_ids": batch["collector", "traj_ids"]},
                "next": {
                    "observation": seen[1:],
                    "reward": batch["next", "reward"],
                    "done": batch["next", "done"],
                    "terminated": batch["next", "terminated"],
                    "truncated": batch["next", "truncated"],
                },
            },
            batch_size=[count],
        )
        start += count


def filled(buffer: object, rows: int) -> object:
    """A buffer that its ring went around in."""
    source = batches(CHUNK)
    for _ in range(rows // CHUNK + 1):
        buffer.extend(next(source))  # type: ignore[attr-defined]
    return buffer


def ours(rows: int, **options: object) -> TensorDictReplayBuffer:
    """Our buffer, full."""
    sampler = SliceSampler(num_slices=SLICES, slice_len=LENGTH, **options)
    made = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=sampler, batch_size=SLICES * LENGTH
    )
    return filled(made, rows)  # type: ignore[return-value]


def peer(rows: int) -> object | None:
    """TorchRL's buffer, full, or None if it is not installed."""
    try:
        from torchrl.data import LazyTensorStorage as PeerStorage
        from torchrl.data import SliceSampler as PeerSampler
        from torchrl.data import TensorDictReplayBuffer as PeerBuffer
    except ImportError:
        return None
    sampler = PeerSampler(
        num_slices=SLICES, traj_key=("collector", "traj_ids"), strict_length=False
    )
    made = PeerBuffer(storage=PeerStorage(rows), sampler=sampler, batch_size=SLICES * LENGTH)
    return filled(made, rows)


def sampling(buffer: object) -> tuple[Call, Call]:
    """Writing to a buffer, and sampling from it."""
    source = [batch for batch, _ in zip(batches(WRITTEN), range(500), strict=False)]
    turn = iter(range(10**9))
    return (
        lambda: buffer.extend(source[next(turn) % len(source)]),  # type: ignore[attr-defined]
        buffer.sample,  # type: ignore[attr-defined]
    )


def show(title: str, contenders: dict[str, tuple[Call, Call]], ours: str, rounds: int = 25) -> None:
    """One table: each one's median time, and its ratio to that of ours."""
    before, calls = zip(*contenders.values(), strict=True)
    found = medians_us(rounds, *calls, warm_up=0, burst=20, before=before)
    table(title, dict(zip(contenders, found, strict=True)), ours)


def against_the_peer() -> None:
    """The claim: 8 slices of 32 of a million rows."""
    full = ours(ROWS)
    contenders = {"rl-replay, each place equally likely": sampling(ours(ROWS, by="step"))}
    if (other := peer(ROWS)) is not None:
        contenders = {"torchrl": sampling(other)} | contenders
    show(
        f"sample {SLICES} x {LENGTH} of {ROWS:,} rows, {WRITTEN} written before each",
        contenders | {"rl-replay": sampling(full)},
        "rl-replay",
    )
    nothing: Call = lambda: None  # noqa: E731
    extend, _ = sampling(full)
    index = full.storage.trajectories()
    draws = np.random.default_rng(0)

    def rows_of_slices() -> None:
        slots = index.draw(SLICES)
        index.rows(slots, draws.integers(0, 100, SLICES), np.full(SLICES, LENGTH))

    show(
        f"sample {SLICES} x {LENGTH} of {ROWS:,} rows, its parts",
        {
            "taking 64 new rows into the index": (extend, full.storage.trajectories),
            "drawing slices, index up to date": (nothing, rows_of_slices),
            "sample, index up to date": (nothing, full.sample),
        },
        "sample, index up to date",
    )


def by_capacity() -> None:
    """The claim: what a sample costs does not depend on how many rows there are."""
    contenders = {f"{rows:,} rows": sampling(ours(rows)) for rows in (FEW_ROWS, ROWS, MANY_ROWS)}
    title = f"sample {SLICES} x {LENGTH}, {WRITTEN} rows written before each"
    show(title, contenders, f"{FEW_ROWS:,} rows")


def first_slices(rows: int, *, mapped: bool = False) -> None:
    """The claim: who draws the first slices of a large buffer does not wait for its index."""
    batch = trajectories([EPISODE] * (LARGE_CHUNK // EPISODE)).select(
        "is_init", ("collector", "traj_ids"), ("collector", "traj_step"), ("next", "done")
    )

    def slices() -> SliceSampler:
        return SliceSampler(num_slices=SLICES, slice_len=LENGTH)

    def empty(sampler: SliceSampler | RandomSampler) -> TensorDictReplayBuffer:
        storage = LazyMemmapStorage(rows) if mapped else LazyTensorStorage(rows)
        return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=SLICES * LENGTH)

    def write(buffer: TensorDictReplayBuffer) -> None:
        for turn in range(rows // LARGE_CHUNK):
            batch["collector", "traj_ids"] += LARGE_CHUNK // EPISODE * bool(turn)
            buffer.extend(batch)

    print(f"\nfirst slices of a large buffer{' in files' * mapped}: {rows:,} rows")
    other = empty(RandomSampler())
    with tempfile.TemporaryDirectory() as folder:
        once("write, no slices drawn", partial(write, other))
        buffer = empty(slices())
        once("write, slices drawn", partial(write, buffer))
        once("first slices after writes", buffer.sample)
        once("the next ones", buffer.sample)
        del buffer
        once("exchange the sampler for one of slices", partial(other.set_sampler, slices()))
        once("first slices after the exchange", other.sample)
        other.dumps(folder)
        del other
        buffer = empty(slices())
        once("load", partial(buffer.loads, folder))
        once("first slices after the load", buffer.sample)


def once(work: str, call: Call) -> None:
    """One row, of a single call: its second one would be another work."""
    with peak_memory() as peak:
        report(work, *medians_us(1, call, warm_up=0))
    own, whole = (f"{kind / 2**30:.2f} GiB" for kind in peak)
    print(f"    peak memory: {own}, with mapped files {whole}")


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most bytes in use inside: anonymous ones, looked at every 10 ms, and all."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest size is counted anew
    peak, is_over, own = [0, 0], Event(), [0]

    def watch() -> None:
        while not is_over.wait(0.01):
            own[0] = max(own[0], memory_of("RssAnon"))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()
        peak[:] = max(own[0], memory_of("RssAnon")), memory_of("VmHWM")


def memory_of(kind: str) -> int:
    """Bytes of the process, by the kernel's name for them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def large_rows() -> int:
    """As many rows as a quarter of the free memory holds, whole chunks."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(LARGE, free // 4 // LARGE_ROW) // LARGE_CHUNK) * LARGE_CHUNK


def taking_in() -> None:
    """The index alone, by how rows lie."""
    nothing: Call = lambda: None  # noqa: E731

    def appends(back: np.ndarray) -> Call:
        index = TrajectoryIndex(ROWS)
        for _ in range(ROWS // len(back) + 1):
            index.append(index.indexed(), back)
        return lambda: index.append(index.indexed(), back)

    one_run = np.ones(64, dtype=np.int32)
    turns = np.where(np.arange(128) % 16, 1, 113).astype(np.int32)
    side_by_side = np.full(64, 64, dtype=np.int32)
    episodes = np.where(np.arange(CHUNK) % EPISODE, 1, 0).astype(np.int32)
    show(
        f"rows taken into a full index of {ROWS:,}",
        {
            "64 environments, one step of each": (nothing, appends(side_by_side)),
            "8 environments, 16 steps of each": (nothing, appends(turns)),
            f"{CHUNK:,} rows, episodes of {EPISODE}": (nothing, appends(episodes)),
            "1 row": (nothing, appends(one_run[:1])),
            "64 rows, one run": (nothing, appends(one_run)),
        },
        "64 rows, one run",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=None, help="of the large buffer")
    parser.add_argument("--large", action="store_true", help="nothing but the large buffer")
    parser.add_argument("--mapped", action="store_true", help="rows of the large buffer in files")
    with session(parser) as given:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        if not given.large:
            taking_in()
            against_the_peer()
            by_capacity()
        first_slices(given.rows or large_rows(), mapped=given.mapped)
