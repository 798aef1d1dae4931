"""The memory that a batch takes, next to what it holds.

nox -s "bench(rl-collect)" -- memory
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import warnings
from typing import Any

import gymnasium
import numpy as np
from bench import session
from collecting import TABLES

from rl_collect import Collector
from rl_envs import GymEnv


def show_memory() -> None:
    """How much a process grows by a batch of large observations, against what the batch holds."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_grow, args=(sending,))
    child.start()
    held, grown = receiving.recv()
    child.join()
    print("\nmemory for a batch of 2,048 steps with observations of 4,096 bytes")
    print(f"  the batch holds {held / 2**20:.0f} MiB, the process grew by {grown / 2**20:.0f} MiB")


def _grow(sending: Any) -> None:
    space = gymnasium.spaces.Box(0, 1, (1024,), np.float32)

    class Wide(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, gymnasium.spaces.Discrete(2)

        def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**given)
            return np.zeros(1024, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.ones(1024, np.float32), 1.0, False, False, {}

    collector = Collector(GymEnv(Wide()), frames_per_batch=16)
    collector.next()
    collector.batches.num_steps = 2048
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = collector.next()
    assert batch is not None
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    sending.send((batch.bytes(), grown))


def main(wanted: str) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    if wanted in ("all", "memory"):
        show_memory()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
