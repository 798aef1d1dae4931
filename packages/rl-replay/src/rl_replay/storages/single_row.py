"""The fast write of one row: into a staging row, then one copy of all packed leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_slabs import Rows
from rl_slabs.internals import TensordictReader, ValidatedLeaves


class OneRow:
    """Reads single tensordicts into a staging row, and copies it into the store."""

    # Asking numpy for an array of each leaf takes twice as long as one call of torch that copies
    # all of them.

    def __init__(self, rows: Rows, plain: TensordictReader) -> None:
        self._plain = plain
        fields = rows.schema.fields
        with torch.inference_mode(mode=False):  # such tensors may be written in either mode
            apart = Rows.zeros(rows.schema, 1)
            live = apart.view()
            self._views = [live.get(field.key)[0] for field in fields if field.offset is not None]
        columns = apart.columns()
        self._row = ValidatedLeaves({f.key: columns[f.key].reshape(f.shape) for f in fields})
        self._packed = [number for number, f in enumerate(fields) if f.offset is not None]
        self._large = [
            (number, f.key, rows.columns()[f.key])
            for number, f in enumerate(fields)
            if f.offset is None
        ]
        self._words = None if rows.packed is None else rows.packed.numpy()
        self._word = None if apart.packed is None else apart.packed.numpy()[0]

    def take(self, data: Any) -> ValidatedLeaves | None:
        """Reads a tensordict into the staging row."""
        leaves = self._plain.tensors(data, 0)
        if leaves is None:
            return None
        try:
            for number, key, _ in self._large:
                self._row[key] = leaves[number].numpy()
            packed = [leaves[number] for number in self._packed] if self._large else leaves
            _copy_each(self._views, packed)
        except (TypeError, RuntimeError):  # leaves that lie elsewhere, or are not dense
            return None
        return self._row

    def write(self, position: int) -> None:
        """Copies the staging row into the store."""
        if self._words is not None:
            self._words[position] = self._word
        for _, key, column in self._large:
            column[position] = self._row[key]


def _copy_one_by_one(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


_copy_each = getattr(torch, "_foreach_copy_", _copy_one_by_one)
