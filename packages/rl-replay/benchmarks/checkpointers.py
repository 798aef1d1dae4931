"""Forms of checkpoints for a million steps of a pole, alongside the peer's.

    PYTHONPATH=tools python packages/rl-replay/benchmarks/checkpointers.py [FOLDER] [--rows ROWS]
    PYTHONPATH=tools python packages/rl-replay/benchmarks/checkpointers.py [FOLDER] --h5

With `--h5` the HDF5 forms of both alone write and read all rows three times; the peer needs minutes
for each of its turns.
Everything is written to a new folder below FOLDER (the system's for temporary files unless given).
All contenders take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyTensorStorage,
    NestedStorageCheckpointer,
    TensorDictReplayBuffer,
    TensorStorageCheckpointer,
)

ROWS, TURNS, EPISODE = 1_000_000, 3, 100


def steps(count: int) -> TensorDict:
    """Steps of a pole as a collector yields them, in episodes of a hundred."""
    number = torch.arange(count)
    ends = (number % EPISODE == EPISODE - 1).unsqueeze(-1)
    no = torch.zeros_like(ends)
    observation = torch.rand(count + 1, 4)
    after = observation[1:].clone()
    after[ends[:, 0]] = torch.rand(int(ends.sum()), 4)
    return TensorDict(
        {
            "observation": observation[:-1].clone(),
            "action": torch.randint(2, (count, 2)),
            "done": no,
            "terminated": no.clone(),
            "truncated": no.clone(),
            "collector": {"traj_ids": number // EPISODE, "traj_step": number % EPISODE},
            "next": {
                "observation": after,
                "reward": torch.ones(count, 1),
                "done": ends,
                "terminated": ends.clone(),
                "truncated": no.clone(),
            },
        },
        [count],
    )


def ours(checkpointer: Any, count: int, *, filled: bool = True) -> TensorDictReplayBuffer:
    """A buffer with rows, and a way to keep them."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(count), batch_size=256)
    buffer.storage.checkpointer = checkpointer
    if filled:
        buffer.extend(steps(count))
    return buffer


def peer(count: int, *, filled: bool) -> Any:
    """TorchRL's buffer over the same rows, or None if it is not installed."""
    try:
        from torchrl.data import H5StorageCheckpointer as TheirCheckpointer
        from torchrl.data import LazyTensorStorage as Theirs
        from torchrl.data import TensorDictReplayBuffer as TheirBuffer
    except ImportError:
        return None
    buffer = TheirBuffer(storage=Theirs(count), batch_size=256)
    buffer.storage.checkpointer = TheirCheckpointer()
    if filled:
        # their form lacks ids of trajectories that a done flag ends
        buffer.extend(steps(count).exclude("collector"))
    return buffer


FORMS: dict[str, Callable[[], Any]] = {
    "as stored": TensorStorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "H5": H5StorageCheckpointer,
    "H5, gzip 1": lambda: H5StorageCheckpointer(compression="gzip", compression_opts=1),
}


def measure(folder: Path, count: int, turns: int, *, with_peer: bool) -> None:
    """Print the figures of so many rows."""
    dumps: dict[str, Callable[[], object]] = {}
    loads: dict[str, Callable[[], object]] = {}
    for name, form in FORMS.items():
        one, two = ours(form(), count), ours(form(), count, filled=False)
        path = folder / name.replace(" ", "-")
        dumps[name] = lambda one=one, path=path: one.dumps(path)
        loads[name] = lambda two=two, path=path: two.loads(path)
    theirs = peer(count, filled=True) if with_peer else None
    if theirs is not None:
        dumps["peer"] = lambda: theirs.dumps(folder / "theirs")
        loads["peer"] = lambda: peer(count, filled=False).loads(folder / "theirs")
    for what, calls in (("dump", dumps), ("load", loads)):
        took = medians_us(turns, *calls.values(), warm_up=0, before=[os.sync] * len(calls))
        found = dict(zip(calls, took, strict=True))
        their_us = found.pop("peer", None)
        for name, us in found.items():
            report(f"{what} {count:,} rows, {name}", us, their_us if name == "H5" else None)
    for name in FORMS:
        path = folder / name.replace(" ", "-")
        files = [one for one in path.iterdir() if "checkpoint" not in one.name]
        print(f"  {name}: {sum(one.stat().st_size for one in files) / 2**20:,.1f} MiB")


def measure_h5(folder: Path, count: int, turns: int) -> None:
    """Print how much faster our HDF5 form is than the peer's, of so many rows in turn."""
    one, two = ours(H5StorageCheckpointer(), count), ours(H5StorageCheckpointer(), count)
    theirs = peer(count, filled=True)
    if theirs is None:
        print("torchrl is not installed, which is the peer here.")
        return

    def load_theirs() -> object:
        return peer(count, filled=False).loads(folder / "theirs")  # it loads into no rows alone

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "dump": (lambda: one.dumps(folder / "h5"), lambda: theirs.dumps(folder / "theirs")),
        "load": (lambda: two.loads(folder / "h5"), load_theirs),
    }
    for what, calls in pairs.items():
        took, their_us = medians_us(turns, *calls, warm_up=0, before=[os.sync] * 2)
        report(f"{what} {count:,} rows, H5, {turns} turns", took, their_us)


def main(parent: str | None, count: int, *, h5_alone: bool = False) -> None:
    """Print every figure."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        if h5_alone:
            measure_h5(folder, count, TURNS)
            return
        # the peer takes minutes for a million rows, more than ten times those of a tenth of them
        measure(folder, count // 10, 1, with_peer=True)
        measure(folder, count, TURNS, with_peer=False)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="where a new folder is made to write to")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--h5", action="store_true", help="the HDF5 forms alone, three turns each")
    with session(parser) as given:
        main(given.folder, given.rows, h5_alone=given.h5)
