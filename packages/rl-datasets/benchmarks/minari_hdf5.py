"""Time a dataset of Minari from its file to rows, opened again, and sampled.

Run with `nox -s "bench(rl-datasets)"`. Reading is timed from an HDF5 file in the
page cache to the end: all episodes of Minari's iterator, the buffer of the peer with its mapped
rows, ours with rows, index, report and `fsync`, and our reader alone. For comparison: HDF5's own
calls, of which opening alone is shown too, which write the same bytes to one file once, and
`fsync`; the floor of our rows and index by any reader, which reads the file as it is and writes as
many bytes as they have; and that without `fsync`. A second part opens datasets of two sizes, and
draws rows and slices of them and of a buffer of rl-replay whose mapped storage has the same rows.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import h5py
import numpy as np
import torch
from bench import medians_us, report, session, table
from gymnasium.spaces import Box
from minari import MinariDataset, create_dataset_from_buffers
from minari.data_collector import EpisodeBuffer
from tensordict import TensorDict
from torchrl.data.datasets import MinariExperienceReplay as TheirReplay

from rl_datasets import MinariExperienceReplay, MinariHDF5Source, to_minari
from rl_replay import LazyMemmapStorage, SliceSampler, TensorDictReplayBuffer

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)  # the peer prints every dataset
NAME = "bench/steps-v0"
COLUMNS = (b"observations", b"actions", b"rewards", b"terminations", b"truncations")


def batch(episodes: int, steps: int) -> TensorDict:
    """Episodes like those of HalfCheetah: 17 and 6 floats, rewards and flags."""
    count = episodes * steps
    seen = torch.randn(episodes, steps + 1, 17, dtype=torch.float64)
    last = (torch.arange(count) % steps == steps - 1).unsqueeze(-1)
    ended = torch.zeros_like(last)
    return TensorDict(
        {
            "observation": seen[:, :-1].reshape(count, 17),
            "action": torch.randn(count, 6),
            "is_init": last.roll(1),
            "collector": {
                "traj_ids": torch.arange(episodes).repeat_interleave(steps),
                "traj_step": torch.arange(steps).repeat(episodes),
            },
            "next": {
                "observation": seen[:, 1:].reshape(count, 17),
                "reward": torch.randn(count, 1, dtype=torch.float64),
                "terminated": ended,
                "truncated": last,
                "done": last,
            },
        },
        [count],
    )


def written_by_minari(episodes: int, steps: int, root: Path) -> Path:
    """A dataset in the chunks that Minari makes."""
    root.mkdir(parents=True)
    rows, buffers = batch(episodes, steps), []
    for number in range(episodes):
        part = rows[number * steps : (number + 1) * steps]
        seen = torch.cat([part["observation"], part["next", "observation"][-1:]])
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=seen.numpy(),
                actions=part["action"].numpy(),
                rewards=part["next", "reward"].flatten().tolist(),
                terminations=part["next", "terminated"].flatten().tolist(),
                truncations=part["next", "truncated"].flatten().tolist(),
            )
        )
    create_dataset_from_buffers(
        NAME,
        buffers,
        observation_space=Box(-np.inf, np.inf, (17,), np.float64),
        action_space=Box(-np.inf, np.inf, (6,), np.float32),
        data_format="hdf5",
        algorithm_name="none",
        author="nobody",
        author_email="nobody",
        code_permalink="none",
    )
    return root / NAME


def by_minari(folder: Path) -> Callable[[], object]:
    """All episodes of Minari's iterator."""
    return lambda: [episode.rewards.sum() for episode in MinariDataset(folder / "data")]


def by_peer(root: Path) -> Callable[[], object]:
    """The peer's buffer, converted to a new folder each time."""
    numbers = itertools.count()

    def call() -> object:
        place = root / f"peer-{next(numbers)}"
        with (
            Path(os.devnull).open("w") as nothing,
            redirect_stderr(nothing),
            redirect_stdout(nothing),
        ):
            return TheirReplay(NAME, batch_size=8, root=place, load_from_local_minari=True)

    return call


def by_us(root: Path, folder: Path) -> Callable[[], object]:
    """Our buffer, converted to a new folder each time."""
    numbers = itertools.count()

    def call() -> object:
        place = root / f"ours-{next(numbers)}"
        return MinariExperienceReplay(NAME, 8, root=place, path=folder, verbose=False)

    return call


def by_hdf5(root: Path, folder: Path) -> Callable[[], object]:
    """HDF5's own calls, and the same bytes on the disk once."""
    path, target = folder / "data" / "main_data.hdf5", root / "floor"

    def call() -> object:
        with h5py.File(path) as file, target.open("wb") as out:
            dtypes = [file["episode_0"][column].dtype for column in COLUMNS]
            kinds = [h5py.h5t.py_create(dtype) for dtype in dtypes]
            for name in file:
                group = h5py.h5g.open(file.id, name.encode())
                for column, dtype, kind in zip(COLUMNS, dtypes, kinds, strict=True):
                    dataset = h5py.h5d.open(group, column)
                    rows = np.empty(dataset.shape, dtype)
                    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, rows, kind)
                    out.write(rows)
            out.flush()
            os.fsync(out.fileno())
        return target.unlink()

    return call


