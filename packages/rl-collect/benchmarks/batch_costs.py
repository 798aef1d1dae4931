"""What a batch costs by its size and by the width of a vector, next to the loop by hand.

    nox -s "bench(rl-collect)" -- batches
    nox -s "bench(rl-collect)" -- vectors

CartPole, a categorical policy, the loops of `collecting.py`, which store the same keys. A batch by
hand is a dictionary of arrays; for who wants a `TensorDict` of tensors, as a collector returns, a
loop makes one of them; for who wants them in a buffer, a loop copies them into a ring of arrays.
Time of the collecting thread, contenders in turn, medians.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time
from typing import Any

import numpy as np
import torch
from bench import medians_us, report, session
from collecting import NAME, ROUNDS, TABLES, network, one_by_hand, ours, vector_by_hand
from tensordict import TensorDict
from torch import nn

from rl_envs import GymEnv, GymVectorEnv
from rl_replay import LazyTensorStorage, ReplayBuffer

ROOM = 100_000


def as_tensordict(cols: dict[str, np.ndarray]) -> TensorDict:
    """A batch by hand with the keys and the form of a collector's."""
    leaf = {name: torch.from_numpy(column) for name, column in cols.items()}
    after = {name[5:]: leaf.pop(name) for name in [*leaf] if name.startswith("next_")}
    root = {"observation": leaf.pop("obs"), "sample_log_prob": leaf.pop("log_prob")}
    marks = {"traj_ids": leaf.pop("ids"), "traj_step": leaf.pop("steps")}
    marks["policy_version"] = leaf.pop("version")
    after |= {"observation": after.pop("obs"), "reward": leaf.pop("reward")}
    sizes = [len(leaf["done"])]
    return TensorDict({**root, **leaf, "next": after, "collector": marks}, sizes, names=["time"])


class Ring:
    """The buffer that one would write by hand: an array for each key, written in turn."""

    def __init__(self) -> None:
        self.columns: dict[str, np.ndarray] = {}
        self.place = 0

    def extend(self, cols: dict[str, np.ndarray]) -> None:
        """Copy a batch."""
        if not self.columns:
            forms = {name: (column.shape[1:], column.dtype) for name, column in cols.items()}
            self.columns = {n: np.zeros((ROOM, *shape), d) for n, (shape, d) in forms.items()}
        count = len(cols["obs"])
        rows = slice(self.place, self.place + count)
        if rows.stop > ROOM:
            rows = np.arange(rows.start, rows.stop) % ROOM  # type: ignore[assignment]
        for name, column in cols.items():
            self.columns[name][rows] = column
        self.place = (self.place + count) % ROOM


def loops(net: nn.Module, frames: int) -> dict[str, Iterator[int]]:
    """What is compared at a size of a batch."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(ROOM))
    return {
        "by hand": one_by_hand(net, frames),
        "by hand, a TensorDict": one_by_hand(net, frames, as_tensordict),
        "by hand, into a ring": one_by_hand(net, frames, Ring().extend),
        "collector": ours(GymEnv(NAME), net, frames),
        "collector, into a buffer": ours(GymEnv(NAME), net, frames, buffer),
    }


def by_batch_size(net: nn.Module) -> None:
    """A table by the frames of a batch: one environment."""
    print("\none environment: what a batch costs, in time of this thread")
    for frames in (1, 4, 16, 64, 256):
        found, count = loops(net, frames), max(1, 64 // frames)  # a turn is 64 frames or more

        def turn(loop: Iterator[int], count: int = count) -> None:
            for _ in range(count):
                next(loop)

        calls = [partial(turn, loop) for loop in found.values()]
        took = medians_us(8 * ROUNDS, *calls, clock=thread_time)
        hand, dense, ring, own, stored = (us / count for us in took)
        note = f"{own / hand:5.2f} times {hand:6.0f} us by hand; a TensorDict by hand {dense:6.0f}"
        report(f"a batch of {frames} frames", own, note=f"{note}, {own / dense:5.2f} times")
        note = f"{stored / ring:5.2f} times {ring:6.0f} us by hand into a ring"
        report(f"a batch of {frames} frames, into a buffer", stored, note=note)


def by_width() -> None:
    """A table by the width of a native vector: what a step of all its rows costs."""
    print("\na native vector, policy 2 x 32: a step of all rows, in time of this thread")
    for width, steps in ((64, 128), (256, 64), (1024, 64)):
        net = network(32)
        vector = GymVectorEnv(NAME, width, vectorization_mode="vector_entry_point")
        contenders = vector_by_hand(net, width, steps), ours(vector, net, width * steps)
        calls: list[Callable[[], Any]] = [partial(next, loop) for loop in contenders]
        found = medians_us(2 * ROUNDS, *calls, clock=thread_time, per_unit=True)
        hand, own = (us * width for us in found)
        note = f"{hand / own:5.2f} of the loop by hand ({hand:,.0f} us), {own - hand:5.1f} us more"
        report(f"a step of {width} rows", own, note=f"{note}, {width / own:5.2f}M steps/s")


def main(wanted: str) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if wanted in ("all", "batches"):
        by_batch_size(network())
    if wanted in ("all", "vectors"):
        by_width()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", default="all", choices=TABLES)
    with session(parser) as given:
        main(given.table)
