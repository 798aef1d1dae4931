"""Dumping and loading a million rows of 100 bytes, alongside the disk itself and the peer.

    PYTHONPATH=tools python packages/rl-replay/benchmarks/checkpoint.py [FOLDER]

Everything is written to a new folder below FOLDER (the system's for temporary files unless given),
which should be on a real disk. The disk's own rate is that of writing as many bytes one after
another and waiting for them with fsync; all contenders take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, TensorDictReplayBuffer

ROWS, TURNS, PIECE = 1_000_000, 7, 8 << 20


def steps(count: int) -> TensorDict:
    """Rows of 100 bytes: no leaf is easier to write than another."""
    return TensorDict(
        {
            "observation": torch.rand(count, 16),
            "action": torch.rand(count, 4),
            "next": {"reward": torch.rand(count, 1), "value": torch.rand(count, 4)},
        },
        batch_size=[count],
    )


def filled(count: int, *, lossless: bool = False) -> TensorDictReplayBuffer:
    """A buffer for a million rows with some in it."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS, lossless=lossless), batch_size=256
    )
    rows = steps(count)
    if lossless:
        rows["next", "observation"] = torch.cat([rows["observation"][1:], torch.rand(1, 16)])
    for start in range(0, count, 10_000):
        buffer.extend(rows[start : start + 10_000])
    return buffer


def peer(count: int) -> object | None:
    """TorchRL's buffer over the same rows, or None if it is not installed."""
    try:
        from torchrl.data import LazyTensorStorage as Theirs
        from torchrl.data import TensorDictReplayBuffer as TheirBuffer
    except ImportError:
        return None
    buffer = TheirBuffer(storage=Theirs(ROWS), batch_size=256)
    buffer.extend(steps(count))
    return buffer


def write_alone(name: Path, raw: memoryview) -> None:
    """The bytes one after another, and then the wait for the disk."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(raw), PIECE):
        os.write(descriptor, raw[start : start + PIECE])
    os.fsync(descriptor)
    os.close(descriptor)


def main(parent: str | None) -> None:
    """Print every figure."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        whole, part, once = filled(ROWS), filled(ROWS // 100), filled(ROWS, lossless=True)
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=256)
        raw = np.random.default_rng(0).integers(256, size=100 * ROWS, dtype=np.uint8).data
        contenders: dict[str, Callable[[], object]] = {
            "the disk alone": lambda: write_alone(folder / "alone", raw),
            "dump": lambda: whole.dumps(folder / "whole"),
            "dump, 1 % full": lambda: part.dumps(folder / "part"),
            "dump, each observation once": lambda: once.dumps(folder / "once"),
            "load": lambda: other.loads(folder / "whole"),
        }
        theirs = peer(ROWS)
        if theirs is not None:
            contenders["torchrl's dumps"] = lambda: theirs.dumps(folder / "theirs")  # type: ignore[attr-defined]
        each = [os.sync] * len(contenders)
        took = medians_us(TURNS, *contenders.values(), warm_up=0, before=each)
        found = dict(zip(contenders, took, strict=True))
        disk = found["the disk alone"]
        theirs_us = found.pop("torchrl's dumps", None)
        for name, us in found.items():
            report(
                name,
                us,
                theirs_us if name == "dump" else None,
                note=f"{disk / us:.2f} of the disk's rate",
            )
        excess = found["dump, 1 % full"] - found["dump"] / 100
        print(f"1 % full: 1 % of the time {excess / 1000:+.1f} ms")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="where a new folder is made to write to")
    with session(parser) as given:
        main(given.folder)
