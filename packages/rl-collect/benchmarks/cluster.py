"""Transport of batches from actors: our slots and blocks against Ray's object store.

    nox -s "bench(rl-collect)" -- cluster

Two workers deliver a prepared batch of 8 MiB, so that only its transport is timed: through slots of
shared memory on this machine, next to the same slots without Ray, and as one block from a second
raylet, which simulates another machine. The peers are two actors that return the same batch to Ray
as arrays, one copy, and a loopback socket that carries as many bytes. Then `RayCollector` against
`MultiAsyncCollector`. Needs Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from bench import session, table, turns
from collecting import NAME, TABLES, batches_of
from tensordict import TensorDict
from workers import show_alone

from rl_collect import Collector, MultiAsyncCollector, RayCollector
from rl_collect.multi.carrier import Carrier, Processes
from rl_collect.multi.remote_workers import RemoteWorkers
from rl_collect.multi.worker import CollectorWorker
from rl_collect.multi.worker_group import WorkerGroup
from rl_collect.ray.actors import Actors
from rl_envs import GymEnv
from rl_envs.testing import CountingEnv
from rl_slabs import PackedRows

ROWS, WIDTH = 64, 16_384  # observations of 64 KiB before and after each step: 8 MiB
REPEATS = 60
HERE, FAR = ({"num_cpus": 1, "resources": {place: 1}} for place in ("here", "far"))


def prepared() -> TensorDict:
    """A batch of 8 MiB."""
    observation = torch.rand(ROWS + 1, WIDTH)
    after = TensorDict({"observation": observation[1:]}, [ROWS])
    return TensorDict({"observation": observation[:-1], "next": after}, [ROWS], names=["time"])


class Delivers(CollectorWorker):
    """Hands over one batch whenever it is asked for the next."""

    def __init__(self) -> None:
        super().__init__(lambda: Collector(CountingEnv(), frames_per_batch=1))
        self.batch = prepared()

    def play(self, slot: int, number: int = 0) -> Any:
        """Write the batch to its slot, or return it packed."""
        del number
        batch = self.batch if self._slots is None else self._slots.put(slot, self.batch)
        return self.message(ROWS, (ROWS,), batch, [])


class Stores:
    """Returns the same batch as arrays."""

    def __init__(self) -> None:
        self.batch = prepared()

    def play(self) -> Any:
        """The batch, which Ray puts into its object store."""
        before, after = self.batch["observation"], self.batch["next", "observation"]
        return {"observation": before.numpy(), "next": after.numpy()}


def by_actors(ray: Any, config: dict[str, Any]) -> Iterator[Any]:
    """Batches from two workers in actors, by our own way."""
    make = ray.cloudpickle.dumps(Delivers)
    return by_group(RemoteWorkers(Actors([make] * 2, [config] * 2)))


def by_processes() -> Iterator[Any]:
    """Batches from two workers in processes, without Ray: the floor of slots."""
    return by_group(Processes([Delivers] * 2, start_method="forkserver"))


def by_group(carrier: Carrier) -> Iterator[Any]:
    """Batches from two workers."""
    group = WorkerGroup(carrier)
    group.attach(None, None)
    try:
        for index in range(2):
            group.begin(index)
        while True:
            for index in group.pool.wait():
                yield group.take(index, lambda: True)[1]
    finally:
        for index in range(2):
            group.take(index)
        group.close()


def by_store(ray: Any, config: dict[str, Any]) -> Iterator[Any]:
    """Batches from two actors through the object store, copied out as ours are."""
    actors = [ray.remote(Stores).options(**config).remote() for _ in range(2)]
    pending = {actor.play.remote(): actor for actor in actors}
    try:
        while True:
            (ready, *_), _ = ray.wait(list(pending))
            actor, found = pending.pop(ready), ray.get(ready)
            pending[actor.play.remote()] = actor
            del ready  # what is held stays in the store
            yield {name: torch.from_numpy(leaf).clone() for name, leaf in found.items()}
    finally:
        for actor in actors:
            ray.kill(actor)


def by_socket(*, packs: bool = False) -> Iterator[Any]:
    """As many bytes from another process, through the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = multiprocessing.get_context("fork")
        sender = context.Process(target=_send, args=(server.getsockname(), packs), daemon=True)
        sender.start()
        end, _ = server.accept()
    packed = PackedRows.of(prepared())
    block = packed.block
    try:
        while True:
            if packs:
                block = np.empty_like(block)
            memory, done = block.data, 0
            while done < len(memory):
                done += end.recv_into(memory[done:])
            yield packed._replace(block=block).unpack(copy=False) if packs else memory
    finally:
        end.close()
        sender.kill()
        sender.join()


def _send(address: tuple[str, int], packs: bool) -> None:
    batch = prepared()
    block = PackedRows.of(batch).block
    with contextlib.suppress(OSError), socket.create_connection(address) as end:
        while True:
            end.sendall(PackedRows.of(batch).block.data if packs else block.data)


def by_copy() -> Iterator[Any]:
    """One copy of the batch in this process."""
    batch = prepared()
    while True:
        yield batch.clone()


def show_batches(title: str, ours: str, ways: dict[str, Callable[[], Iterator[Any]]]) -> None:
    """Medians of rounds that take turns, each of some batches in a row."""
    streams = {name: make() for name, make in ways.items()}
    for stream in streams.values():
        for _ in range(6):
            next(stream)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns(REPEATS)):
        for name, stream in streams.items():
            next(stream)  # what was made meanwhile is not counted
            next(stream)
            begin = time.perf_counter()
            for _ in range(8):
                next(stream)
            took[name].append((time.perf_counter() - begin) / 8)
    table(title, {name: 1e6 * statistics.median(found) for name, found in took.items()}, ours)
    for stream in streams.values():
        stream.close()  # type: ignore[attr-defined] # generators, all of them


def show_collectors() -> None:
    """Whole collectors that play CartPole; a batch of 2,500 steps is a quarter of a MiB."""
    makers = [functools.partial(GymEnv, NAME)] * 2
    show_alone(
        "2 workers, CartPole, random actions, 2,500 steps a batch",
        {
            "MultiAsyncCollector": lambda: batches_of(
                MultiAsyncCollector(makers, frames_per_batch=2500)
            ),
            "rl-collect": lambda: batches_of(
                RayCollector(makers, frames_per_batch=2500, remote_configs=HERE)
            ),
        },
    )


def main(wanted: str) -> None:
    """Print the tables."""
    if wanted not in ("all", "cluster"):
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        print("Ray is not installed: pip install 'rl-collect[ray]'.")
        return
    with tempfile.TemporaryDirectory() as home:
        store = {"object_store_memory": 400 * 2**20}
        head = {"num_cpus": 6, "resources": {"here": 6}, "temp_dir": home, **store}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=4, resources={"far": 4}, **store)
        options = {"include_dashboard": False, "log_to_driver": False}
        ray.init(address=cluster.address, **options)
        show_batches(
            "8 MiB batches from two actors of this machine",
            "slots",
            {
                "one copy": by_copy,
                "slots, without Ray": by_processes,
                "slots": lambda: by_actors(ray, HERE),
                "Ray's object store": lambda: by_store(ray, HERE),
            },
        )
        show_batches(
            "8 MiB batches from two actors of a second raylet",
            "blocks",
            {
                "a socket": by_socket,
                "a socket, packed and unpacked": lambda: by_socket(packs=True),
                "blocks": lambda: by_actors(ray, FAR),
                "Ray's object store": lambda: by_store(ray, FAR),
            },
        )
        show_collectors()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
