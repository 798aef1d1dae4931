"""Arrays in a mapped file, described in JSON: no pickle is written or read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rl_replay.checkpoint import Archive, dump

FORMAT = 2
NumpyColumns = dict[str, NDArray[Any]]


def write_columns(folder: Path, arrays: Mapping[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays into a folder as a whole, unless another process is doing so or was quicker."""
    with suppress(BlockingIOError):
        if read_columns(folder) is None:
            dump(folder, {"about": [about], "columns": arrays})


def read_columns(folder: Path) -> tuple[NumpyColumns, dict[str, Any]] | None:
    """Map the arrays of a folder, once their checksums are right; None if there are none."""
    try:
        archive = Archive(folder)
    except FileNotFoundError:
        return None
    with archive:
        archive.verify()
        (about,) = archive.part("about")
        names = [name for name in archive.names() if name.startswith("columns/")]
        arrays = {name.removeprefix("columns/"): archive.mapped(name).numpy() for name in names}
    return arrays, about
