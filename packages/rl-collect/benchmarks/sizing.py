"""How many workers a learner can take batches from: a model, and a simulated run.

    nox -s "bench(rl-collect)" -- sizing

The model: `n` workers that play `r` steps a second each, of `b` bytes a step, deliver

    min(n r, network / b, learner)

steps a second, where `learner` is how many it can take off the wire and copy out. `r`, `b` and
`learner` are measured here on CartPole. The simulated run is the whole path of a learner, its
schedule, messages and copies; workers are threads that sleep for as long as a batch is played, and
the network is one wire that all share, which takes a time for each byte.
"""

from __future__ import annotations

import argparse
import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from bench import session, turns
from collecting import NAME, TABLES

from rl_collect import Collector
from rl_collect.multi.batch_transport import BatchMessage
from rl_collect.multi.pickled import Pickled
from rl_collect.multi.remote_workers import RemoteWorkers
from rl_collect.multi.schedule import AsyncSchedule
from rl_collect.multi.worker_group import WorkerGroup
from rl_collect.multi.worker_host import HostInfo
from rl_envs import GymEnv
from rl_slabs import PackedRows

FRAMES = 2_500  # steps of a batch
NETWORK = 125e6  # bytes a second: 1 Gbit


class SleepingWorkers:
    """A transport to threads that sleep instead of playing, over one shared wire."""

    node, advice = "learner", ""

    def __init__(self, count: int, batch: PackedRows, play_s: float) -> None:
        self.count, self.play_s = count, play_s
        self.bytes = batch.block.nbytes
        stats = {"policy_version": 0, "episodes": 0, "mean_return": 0.0}
        self.reply = Pickled.of(BatchMessage(FRAMES, batch.shape, batch, stats))
        self.threads, self.wire = ThreadPoolExecutor(count), threading.Lock()
        self.free_at = 0.0  # when the wire is

    def __len__(self) -> int:
        return self.count

    def start(self, index: int) -> Future[Pickled]:
        """A worker that is there."""
        return self.threads.submit(lambda: Pickled.of(HostInfo(index + 1, "elsewhere")))

    def submit(self, index: int, request: bytes, version: int, weights: list[Any]) -> Any:
        """Sleep for a batch and its way, or answer at once."""
        del index, version, weights
        return self.threads.submit(self._answer, pickle.loads(request)[0])

    def _answer(self, name: str) -> Pickled:
        if name != "play":
            return Pickled.of({})
        time.sleep(self.play_s)
        with self.wire:
            now = time.perf_counter()
            self.free_at = max(self.free_at, now) + self.bytes / NETWORK
            arrives = self.free_at
        time.sleep(max(arrives - now, 0))
        return self.reply

    def offer(self, weights: PackedRows) -> PackedRows:
        """Nothing is sent to threads."""
        return weights

    def take(self, ticket: Future[Pickled], timeout_s: float) -> Pickled:
        """Wait for a reply."""
        return ticket.result(timeout_s)

    def ready(self, tickets: Sequence[Future[Pickled]], timeout_s: float) -> list[Any]:
        """Wait for one reply."""
        return list(wait(tickets, timeout_s, FIRST_COMPLETED).done)

    def close(self, places: Sequence[HostInfo | None], timeout_s: float) -> None:
        """Let the threads end."""
        del places, timeout_s
        self.threads.shutdown()


def simulated(count: int, batch: PackedRows, play_s: float) -> float:
    """Steps a second that a learner gets from so many workers."""
    group = WorkerGroup(RemoteWorkers(SleepingWorkers(count, batch, play_s)))
    schedule = AsyncSchedule(group, [FRAMES] * count, -1)
    for _ in range(turns(2 * count)):
        schedule.next()
    begin, batches = time.perf_counter(), turns(max(6 * count, 30))
    for _ in range(batches):
        schedule.next()
    took = time.perf_counter() - begin
    group.close()
    return batches * FRAMES / took


def main(wanted: str) -> None:
    """Print what is measured, and the table."""
    if wanted not in ("all", "sizing"):
        return
    with Collector(GymEnv(NAME), frames_per_batch=FRAMES) as collector:
        collector.next()
        begin = time.perf_counter()
        batches = [collector.next() for _ in range(turns(8))]
        rate = len(batches) * FRAMES / (time.perf_counter() - begin)
    batch = PackedRows.of(batches[0])
    size = batch.block.nbytes / FRAMES
    begin = time.perf_counter()
    for _ in range(turns(200)):
        PackedRows.unpack(batch)
    learner = turns(200) * FRAMES / (time.perf_counter() - begin)
    print(f"CartPole: a worker plays {rate:,.0f} steps/s of {size:.0f} bytes each")
    print(f"the learner copies {learner:,.0f} steps/s out of blocks")
    print(f"the network carries {NETWORK / size:,.0f} steps/s ({NETWORK / 1e6:.0f} MB/s)\n")
    print(f"{'workers':>8}{'model':>16}{'simulated':>16}")
    for count in (1, 2, 4, 8, 16, 32, 64):
        model = min(count * rate, NETWORK / size, learner)
        found = simulated(count, batch, FRAMES / rate)
        print(f"{count:>8}{model:>16,.0f}{found:>16,.0f}{found / model:8.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
