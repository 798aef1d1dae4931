"""The description of a shared storage's rows, equal in every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Self

import torch

from rl_replay.data.structure import Structure
from rl_replay.lossless.layout import LosslessLayout
from rl_replay.lossless.overflow import OverflowTable
from rl_replay.lossless.rows import LosslessRows
from rl_replay.shared.session import Sharing
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_slabs import RowSchema
from rl_tensordict import NestedKey, as_key, as_tuple


class SharedRows(NamedTuple):
    """The structure, schema and layout of shared rows; their creator stores it with them."""

    structure: Structure  # What one row is
    schema: RowSchema  # The leaves of rows as they came
    columns: torch.Size  # The dimensions of the storage after the one along which it grows
    ids: list[NestedKey]  # Columns that cut alongside those of the contract
    ends: list[NestedKey]  # Flags of last steps alongside those of the contract
    layout: LosslessLayout | None  # how observations are stored once; None for plain rows
    dim_extend: int = 0  # The dimension of data along which the storage grows

    @classmethod
    def of(cls, sharing: Sharing, layout_of: Callable[[RowSchema], LosslessLayout] | None) -> Self:
        """Reads the description that the creator stored."""
        slab = sharing.slab
        assert slab is not None  # it was opened
        about = json.loads(slab.about)
        schema = slab.schema if layout_of is None else RowSchema.from_dict(about["schema"])
        ids, ends = ([as_key(tuple(key)) for key in about[name]] for name in ("ids", "ends"))
        layout = None if layout_of is None else layout_of(schema)
        structure, columns = Structure.from_plain(about["structure"]), torch.Size(about["columns"])
        return cls(structure, schema, columns, ids, ends, layout, about["dim_extend"])

    def make(self, sharing: Sharing, capacity: int) -> RowStore:
        """Creates the rows and secures all of their memory."""
        layout = self.layout
        about = {
            "structure": self.structure.to_plain(),
            "columns": list(self.columns),
            "schema": None if layout is None else self.schema.to_dict(),
            "ids": [list(as_tuple(key)) for key in self.ids],
            "ends": [list(as_tuple(key)) for key in self.ends],
            "dim_extend": self.dim_extend,
            "once": [] if layout is None else [list(pair.root) for pair in layout.pairs],
        }
        stored = self.schema if layout is None else layout.stored
        spare = 0 if layout is None else capacity * layout.joins
        sharing.make(stored, capacity, json.dumps(about), spare=spare)
        return self.over(sharing)

    def over(self, sharing: Sharing) -> RowStore:
        """A row store over existing rows."""
        slab = sharing.slab
        assert slab is not None  # it was opened
        if self.layout is None:
            return PlainRows(slab.rows)
        side = OverflowTable.for_slab(slab, self.layout.side, sharing.files.side)
        return LosslessRows(self.layout, slab.rows, side, back=sharing.back)
