"""Reads rows like the stored ones in one pass: tensordicts, and dicts of arrays and numbers."""

from __future__ import annotations

from typing import Any

import torch

from rl_replay.data.dicts import DictReader, RowDict
from rl_replay.data.pytree import Branch
from rl_replay.data.structure import Structure
from rl_slabs import RowSchema
from rl_slabs.internals import TensordictReader, ValidatedLeaves, carrier


class RowReader:
    """Reads rows that match a schema exactly; the general way looks at all others."""

    def __init__(self, schema: RowSchema, structure: Structure) -> None:
        tree = structure.tree
        dicts = isinstance(tree, Branch) and tree.is_of_dicts
        named = structure.form == "tensordict"
        # numpy has no name for the dtypes that are carried as integers
        known = all(carrier(field.dtype) is field.dtype for field in schema.fields)
        self._tensordicts = TensordictReader(schema) if named else None
        self._dicts = DictReader(schema, as_tensordict=named) if known and named | dicts else None
        self._kind = RowDict if named else dict

    def tensors(self, data: Any, dims: int) -> list[torch.Tensor] | None:
        """The leaves of a tensordict, none of them with a gradient."""
        return None if self._tensordicts is None else self._tensordicts.tensors(data, dims)

    def of(self, data: Any, dims: int) -> ValidatedLeaves | None:
        """The leaves of rows with 0 or 1 batch dimensions, as numpy sees them."""
        if type(data) is self._kind:
            entries = data.entries if isinstance(data, RowDict) else data
            return None if self._dicts is None else self._dicts.of(entries, dims)
        return None if self._tensordicts is None else self._tensordicts.of(data, dims)
