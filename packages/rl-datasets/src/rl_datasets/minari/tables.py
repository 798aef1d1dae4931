"""Episodes of Minari in Arrow or Parquet: a folder each, whose last row has an observation only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.arrow_columns import damaged, import_parquet, open_parquet, to_array
from rl_datasets.episodes import Episode, key_text
from rl_datasets.minari.source import STEP_COLUMNS, MinariSource, decode_images
from rl_datasets.minari.spaces import SpaceRecord, leaf_spaces, read_space
from rl_datasets.paths import PathName
from rl_tensordict.types import Array, KeyPath


class MinariTableSource(MinariSource):
    """Episodes of `data/<number>/part-0.arrow` or `.parquet`, of T + 1 rows for T steps.

    Actions, rewards and flags of the last row are padding, and are left out.

    Args:
        folder: The folder of the dataset, or its `data` folder.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: The metadata or a file are damaged.
    """

    def __init__(self, folder: PathName) -> None:
        super().__init__(folder)
        kind = self.about["data_format"]
        self.format = f"minari {kind}"
        found = {path.parent.name: path for path in self.data.glob(f"*/part-*.{kind}")}
        self._paths = sorted(((int(n), p) for n, p in found.items() if n.isdigit()))
        if not self._paths:
            raise FileNotFoundError(f"there is no <number>/part-0.{kind} in {self.data}.")
        self._files = [*self._files, *(path for _, path in self._paths)]

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes by number."""
        for number, path in self._paths[first:]:
            table = _table(path)
            try:
                seen = self._leaves("observation", table["observations"])
                if "infos" in table.column_names:
                    infos = _one(table["infos"])
                    seen |= dict(self._infos(infos, infos.type, ("info",)))
                columns = {
                    key: array[:-1]
                    for key, array in self._leaves("action", table["actions"]).items()
                }
                for name, key in STEP_COLUMNS.items():
                    columns[key] = to_array(table[name], [])[:-1]
            except (KeyError, ValueError) as error:
                raise ValueError(f"{path}: {error}") from error
            yield Episode(seen, columns, str(path), number)

    def _leaves(self, name: str, column: Any) -> dict[KeyPath, Array]:
        """The arrays of a space, whose parts are fields of structs."""
        found = {}
        for path, space in leaf_spaces(read_space(self.about[f"{name}_space"])):
            values, key = _one(column), (name, *path)
            for part in path:
                values = values.field(part.removeprefix("_index_"))
            if space["type"] == "Text":
                self.left_out[key_text(key)] = "text is no number"
            elif key in self.images:
                found[key] = decode_images(values.to_pylist())
            else:
                found[key] = to_array(values, _shape(space))
        return found

    def _infos(self, values: Any, kind: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Array]]:
        """The arrays of infos, whose shapes are told field by field."""
        pa, _ = import_parquet()
        for place in range(kind.num_fields):
            field = kind.field(place)
            inner, key = values.field(place), (*path, field.name)
            if pa.types.is_struct(field.type):
                yield from self._infos(inner, field.type, key)
                continue
            told = (field.metadata or {}).get(b"shape", b"").decode()
            shape = [int(size) for size in told.split(",") if size]
            try:
                yield key, to_array(inner, shape)
            except (ValueError, pa.ArrowInvalid) as error:
                self.left_out[key_text(key)] = str(error)


def _table(path: Path) -> Any:
    pa, _ = import_parquet()
    try:
        if path.suffix == ".parquet":
            with open_parquet(path) as file:
                return file.read()
        with pa.memory_map(str(path)) as mapped:
            return pa.ipc.open_file(mapped).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise damaged(path, error) from error


def _one(column: Any) -> Any:
    """A column in one piece."""
    pa, _ = import_parquet()
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _shape(space: SpaceRecord) -> list[int]:
    if space["type"] == "Discrete":
        return []
    if space["type"] == "MultiDiscrete":
        return list(np.shape(space["nvec"]))
    if space["type"] == "MultiBinary":
        return list(np.atleast_1d(space["n"]))
    return list(space["shape"])
