"""What the formats of Minari have in common: metadata, and frames that may be JPEG."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.encoded_images import decode_image
from rl_datasets.episodes import CountedFiles, key_text
from rl_datasets.minari.spaces import is_image, leaf_spaces, read_space
from rl_datasets.paths import PathName, path_of
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath

METADATA_FILE = "metadata.json"
STEP_COLUMNS = {
    "rewards": NEXT_REWARD,
    "terminations": NEXT_TERMINATED,
    "truncations": NEXT_TRUNCATED,
}


class MinariSource(CountedFiles):
    """Episodes in a folder that `metadata.json` describes."""

    def __init__(self, folder: PathName) -> None:
        self.data = data_folder(folder)
        super().__init__([self.data / METADATA_FILE])
        self.about = read_metadata(self.data)
        self._steps = int(self.about["total_steps"])
        self.metadata = {key: value for key, value in self.about.items() if key != "dataset_size"}
        self.images = jpeg_images(self.about)
        for key in self.images:
            self.lossy[key_text(key)] = "Minari keeps frames as JPEG"


def data_folder(folder: PathName) -> Path:
    """The folder with the data of a dataset: itself, or the one within."""
    folder = path_of(folder)
    return folder / "data" if (folder / "data").is_dir() else folder


def read_metadata(data: Path) -> dict[str, Any]:
    """What Minari tells of a dataset: a JSON object."""
    path = data / METADATA_FILE
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = int(about["total_steps"]), about["observation_space"], about["action_space"]
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {METADATA_FILE} in {data}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a dataset of Minari: {error!r}.") from error
    return about


def jpeg_images(about: Mapping[str, Any]) -> set[KeyPath]:
    """The keys of the frames that are kept as JPEG."""
    if not about.get("jpeg_encoding", False):
        return set()
    found = set()
    for name in ("observation", "action"):
        for path, space in leaf_spaces(read_space(about[f"{name}_space"])):
            if is_image(space):
                found.add((name, *path))
    return found


def decode_images(frames: Iterable[Any]) -> Array:
    """Frames from JPEG, uint8 `[N, height, width, channels]`."""
    return np.stack([decode_image(bytes(frame)) for frame in frames])
