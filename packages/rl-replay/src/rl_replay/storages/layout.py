"""What the rows of a storage are: their structure, their leaves and their boundary markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch

from rl_replay.data.structure import Structure
from rl_replay.linking.markers import MarkerKeys
from rl_replay.lossless.layout import LosslessLayout
from rl_slabs import RowSchema
from rl_slabs.internals import Field, Leaves
from rl_tensordict import NestedKey, as_key, as_tuple

Lossless = bool | Sequence[NestedKey]
"""Which observations are stored once: all that are there under "next" too, none, or those named."""


def lossless_layout(schema: RowSchema, lossless: Lossless) -> LosslessLayout | None:
    """How observations are stored once; None for plain rows."""
    if lossless is False:
        return None
    return LosslessLayout(schema, None if lossless is True else lossless)


class StorageLayout(NamedTuple):
    """The structure, schema and layout of rows; equal in all processes that share them."""

    structure: Structure  # What one row is
    schema: RowSchema  # The leaves of rows as they came
    columns: torch.Size  # The dimensions of the storage after the one along which it grows
    ids: list[NestedKey]  # Columns that cut alongside those of the contract
    ends: list[NestedKey]  # Flags of last steps alongside those of the contract
    lossless: LosslessLayout | None  # How observations are stored once; None for plain rows
    dim_extend: int = 0  # The dimension of data along which the storage grows

    @property
    def stored(self) -> RowSchema:
        """The leaves of rows as they are in memory."""
        return self.schema if self.lossless is None else self.lossless.stored

    @property
    def stride(self) -> int:
        """How far apart the steps of one column are, where time is the dimension that grows."""
        return self.columns.numel() if self.dim_extend == len(self.columns) else 1

    @property
    def marker_keys(self) -> MarkerKeys:
        """The columns that say where trajectories begin and end; named ones only if stored."""
        known = ([key for key in keys if key in self.schema] for keys in (self.ids, self.ends))
        return MarkerKeys.of(self.schema).with_explicit(*known)

    @property
    def missing(self) -> list[NestedKey]:
        """The columns that trajectories are sought by and that are not stored."""
        missing = [key for key in self.ids if key not in self.schema]
        return missing if any(key in self.schema for key in self.ends) else missing + self.ends

    def require_columns(self) -> None:
        """Raises if columns that trajectories are sought by are not stored."""
        if missing := self.missing:
            raise KeyError(
                f"no column {missing[0]!r} to find trajectories by: choose from "
                f"{list(self.schema)}."
            )

    def to_json(self) -> str:
        """The description that is stored with shared rows."""
        once = self.lossless
        return json.dumps(
            {
                "structure": self.structure.to_plain(),
                "columns": list(self.columns),
                "schema": None if once is None else self.schema.to_dict(),
                "ids": [list(as_tuple(key)) for key in self.ids],
                "ends": [list(as_tuple(key)) for key in self.ends],
                "dim_extend": self.dim_extend,
                "once": [] if once is None else [list(pair.root) for pair in once.pairs],
            }
        )

    @classmethod
    def from_json(cls, text: str, stored: RowSchema, lossless: Lossless) -> Self:
        """Reads `to_json`; `stored` is the schema of the rows in memory."""
        about = json.loads(text)
        schema = stored if lossless is False else RowSchema.from_dict(about["schema"])
        ids, ends = ([as_key(tuple(key)) for key in about[name]] for name in ("ids", "ends"))
        structure, columns = Structure.from_plain(about["structure"]), torch.Size(about["columns"])
        once = lossless_layout(schema, lossless)
        return cls(structure, schema, columns, ids, ends, once, about["dim_extend"])


_WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def with_exact_casts(leaves: Leaves, schema: RowSchema) -> Leaves:
    """Leaves with integers and flags cast to the stored dtype, if no value changes."""
    # Policies that call one_hot or argmax return int64, whatever the specification says.
    cast = {
        field.path: _cast(leaves[field.path], field)
        for field in schema.fields
        if field.path in leaves and _differs(leaves[field.path], field)
    }
    return Leaves((path, cast.get(path, leaf)) for path, leaf in leaves.items()) if cast else leaves


def _differs(leaf: torch.Tensor, field: Field) -> bool:
    return leaf.dtype is not field.dtype and {leaf.dtype, field.dtype} <= _WHOLE


def _cast(leaf: torch.Tensor, field: Field) -> torch.Tensor:
    found = leaf.to(field.dtype)
    lost = found.to(leaf.dtype) != leaf
    if bool(lost.any()):
        raise TypeError(
            f"leaf {field.key!r}: expected {field.dtype}, got {leaf.dtype} with values that it "
            f"does not have, as {leaf[lost][0].item()}. Cast it with .to({field.dtype}) yourself."
        )
    return found
