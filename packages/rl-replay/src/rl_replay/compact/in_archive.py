"""Compact rows among the other parts of a dump."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_replay.checkpoint.parts import Chunks
from rl_replay.checkpoint.reader import Archive
from rl_replay.compact.decode import paths_of, require_numbers
from rl_replay.compact.encode import CompactRows
from rl_tensordict.types import Ints, KeyPath


def parts_of(rows: CompactRows, order: Any, *, nested: bool) -> dict[str, Any]:
    """Compact rows as parts of a dump."""
    count, more = len(rows.positions), len(rows.positions) + len(rows.lengths)
    shared: dict[str, Any] = {}
    exceptions: dict[str, Any] = {}
    for number, pair in enumerate(rows.pairs):
        root, name = pair.root, str(number)
        shared[name] = Chunks(root.dtype, (more, *root.shape), partial(rows.shared_pieces, pair))
        wrong = rows.exceptions[root.path]
        if len(wrong):
            values = Chunks(
                root.dtype,
                (len(wrong), *root.shape),
                partial(rows.exception_pieces, pair),
            )
            exceptions[name] = {"rows": wrong, "values": values}
    steps = {
        str(number): Chunks(one.dtype, (count, *one.shape), partial(rows.step_pieces, one))
        for number, one in enumerate(rows.steps)
    }
    lengths = np.concatenate(([0], np.cumsum(rows.lengths))) if nested else rows.lengths
    return {
        "kind": "nested" if nested else "flat",
        "offsets" if nested else "lengths": lengths,
        "order": order,
        "names": {
            "shared": [list(pair.root.path) for pair in rows.pairs],
            "steps": [list(one.path) for one in rows.steps],
        },
        "shared": shared or None,
        "steps": steps or None,
        "exceptions": exceptions or None,
    }


class ArchivedRows:
    """The compact rows of a dump; see `CompactSource`."""

    def __init__(self, archive: Archive, under: str, count: int) -> None:
        self._archive, self._under, self._count = archive, under, count
        if f"{under}/offsets" in archive.names():
            self.lengths: Ints = np.diff(self._numbers("offsets", "int64", count + 1))
        else:
            self.lengths = self._numbers("lengths", "int64", count)
        is_given = archive.part(f"{under}/order") is not None
        self.order: Ints | None = self._numbers("order", "int32", count) if is_given else None
        self.shared, self.steps = (
            paths_of(str(archive.folder), archive.part(f"{under}/names/{group}"))
            for group in ("shared", "steps")
        )

    def layout(self, group: str, path: KeyPath) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the shape of a leaf in a group."""
        return self._archive.layout(self._name(group, path))

    def pieces(self, group: str, path: KeyPath) -> Iterator[torch.Tensor]:
        """The rows of a leaf, one piece after another."""
        return self._archive.pieces(self._name(group, path))

    def _name(self, group: str, path: KeyPath) -> str:
        listed = self.steps if group == "steps" else self.shared
        name = f"{self._under}/{group}/{listed.index(path)}"
        return f"{name}/values" if group == "exceptions" else name

    def exceptions(self, path: KeyPath) -> Ints:
        """The rows whose next value is not that of the row after them."""
        name = f"exceptions/{self.shared.index(path)}/rows"
        if f"{self._under}/{name}" not in self._archive.names():
            return np.zeros(0, np.int64)
        return self._numbers(name, "int64", self._count)

    def _numbers(self, name: str, dtype: str, most: int) -> Ints:
        found: Ints = self._archive.part(f"{self._under}/{name}")
        require_numbers(f"{name!r} of {self._archive.folder}", found, dtype, most)
        return np.asarray(found)
