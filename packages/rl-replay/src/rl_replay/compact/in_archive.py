"""Compact rows among the other parts of a dump."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_replay.checkpoint.parts import Chunks
from rl_replay.checkpoint.reader import Archive
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

    def __init__(self, archive: Archive, under: str) -> None:
        self._archive, self._under = archive, under
        found = set(archive.names())
        if f"{under}/offsets" in found:
            self.lengths: Ints = np.diff(archive.part(f"{under}/offsets"))
        else:
            self.lengths = archive.part(f"{under}/lengths")
        self.order: Ints | None = archive.part(f"{under}/order")
        self.shared = _paths(archive, f"{under}/names/shared")
        self.steps = _paths(archive, f"{under}/names/steps")

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
        name = f"{self._under}/exceptions/{self.shared.index(path)}/rows"
        if name not in self._archive.names():
            return np.zeros(0, np.int64)
        found: Ints = self._archive.part(name)
        return found


def _paths(archive: Archive, name: str) -> list[KeyPath]:
    found = archive.part(name)
    listed = isinstance(found, list) and all(
        isinstance(path, list) and path and all(isinstance(part, str) for part in path)
        for path in found
    )
    if not listed:
        raise ValueError(f"{archive.folder} names no leaves: {found!r}. Restore it from a copy.")
    return [tuple(path) for path in found]
