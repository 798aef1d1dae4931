"""Files of every format that hold the same few episodes, and the transitions that made them."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch

from rl_datasets import to_minari
from rl_layout.synthetic import trajectories

LENGTHS = (3, 4, 2)  # steps of the episodes: the first ends by the task, the others by a limit


class Row(NamedTuple):
    """A transition; the next observation is None if the files do not have it."""

    observation: int
    action: int
    reward: int
    following: int | None
    terminated: bool
    truncated: bool

    def __str__(self) -> str:
        flags = "terminated" * self.terminated or "truncated" * self.truncated
        end = f", {flags}" if flags else ""
        return (
            f"({self.observation}, action {self.action}, reward {self.reward}, "
            f"next {'marked as missing' if self.following is None else self.following}{end})"
        )


def truth(*, last: bool = True, truncated: bool = True, terminated: bool = True) -> list[Row]:
    """The transitions of all episodes, as far as a format can tell them."""
    found = []
    for episode, steps in enumerate(LENGTHS):
        for step in range(steps):
            seen, is_last = 100 * episode + step, step == steps - 1
            ends = is_last and episode == 0 and terminated
            following = None if is_last and not last else seen + 1
            limit = is_last and truncated and not ends
            found.append(Row(seen, seen + 11, seen + 31, following, ends, limit))
    return found


def frames(steps: int, episode: int, shape: tuple[int, ...]) -> np.ndarray:
    """Frames of one colour, which is the number of the observation."""
    numbers = (100 * episode + np.arange(steps)).astype(np.uint8)
    return np.broadcast_to(numbers.reshape(-1, *[1] * len(shape)), (steps, *shape)).copy()


def shifted_rows(shape: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    """Episodes of V-D4RL: action and reward of row t led to the frame of row t."""
    found = []
    for episode, steps in enumerate(LENGTHS):
        numbers = 100 * episode + np.arange(steps + 1)
        rows = {
            "image": frames(steps + 1, episode, shape),
            "action": (numbers + 10).astype(np.float32)[:, None],
            "reward": (numbers + 30).astype(np.float32),
            "discount": np.ones(steps + 1, np.float32),
        }
        rows["action"][0] = rows["reward"][0] = 0  # of a reset
        rows["discount"][-1] = float(episode > 0)
        found.append(rows)
    return found


def write_vd4rl_npz(folder: Path) -> list[Row]:
    """A file for each episode."""
    for episode, rows in enumerate(shifted_rows((64, 64, 3))):
        places = np.arange(len(rows["reward"]))
        marks = {"is_first": places == 0, "is_last": places == places[-1]}
        marks["is_terminal"] = marks["is_last"] & (episode == 0)
        np.savez(folder / f"{episode}.npz", **rows, **marks)
    return truth()


def write_vd4rl_hdf5(folder: Path) -> list[Row]:
    """A file for all episodes."""
    made = shifted_rows((3, 84, 84))
    with h5py.File(folder / "shard.hdf5", "w") as file:
        for name in ("action", "reward", "discount"):
            file[name] = np.concatenate([rows[name] for rows in made])
        file["observation"] = np.concatenate([rows["image"] for rows in made])
        kinds = [np.r_[0, np.ones(steps - 1), 2].astype(np.int64) for steps in LENGTHS]
        file["step_type"] = np.concatenate(kinds)
    return truth()


def columns(expected: list[Row]) -> dict[str, np.ndarray]:
    """Flat columns of some transitions, as D4RL and RoboSet name them."""
    return {
        "observations": np.array([[row.observation] * 2 for row in expected], np.float32),
        "actions": np.array([[row.action] for row in expected], np.float32),
        "rewards": np.array([row.reward for row in expected], np.float32),
    }


def write_d4rl(folder: Path) -> list[Row]:
    """Rows end to end, without next observations."""
    expected = truth(last=False)
    with h5py.File(folder / "one.hdf5", "w") as file:
        for name, column in columns(expected).items():
            file[name] = column
        file["terminals"] = np.array([row.terminated for row in expected])
        file["timeouts"] = np.array([row.truncated for row in expected])
    return expected


def write_roboset(folder: Path) -> list[Row]:
    """Trials, which end by time."""
    expected = truth(last=False, terminated=False)
    bounds = np.r_[0, np.cumsum(LENGTHS)]
    with h5py.File(folder / "seed_0.h5", "w") as file:
        for number, steps in enumerate(LENGTHS):
            for name, column in columns(expected).items():
                file[f"Trial{number}/{name}"] = column[bounds[number] : bounds[number + 1]]
            file[f"Trial{number}/done"] = np.arange(steps) == steps - 1
    return expected


def write_atari(folder: Path) -> list[Row]:
    """Two shards of one run; the files know terminals only, of the first episode."""
    expected = truth(last=False, truncated=False)
    expected = [
        # an episode without a terminal continues: here the second episode runs into the third
        row if row.terminated or at == len(expected) - 1 else row._replace(following=nxt)
        for at, (row, nxt) in enumerate(
            zip(expected, [*(one.observation for one in expected[1:]), None], strict=True)
        )
    ]
    logs = folder / "Pong" / "5" / "replay_logs"
    logs.mkdir(parents=True)
    arrays = {
        "observation": np.stack([np.full((84, 84), row.observation, np.uint8) for row in expected]),
        "action": np.array([row.action for row in expected], np.int32),
        "reward": np.array([row.reward for row in expected], np.float32),
        "terminal": np.array([row.terminated for row in expected], np.uint8),
    }
    for shard, rows in enumerate((slice(0, 5), slice(5, None))):
        for name, column in arrays.items():
            with gzip.open(logs / f"$store$_{name}_ckpt.{shard}.gz", "wb") as file:
                np.save(file, column[rows])
    return expected


def write_gen_dgrl(folder: Path) -> list[Row]:
    """An archive of pickled dicts."""
    with tarfile.open(folder / "bigfish.tar.xz", "w:xz") as archive:
        for episode, steps in enumerate(LENGTHS):
            numbers = (100 * episode + np.arange(steps))[:, None]
            content = {
                "observations": frames(steps + 1, episode, (3, 64, 64)),
                "actions": numbers + 11,
                "rewards": (numbers + 31).astype(np.float32),
                "dones": np.arange(steps)[:, None] == steps - 1,
            }
            buffer = io.BytesIO()
            np.save(buffer, np.array(content), allow_pickle=True)
            info = tarfile.TarInfo(f"bigfish/{episode}.npy")
            info.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(info, buffer)
    # `dones` end the task, and a limit is told by nothing
    return [
        row._replace(terminated=row.terminated or row.truncated, truncated=False) for row in truth()
    ]


def write_minari(folder: Path) -> list[Row]:
    """A dataset in HDF5."""
    rows, expected = trajectories(list(LENGTHS)), truth()
    numbers = np.array([row[:3] for row in expected], np.float32)[..., None]
    seen, action, reward = torch.from_numpy(numbers).unbind(1)
    rows["observation"], rows["next", "observation"] = seen, seen + 1
    rows["action"], rows["next", "reward"] = action, reward
    for key, at in (("terminated", 4), ("truncated", 5)):
        rows["next", key] = torch.tensor([[row[at]] for row in expected])
    to_minari(rows, "demo/steps-v0", root=folder)
    return expected
