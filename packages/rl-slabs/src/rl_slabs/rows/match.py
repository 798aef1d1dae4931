"""The leaves of a tensordict that fit into rows, or an error that says which do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_slabs.schema import Field
from rl_tensordict import Leaves, as_key, leaves_of
from rl_tensordict.types import KeyPath, NestedKey


def match_fields(
    source: TensorDictBase | Leaves,
    fields: Sequence[Field],
    batch: torch.Size,
    *,
    exact: bool,
) -> list[torch.Tensor]:
    """The leaf of `source` for each field, all of them checked."""
    if not hasattr(source, "items"):
        raise TypeError(
            f"expected a tensordict to write, got {type(source).__name__}. "
            "Wrap the leaves: TensorDict(leaves, batch_size=[rows])."
        )
    return match_leaves(leaves_of(source), fields, batch, exact=exact)


def match_leaves(
    found: Mapping[tuple[str, ...], torch.Tensor],
    fields: Sequence[Field],
    batch: torch.Size,
    *,
    exact: bool,
) -> list[torch.Tensor]:
    """`match_fields` of leaves that were collected already."""
    leading = tuple(batch)
    leaves = []
    for field in fields:
        leaf = found.get(field.path)
        if leaf is None:
            raise KeyError(
                f"leaf {field.key!r} ({field}) is missing: got {_names(found)}. Add it, or name "
                "the leaves to write with keys=."
            )
        if leaf.dtype is not field.dtype:
            raise TypeError(
                f"leaf {field.key!r}: expected {field.dtype}, got {leaf.dtype}. Cast it with "
                f".to({field.dtype})."
            )
        if leaf.shape != leading + field.shape:
            raise ValueError(
                f"leaf {field.key!r}: expected shape {[*batch, *field.shape]} (rows "
                f"{list(batch)}, {list(field.shape)} each), got {list(leaf.shape)}. Reshape it."
            )
        leaves.append(leaf)
    if exact and len(found) > len(fields):
        extra = found.keys() - {field.path for field in fields}
        raise KeyError(
            f"these rows have no place for {_names(sorted(extra))}: leave it out with "
            "tensordict.exclude(...), or name the leaves to write with keys=."
        )
    return leaves


def bits_of(leaf: torch.Tensor, carried: torch.dtype) -> NDArray[Any]:
    """The leaf as a numpy array, without a copy where there can be one."""
    if leaf.dtype is not carried:
        leaf = leaf.resolve_conj().view(carried)  # a view would forget a lazy conjugation
    array: NDArray[Any]
    try:
        array = leaf.numpy()
    except (RuntimeError, TypeError):  # requires gradients, is on a device, is lazily negated
        if leaf.is_meta:
            raise ValueError(
                f"a leaf {list(leaf.shape)} of {leaf.dtype} is on the device 'meta', which holds "
                "no data: write one with data, or leave it out."
            ) from None
        array = leaf.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array


def as_cells(array: NDArray[Any], kind: np.dtype[Any] | None = None) -> NDArray[Any]:
    """The same bytes as one opaque item for each row: numpy moves these three times faster."""
    flat = array if array.ndim == 2 else array.reshape(len(array), prod(array.shape[1:]))
    # [rows, entries]: rows may lie apart, the entries of one may not
    if flat.shape[1] > 1 and flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    if kind is None:
        kind = np.dtype(f"V{flat.shape[1] * flat.itemsize}")
    cells: NDArray[Any] = flat.view(kind)[:, 0]
    return cells


def _names(paths: Iterable[KeyPath]) -> list[NestedKey]:
    return [as_key(path) for path in paths]
