"""The peer's readers, given files of this disk where they would download some."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchrl.data import datasets as theirs
from torchrl.data.datasets.d4rl import D4RL_DATASETS

from readers.files import LENGTHS


class PeerVD4RL(theirs.VD4RLExperienceReplay):
    """The peer's reader with files of this disk instead of the hub's."""

    local = Path()

    @classmethod
    def _parse_datasets(cls) -> dict[Path, list[Path]]:
        return {Path("vd4rl/main"): sorted(cls.local.iterdir())}

    @classmethod
    def _hf_hub_download(cls, subfolder: str, filename: str, *, tmpdir: Path) -> str:
        del subfolder, tmpdir
        return str(cls.local / filename)


def read_vd4rl(files: Path, place: Path) -> Any:
    """The peer's rows."""
    PeerVD4RL.local = files
    return PeerVD4RL("main", 1, root=place, totensor=False)


def read_d4rl(files: Path, place: Path) -> Any:
    """The peer's rows, of an address that is on this disk."""
    D4RL_DATASETS["hopper-medium-v2"] = f"file://{files}/one.hdf5"
    return theirs.D4RLExperienceReplay("hopper-medium-v2", 1, root=place, direct_download=True)


class PeerRoboset(theirs.RobosetExperienceReplay):
    """The peer's reader with files of this disk instead of the hub's."""

    local = Path()

    def _download_from_huggingface(self, tempdir: Path) -> list[str]:
        del tempdir
        return sorted(map(str, self.local.iterdir()))


def read_roboset(files: Path, place: Path) -> Any:
    """The peer's rows."""
    PeerRoboset.local = files
    return PeerRoboset("DAPG(expert)/door_v2d-v1", 1, root=place)


def read_atari(files: Path, place: Path) -> Any:
    """The peer's rows: its shards unpacked, as after its download."""
    kind = theirs.AtariDQNExperienceReplay
    logs = files / "Pong" / "5" / "replay_logs"
    for shard, paths in kind._list_runs(logs).items():
        kind._preproc_run(place / "Pong" / "5" / str(shard), {shard: paths}, shard)
    return kind("Pong/5", 1, root=place, download=False)


class PeerGenDGRL(theirs.GenDGRLExperienceReplay):
    """The peer's reader with a file of this disk, and as many rows as that has."""

    local = Path()

    @classmethod
    def _download_with_progress_bar(cls, url: str, file_path: str) -> None:
        Path(file_path).write_bytes((cls.local / Path(url).name).read_bytes())

    @classmethod
    def _get_category_len(cls, category_name: str) -> int:
        del category_name
        return sum(LENGTHS)


def read_gen_dgrl(files: Path, place: Path) -> Any:
    """The peer's rows."""
    PeerGenDGRL.local = files
    return PeerGenDGRL("bigfish-1M_E", 1, root=place)


def read_minari(files: Path, place: Path) -> Any:
    """The peer's rows."""
    os.environ["MINARI_DATASETS_PATH"] = str(files)
    return theirs.MinariExperienceReplay(
        "demo/steps-v0", 1, root=place, load_from_local_minari=True
    )
