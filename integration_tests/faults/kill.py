"""Processes that are killed at any moment: nothing that was published is torn or lost.

Run with `nox -s faults`, or as a script: `--seconds 60 --seed 3`. Four kinds of trial take turns:

- a writer of a shared buffer is killed while it extends; every row that can be read afterwards
  must be one that was written, and the next writer continues;
- a process that dumps a buffer again and again is killed; the folder must hold one of its dumps,
  whole;
- learners that draw by priority are killed, and writers of their buffer; draws must then be as
  often as the priorities say, and exactly the updates of overwritten rows be dropped (`learners`);
- a worker of a collector is killed while a learner samples; it is replaced, and every row must
  be one that an environment made.

The figures are printed; the exit status is 1 where one trial failed.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from learners import LEARNERS, Learners
from written_rows import check, rows

from rl_collect import MultiAsyncCollector
from rl_envs.testing import EpisodeStepEnv
from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

LONGEST = 0.03  # seconds that a process lives at most
KINDS: dict[str, Callable[[], ReplayBuffer]] = {
    "memory": lambda: ReplayBuffer(
        storage=LazyTensorStorage(90, lanes=3), batch_size=5, shared=True
    ),
    "lossless": lambda: ReplayBuffer(
        storage=LazyTensorStorage(90, lanes=3, lossless=True), batch_size=5, shared=True
    ),
    "file": lambda: ReplayBuffer(storage=LazyMemmapStorage(30), batch_size=5),
    "lossless file": lambda: ReplayBuffer(
        storage=LazyMemmapStorage(30, lossless=True), batch_size=5
    ),
}


def killed(work: Callable[[], None], after_s: float) -> bool:
    """Run something in a forked child, kill it, and say whether the kill came before its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forked while threads run
        child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # those of OpenMP are not in a forked child
            work()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def write_on(buffer: ReplayBuffer, first: int) -> None:
    """Write forever: pieces of trajectories, and single rows."""
    for number in range(first, first + 100_000, 8):
        buffer.extend(rows(number, 7))
        buffer.add(rows(number + 7, 1)[0])


class Writers:
    """Kills the writers of shared buffers."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._buffers = {kind: make() for kind, make in KINDS.items()}
        self._next = 0

    def trial(self) -> list[str]:
        """Kill one writer; what is wrong afterwards, a line each."""
        kind = self._generator.choice(list(KINDS))
        buffer, self._next = self._buffers[kind], self._next + 100_100
        work = functools.partial(write_on, buffer, self._next)
        killed(work, self._generator.uniform(0, LONGEST))
        lines = check(buffer, settled=False)
        buffer.extend(rows(self._next + 100_002, 5))
        lines += check(buffer, settled=False)
        if buffer[:]["number"].max() != self._next + 100_006:
            lines.append("the rows of the next writer are not there")
        buffer.storage.ring.release_lane()  # type: ignore[attr-defined]  # these are all shared
        return [f"{kind}: {line}" for line in lines]


class Dumps:
    """Kills processes that write dumps over each other."""

    def __init__(self, generator: random.Random, folder: Path) -> None:
        self._generator, self._folder, self._first = generator, folder, 0

    def trial(self) -> list[str]:
        """Kill one process that dumps; what is wrong afterwards, a line each."""
        sizes = [self._generator.randrange(1, 90) for _ in range(3)]

        def buffer_of(size: int) -> ReplayBuffer:
            buffer = ReplayBuffer(storage=LazyTensorStorage(90), batch_size=5)
            buffer.extend(rows(1000 * size, size))
            return buffer

        def work() -> None:
            while True:
                for one in buffers:
                    one.dumps(self._folder)

        buffers = [buffer_of(size) for size in sizes]
        buffers[0].dumps(self._folder)
        killed(work, self._generator.uniform(0, LONGEST))
        found = buffer_of(1)
        found.loads(self._folder)
        wanted = {(1000 * size, size) for size in sizes}
        lines = check(found)
        if (int(found[:]["number"].min()), len(found)) not in wanted:
            lines.append(f"none of the dumps {wanted}: {len(found)} rows")
        return lines


class Mortal(EpisodeStepEnv):
    """An environment that kills its process after some steps."""

    def __init__(self, first_episode: int, lifetime: int) -> None:
        super().__init__([(3, "terminated"), (9, "truncated")], first_episode=first_episode)
        self._left = lifetime

    def _step(self, tensordict: Any) -> Any:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)


def kill_workers(generator: random.Random) -> tuple[int, list[str]]:
    """Let the workers of one collector die; how often they did, and what is wrong."""
    lifetimes = [generator.randrange(60, 200) for _ in range(2)]
    makers = [functools.partial(Mortal, 500 * n, life) for n, life in enumerate(lifetimes)]
    buffer = ReplayBuffer(storage=LazyTensorStorage(500), batch_size=32)
    collector = MultiAsyncCollector(
        makers,
        frames_per_batch=20,
        replay_buffer=buffer,
        restart_workers=True,
        mp_start_method="fork",
        timeout_s=60,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forked while threads run; workers that ended
        with collector:
            collector.start()
            buffer.wait_until(40, timeout=60)
            while collector.restarts < 4:
                buffer.sample()
    found, lines = buffer[:], []
    step = found["observation"][..., 1]
    if not torch.equal(found["next", "observation"][..., 1], step + 1):
        lines.append("a next observation is not that of the next step")
    if not torch.equal(found["next", "reward"].flatten(), step + 1):
        lines.append("a reward is not that of its step")
    return collector.restarts, lines


def sweep(seconds: float, seed: int, *, most: int | None = None, workers: bool = True) -> int:
    """Kill for some time, print the figures, and return how many trials failed."""
    generator, end = random.Random(seed), time.monotonic() + seconds
    counts = {"writers": 0, "dumps": 0, "learners": 0, "workers": 0}
    failed = 0

    def tell(kind: str, lines: list[str]) -> None:
        nonlocal failed
        failed += bool(lines)
        for line in lines[:3]:
            sys.stdout.write(f"  {kind}: {line}\n")

    with tempfile.TemporaryDirectory() as name:
        trials = {
            "writers": Writers(generator),
            "dumps": Dumps(generator, Path(name)),
            "learners": Learners(generator),
        }
        while time.monotonic() < end and (most is None or counts["writers"] < most):
            for kind, trial in trials.items():
                try:
                    lines = trial.trial()
                except Exception:
                    lines = [traceback.format_exc()]
                counts[kind] += LEARNERS if kind == "learners" else 1
                tell(kind, lines)
            if workers and counts["writers"] % 40 == 1:
                restarts, lines = kill_workers(generator)
                counts["workers"] += restarts
                tell("workers", lines)
    killed_ones = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    sys.stdout.write(f"kill: {killed_ones} killed, {failed} failed, seed {seed}\n")
    return failed


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    return int(sweep(options.seconds, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
