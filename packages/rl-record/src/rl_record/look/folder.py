"""The buffer of a folder that any process wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DATASET_ROWS = "rows"  # where a dataset of rl-datasets has the files of its storage


def read_folder(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """A buffer or an ensemble with the rows of a folder, and what the folder is."""
    try:
        from rl_replay import LazyMemmapStorage, ReplayBuffer, read_dump
    except ImportError as error:
        msg = "a folder of rows is read by rl-replay: pip install 'rl-record[dumps]'."
        raise ImportError(msg) from error
    folder = Path(path)
    for kind, place in (("dataset", folder / DATASET_ROWS), ("storage", folder)):
        try:
            storage = LazyMemmapStorage.open(place)
        except FileNotFoundError:
            continue
        return ReplayBuffer(storage=storage), f"{kind} {folder.name}"
    try:
        return read_dump(folder), f"dump {folder.name}"
    except FileNotFoundError as error:
        msg = f"{folder} holds no rows: expected a folder of buffer.dumps, of a dataset that was "
        raise FileNotFoundError(msg + "converted, or of LazyMemmapStorage(scratch_dir=)") from error
