"""The time of a step in two workers, next to two processes that share nothing, and the peer.

    nox -s "bench(rl-collect)" -- workers

Workers continue between requests, so that contenders are timed one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from bench import session, turns
from collecting import NAME, ROUNDS, TABLES, batches_of, show_steps

from rl_collect import Collector, MultiAsyncCollector
from rl_envs import GymEnv
from rl_envs.testing import CountingEnv


class Busy(CountingEnv):
    """Burns a millisecond of processor time in every step."""

    def _step(self, tensordict: Any) -> Any:
        end = time.process_time() + 1e-3
        while time.process_time() < end:
            pass
        return super()._step(tensordict)


def two_workers(make: Callable[[], Any], frames: int) -> Iterator[int]:
    """Two workers of ours that continue by themselves, with random actions."""
    return batches_of(MultiAsyncCollector([make, make], frames_per_batch=frames))


def play_apart(sender: Connection, frames: int) -> None:
    """Collect in this process for as long as somebody listens, and hand over a number a batch."""
    torch.set_num_threads(1)  # as a worker does
    with contextlib.suppress(BrokenPipeError), Collector(Busy(50), frames_per_batch=frames) as one:
        for batch in one:
            sender.send(batch.numel())


def two_apart(frames: int) -> Iterator[int]:
    """What this machine can give: two processes with a collector each, which share nothing."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    playing = [context.Process(target=play_apart, args=(send, frames)) for _, send in pipes]
    for process, (_, send) in zip(playing, pipes, strict=True):
        process.start()
        send.close()
    ends = [receive for receive, _ in pipes]
    try:
        while True:
            for ready in wait(ends):
                yield ready.recv()  # type: ignore[union-attr] # connections, all of them
    finally:
        for receive in ends:
            receive.close()
        for process in playing:
            process.join()


def two_of_the_peer(frames: int) -> Iterator[int]:
    """Two workers of torchrl."""
    from torchrl.collectors import MultiAsyncCollector as Theirs
    from torchrl.envs import GymEnv as TheirEnv
    from torchrl.modules import RandomPolicy

    policy = RandomPolicy(TheirEnv(NAME).action_spec)
    makers = [lambda: TheirEnv(NAME)] * 2
    options = {"frames_per_batch": frames, "total_frames": -1}
    return batches_of(Theirs(makers, policy, **options))


def show_alone(title: str, contenders: dict[str, Callable[[], Iterator[int]]]) -> None:
    """The mean times, one contender after the other: workers continue between the requests."""
    took = {}
    for name, make in contenders.items():
        batches = make()
        for _ in range(5):
            next(batches)  # batches made while the processes started are not counted
        start = time.perf_counter()
        frames = sum(next(batches) for _ in range(turns(3 * ROUNDS - 5)))
        took[name] = 1e6 * (time.perf_counter() - start) / frames
        batches.close()  # type: ignore[attr-defined] # generators, all of them
    show_steps(title, took)


def in_workers(has_peer: bool) -> None:
    """The tables of two workers."""
    found = {
        "one in this process": lambda: batches_of(Collector(Busy(50), frames_per_batch=200)),
        "two processes apart": lambda: two_apart(200),
        "rl-collect": lambda: two_workers(lambda: Busy(50), 200),
    }
    show_alone("2 workers, 1 ms of processor time a step, 200 steps a batch", found)
    found = {"torchrl": lambda: two_of_the_peer(1000)} if has_peer else {}
    found["rl-collect"] = lambda: two_workers(lambda: GymEnv(NAME), 1000)
    show_alone("2 workers, CartPole, random actions, 1,000 steps a batch", found)


def main(wanted: str) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if wanted in ("all", "workers"):
        in_workers(importlib.util.find_spec("torchrl") is not None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
