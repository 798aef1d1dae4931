"""Procgen data of the Gen-DGRL benchmark: archives of pickled dicts, read without running code."""

from __future__ import annotations

import codecs
import io
import lzma
import pickle
import tarfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from rl_datasets.download import fetch, inside
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import only_file
from rl_datasets.paths import PathName, path_of
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_datasets.xz_file import unpacked_size
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath

ADDRESS = "https://dl.fbaipublicfiles.com/DGRL/Procgen/Datasets/Compressed"
GAMES = """bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper
maze miner ninja plunder starpilot"""
CATEGORIES = {
    "1M_E": "1M/level_200/expert",
    "1M_S": "1M/level_200/suboptimal",
    "10M": "10M/level_200/expert",
    "25M": "25M/level_200/expert",
    "level_1_S": "100k/level_1/suboptimal",
    "level_40_S": "100k/level_40/suboptimal",
    "level_1_E": "100k/level_1/expert",
    "level_40_E": "100k/level_40/expert",
}
_ALLOWED = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
    for name in ("_reconstruct", "ndarray", "dtype", "scalar")
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of dicts of arrays; one that wants anything else is refused before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """What makes arrays, and nothing else."""
        if (module, name) in _ALLOWED:
            if name in ("ndarray", "dtype"):
                return getattr(np, name)
            return getattr(import_module("numpy._core.multiarray"), name)
        if (module, name) == ("_codecs", "encode"):  # bytes in pickles of Python 2's time
            return codecs.encode
        raise pickle.UnpicklingError(
            f"the pickle wants {module}.{name}, which arrays do not: refused."
        )


def read_dict(file: IO[bytes], place: str) -> dict[str, Array]:
    """The dict of arrays that a `.npy` file holds as an object."""
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        if header is None or header(file)[2] != np.dtype(object):
            raise ValueError("it holds no object")
        found = ArrayUnpickler(file).load()
        found = found.item() if isinstance(found, np.ndarray) else found
        return {str(name): np.asarray(array) for name, array in dict(found).items()}
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{place} holds no dict of arrays: {error}") from error


class GenDGRLSource(CountedFiles):
    """Episodes of T steps with T + 1 frames, each a member of an archive.

    The archive is never unpacked to the disk, and read once. A file says only that an episode is
    done, which is taken for terminated.

    Args:
        path: A `.tar.xz` archive, a folder with one, or a folder of `.npy` files.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: A damaged file, a pickle that wants code, or columns of different lengths.
    """

    format = "gen-dgrl"

    def __init__(self, path: PathName) -> None:
        path = path_of(path, "path")
        loose = sorted(path.rglob("*.npy")) if path.is_dir() else []
        super().__init__(loose or [only_file(path, "*.tar.xz")])
        unpacked = sum(map(_unpacked_size, self._files))
        _, first = next(self._dicts())
        # at most: each step has a frame
        self._steps = unpacked // max(1, first["observations"][:1].nbytes)
        self.assumptions.append("`dones` are taken for terminations: time-outs are not told apart")

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes in the order of the archive."""
        for number, (place, rows) in enumerate(self._dicts()):
            if number < first:
                continue
            steps = len(rows["rewards"])
            columns: dict[KeyPath, Array] = {
                ("action",): rows["actions"],
                NEXT_REWARD: rows["rewards"].reshape(steps),
                NEXT_TERMINATED: rows["dones"].reshape(len(rows["dones"])).astype(bool),
                NEXT_TRUNCATED: np.zeros(steps, bool),
            }
            yield Episode({("observation",): rows["observations"]}, columns, place, number)

    def _dicts(self) -> Iterator[tuple[str, dict[str, Array]]]:
        for place, file in self._members():
            rows = read_dict(file, place)
            if missing := {"observations", "actions", "rewards", "dones"} - set(rows):
                raise ValueError(f"{place} has no {sorted(missing)}, but {sorted(rows)}.")
            yield place, rows

    def _members(self) -> Iterator[tuple[str, IO[bytes]]]:
        if self._files[0].suffix == ".npy":
            for path in self._files:
                with path.open("rb") as file:
                    yield str(path), file
            return
        (path,) = self._files
        count = 0
        try:
            with tarfile.open(path, "r|xz") as archive:
                for member in archive:
                    inside(path.parent, member.name)
                    if member.isfile() and member.name.endswith(".npy"):
                        packed = archive.extractfile(member)
                        content = b"" if packed is None else packed.read()
                        count += 1
                        yield (
                            f"{path}, {member.name}",
                            io.BytesIO(content),
                        )
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise ValueError(
                f"{path} is damaged, or ends too early, after {count} episodes ({error}); it has "
                f"{path.stat().st_size} bytes: copy it again."
            ) from error
        if not count:
            raise FileNotFoundError(f"there is no .npy file in {path}.")


def _unpacked_size(path: Path) -> int:
    return unpacked_size(path) if path.suffix == ".xz" else path.stat().st_size


class GenDGRLExperienceReplay(BaseDatasetExperienceReplay):
    """Data of Procgen games from Gen-DGRL.

    Rows have uint8 `"observation" [3, 64, 64]`, `"action"`, reward and flags under `"next"`.

    Args:
        dataset_id: Game and category, `"bigfish-1M_E"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: An unknown id, a damaged file, or a pickle that wants code.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> GenDGRLExperienceReplay.available_datasets[:2]
        ['bigfish-1M_E', 'bigfish-1M_S']
    """

    family = "gen_dgrl"
    sources_of_copies = "The addresses are listed at https://github.com/facebookresearch/gen_dgrl."

    @classmethod
    def known_ids(cls) -> Sequence[str]:
        """Sixteen games in eight categories."""
        return [f"{game}-{category}" for game in GAMES.split() for category in CATEGORIES]

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of an archive."""
        return GenDGRLSource(path)

    def fetch(self, folder: Path) -> None:
        """Download the archive."""
        game, _, category = self.dataset_id.partition("-")
        address = f"{ADDRESS}/{CATEGORIES[category]}/{game}.tar.xz"
        fetch(address, folder / f"{game}.tar.xz")