def opening(folder: Path) -> Callable[[], object]:
    """HDF5's calls before the first byte is read: a group an episode, a dataset a column."""
    path = folder / "data" / "main_data.hdf5"

    def call() -> object:
        with h5py.File(path) as file:
            for name in file:
                group = h5py.h5g.open(file.id, name.encode())
                for column in COLUMNS:
                    h5py.h5d.open(group, column)
        return path

    return call


def floor_of_rows(root: Path, folder: Path, *, on_disk: bool) -> Callable[[], object]:
    """What no reader can do without: the bytes of the file, and those of rows and index once."""
    path, target = folder / "data" / "main_data.hdf5", root / "floor-of-rows"
    root.mkdir(parents=True, exist_ok=True)
    made = by_us(root / "stored", folder)().data_path  # type: ignore[attr-defined]
    # blocks of the disk: files of rows have holes
    stored = sum(one.stat().st_blocks * 512 for one in made.rglob("*"))
    content = np.resize(np.fromfile(path, np.uint8), stored)
    print(f"\n{path.stat().st_size:,} bytes of the file become {stored:,} of rows and index")

    def call() -> object:
        np.fromfile(path, np.uint8)
        with target.open("wb") as out:
            out.write(content)
            out.flush()
            if on_disk:
                os.fsync(out.fileno())
        return target.unlink()

    return call


def convert(root: Path) -> None:
    """From the file to a buffer."""
    for episodes, steps in ((100, 1000), (500, 100)):
        place = root / f"{episodes}"
        os.environ["MINARI_DATASETS_PATH"] = str(place / "minari")
        folder = written_by_minari(episodes, steps, place / "minari")
        calls = {
            "ours: mapped rows, index, report": by_us(place, folder),
            "minari: its iterator": by_minari(folder),
            "torchrl: mapped rows": by_peer(place),
            "ours: its reader, nothing written": lambda: sum(
                len(episode)
                for episode in MinariHDF5Source(folder).episodes()  # noqa: B023
            ),
            "HDF5: groups and datasets opened": opening(folder),
            "HDF5: its own calls, written once, fsync": by_hdf5(place, folder),
            "floor: file read, as many bytes as ours": floor_of_rows(place, folder, on_disk=True),
            "floor, nothing waited for": floor_of_rows(place / "cached", folder, on_disk=False),
        }
        clocks = {"time": time.perf_counter, "time of the CPU": time.process_time}
        for name, clock in clocks.items():
            found = medians_us(3, *calls.values(), warm_up=1, clock=clock)
            names = dict(zip(calls, found, strict=True))
            head = f"convert {episodes} episodes of {steps} steps, {name}"
            table(head, names, next(iter(calls)))
            iterator = names["minari: its iterator"]
            for key, one in names.items():
                print(f"  Minari's iterator takes {iterator / one:5.2f} times: {key}")


def reopen(root: Path) -> None:
    """Open what was converted, and draw samples of it."""
    print("\nopen again, and sample")
    for episodes in (10, 2000):
        folder = to_minari(batch(episodes, 500), NAME, root=root / f"open-{episodes}")
        options = {"root": root / f"rows-{episodes}", "path": folder, "verbose": False}
        sampled(MinariExperienceReplay(NAME, 256, **options), "rows")
        sampled(MinariExperienceReplay(NAME, 256, slice_len=32, **options), "rows in slices of 32")
        del options["path"]
        (opened,) = medians_us(20, lambda: MinariExperienceReplay(NAME, 8, **options))  # noqa: B023
        report(f"open {episodes * 500:,} rows", opened)


def sampled(data: MinariExperienceReplay, what: str) -> None:
    """Draw of a dataset, and of a buffer that somebody filled with the same rows."""
    storage = LazyMemmapStorage(len(data), lossless=["observation"])
    sampler = SliceSampler(slice_len=32) if isinstance(data.sampler, SliceSampler) else None
    plain = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=256)
    for begin in range(0, len(data), 100_000):
        plain.extend(data[begin : begin + 100_000])
    found = medians_us(1_000, data.sample, plain.sample, warm_up=50)
    report(f"sample 256 of {len(data):,} {what}", *found, peer="mapped storage of rl-replay")


def main() -> None:
    """All figures."""
    torch.manual_seed(0)
    np.random.default_rng(0)
    with session(), tempfile.TemporaryDirectory() as folder:
        convert(Path(folder))
        reopen(Path(folder))


if __name__ == "__main__":
    main()
