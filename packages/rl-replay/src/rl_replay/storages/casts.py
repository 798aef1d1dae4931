"""Exact casts of integers and flags to the stored dtype."""

from __future__ import annotations

import torch

from rl_slabs import RowSchema
from rl_slabs.internals import Field, Leaves

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
