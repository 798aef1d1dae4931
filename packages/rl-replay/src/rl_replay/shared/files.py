"""The open files of a shared storage, which a handle carries from process to process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from rl_replay.trajectories.tables import TrajectoryTables
from rl_slabs import Arrays, LazyFile

UPDATING, EPOCH, MISSES, REACH, LEFT, REPLACED = range(6)
"""Words of the board: rows are being changed in place; how often rows were dropped, loaded or
linked anew; whether rows lack a next observation, and the most steps to one; the files were left
for others; how often rows were dropped or loaded."""

_WORDS = 8


@dataclass(frozen=True)
class SharedFiles:
    """Three files, empty until the first row is written."""

    # The rows are made first and describe everything else; so a process killed while
    # the files are filled leaves nothing that the next one cannot complete.

    # The rows and the words of their lanes; and the slots of lossless rows, where all of their
    # leaves are packed
    rows: LazyFile
    tables: LazyFile  # Links, trajectories and the board
    side: LazyFile  # The overflow table of lossless rows, but for slots that lie with the rows
    lanes: int  # Into how many the rows are or will be divided

    @classmethod
    def in_memory(cls, lanes: int) -> SharedFiles:
        """Anonymous memory, freed with the last process that uses it."""
        rows, tables = LazyFile.shared("rl-slab"), LazyFile.shared("rl-replay tables")
        return cls(rows, tables, LazyFile.shared("rl-replay side"), lanes)

    @classmethod
    def on_disk(
        cls,
        rows: os.PathLike[str],
        side: os.PathLike[str] | None,
        tables: os.PathLike[str] | None,
        lanes: int,
    ) -> SharedFiles:
        """Rows in a new file; tables in files too if paths are given."""
        made = LazyFile.mapped(rows)
        overflow_file = LazyFile.shared("rl-replay side") if side is None else LazyFile.mapped(side)
        others = LazyFile.shared("rl-replay tables") if tables is None else LazyFile.mapped(tables)
        return cls(made, others, overflow_file, lanes)

    @classmethod
    def opened(
        cls,
        rows: os.PathLike[str],
        side: os.PathLike[str] | None,
        tables: os.PathLike[str],
        lanes: int,
    ) -> SharedFiles:
        """Opens by path the files that another process created with `on_disk`."""
        overflow_file = LazyFile.shared("rl-replay side") if side is None else LazyFile.open(side)
        return cls(LazyFile.open(rows), LazyFile.open(tables), overflow_file, lanes)

    def arrays(self, capacity: int, lanes: int) -> Arrays:
        """Links, trajectories and board, created by the first process that asks."""
        layout = {
            "board": ("int64", (_WORDS,)),
            "back": ("int32", (capacity * lanes,)),
            **TrajectoryTables.shapes(capacity, lanes),
        }
        return Arrays.in_file(layout, self.tables, sparse=True)


class FileSource(ABC):
    """Where the files of a shared storage come from, and where they go; most have no names."""

    @abstractmethod
    def files(self, lanes: int, suffix: str = "") -> SharedFiles:
        """New files; with a suffix, alongside the files in use."""

    def commit(self, suffix: str) -> None:  # noqa: B027 - there may be no names
        """Renames files with a suffix to the names of the files that they replace."""

    def discard(self, suffix: str = "") -> bool:
        """Removes unused files; False where they have no names and go by themselves."""
        del suffix
        return False

    def describe(self) -> None:  # noqa: B027 - unless files are opened by path
        """Called once the rows exist, which describe themselves."""


class AnonymousMemory(FileSource):
    """Files without names, freed with the last process that uses them."""

    def files(self, lanes: int, suffix: str = "") -> SharedFiles:
        """New files in memory."""
        del suffix
        return SharedFiles.in_memory(lanes)
