"""Four processes write one buffer while a fifth samples it: the peer, and rl-replay.

    nox -s "bench(rl-replay)"
    PYTHONPATH=tools python packages/rl-replay/benchmarks/shared.py --writers

Rows have 9 leaves, all stored and returned on both sides; a write is one of 64 rows, a sample 256
rows drawn uniformly. The contenders take turns of a few seconds with writers of their own, so that
a busy machine slows them all; medians over the turns. A row is the time for each row that was
written or sampled. Its ratio depends on what is counted: written and sampled rows a second come
with it.

The second table, which `--writers` prints alone, is of writers without a reader: a row that one of
them writes while it is alone, and while there are four. What a writer keeps that is alone is said
with it: the whole room.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from bench import medians, session, table
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
    together: float


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


def peer() -> object:
    """TorchRL's shared buffer."""
    from torchrl.data import LazyMemmapStorage as PeerStorage
    from torchrl.data import ReplayBuffer as PeerBuffer

    made = PeerBuffer(storage=PeerStorage(ROWS), batch_size=SAMPLED, shared=True)
    made.extend(batch(0))  # it is shared from its first rows on
    return made


def write(buffer: object, who: int) -> None:
    """Write until the benchmark ends, also where that was killed."""
    torch.set_num_threads(1)
    rows, benchmark = batch(who), os.getppid()
    while os.getppid() == benchmark:
        buffer.extend(rows)  # type: ignore[attr-defined]
    os._exit(0)


@contextmanager
def written_by(buffer: object, count: int) -> Iterator[None]:
    """Some writers at work."""
    children = []
    for who in range(1, count + 1):
        child = os.fork()
        if not child:
            write(buffer, who)
        children.append(child)
    try:
        begin = buffer.write_count  # type: ignore[attr-defined]
        while buffer.write_count < begin + count * WRITTEN * 8:  # type: ignore[attr-defined]
            time.sleep(0.01)  # until all of them are under way
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def turn(buffer: object) -> Rates:
    """Four writers and one reader for a while."""
    with written_by(buffer, WRITERS):
        buffer.sample()  # type: ignore[attr-defined]
        first, start, samples = buffer.write_count, time.perf_counter(), 0  # type: ignore[attr-defined]
        while (elapsed := time.perf_counter() - start) < TURN_S:
            buffer.sample()  # type: ignore[attr-defined]
            samples += 1
        written = buffer.write_count - first  # type: ignore[attr-defined]
        sampled = samples * SAMPLED
        return Rates(*(rows / elapsed for rows in (written, sampled, written + sampled)))


def writing(buffer: object, count: int) -> tuple[float]:
    """Rows that some writers write a second, all together, and without a reader."""
    with written_by(buffer, count):
        first, start = buffer.write_count, time.perf_counter()  # type: ignore[attr-defined]
        time.sleep(TURN_S)
        elapsed = time.perf_counter() - start
        return ((buffer.write_count - first) / elapsed,)  # type: ignore[attr-defined]


def kept_by_one() -> str:
    """How much of the room of four a writer uses that is alone."""
    buffer, rows = ours(), batch(0)
    for _ in range(ROWS // WRITTEN + 1):
        buffer.extend(rows)  # type: ignore[attr-defined]
    found = buffer.stats()  # type: ignore[attr-defined]
    return f"keeps {len(buffer):,} of {found['capacity']:,} rows"  # type: ignore[arg-type]


def writers() -> None:
    """The claims: a writer that is alone has the whole room, and four hinder each other little."""
    counts = {"one writer alone": 1, f"{WRITERS} writers": WRITERS}
    measures = [lambda count=count: writing(ours(), count) for count in counts.values()]
    found = dict(zip(counts, medians(TURNS, *measures), strict=True))
    took = {name: 1e6 / rate for name, (rate,) in found.items()}
    notes = {name: f"{rate:11,.0f} written a second" for name, (rate,) in found.items()}
    notes["one writer alone"] += f", {kept_by_one()}"
    table("a row that is written without samplers", took, "one writer alone", notes)


def contenders() -> dict[str, Callable[[], object]]:
    """What is compared, the peer first if it is installed."""
    others = {"torchrl": peer} if importlib.util.find_spec("torchrl") is not None else {}
    return {
        **others,
        "memory": ours,
        "file": lambda: ours(file=True),
        "memory, lossless": lambda: ours(lossless=True),
        "memory, 8 slices of 32": lambda: ours(slices=True),
    }


def beside_a_reader() -> None:
    """The claim: writers and a reader hinder each other little."""
    makers = contenders()
    # made anew each turn: a peer's lock is lost with a writer that is killed while it has it
    measures = [lambda make=make: turn(make()) for make in makers.values()]
    found = dict(zip(makers, medians(TURNS, *measures), strict=True))
    notes = {
        name: f"{rates[0]:11,.0f} written, {rates[1]:11,.0f} sampled a second"
        for name, rates in found.items()
    }
    took = {name: 1e6 / rates[2] for name, rates in found.items()}
    work = f"a row of a buffer that {WRITERS} processes write and one samples"
    table(work, took, "memory", notes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", action="store_true", help="nothing but writers")
    with session(parser) as given:
        torch.set_num_threads(1)
        # the children run no thread of torch's
        warnings.simplefilter("ignore", DeprecationWarning)
        if not given.writers:
            beside_a_reader()
        writers()
