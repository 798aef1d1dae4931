"""Moves of one leaf between the shape of its batch and the shape of its segments."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOAT8 = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
_COPIED_AS = {
    dtype: _INTEGERS[dtype.itemsize]
    for dtype in (torch.uint16, torch.uint32, torch.uint64, *_FLOAT8)
}


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Tell whether a leaf is a tensor whose bits can be looked at."""
    return (
        isinstance(value, Tensor)
        and not value.is_quantized
        and not value.is_nested
        and value.layout == torch.strided
    )


def bits(values: Tensor) -> Tensor:
    """View a leaf as integers of the same size, so that equal means equal bit for bit."""
    if not is_plain(values):
        msg = f"expected dense numbers, got {values.dtype} ({values.layout}): call dequantize()."
        raise TypeError(msg)
    plain = values.resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.view(_INTEGERS[plain.element_size()])


def flat_bits(values: Tensor, rows: int | None = None) -> Tensor:
    """View a leaf ``[N, ...]``, or one of so many rows, as integers ``[N, F]``; see `bits`."""
    found = bits(values.detach())
    rows = len(found) if rows is None else rows
    return found.reshape(rows, found.numel() // max(1, rows))


def flatten(values: Tensor, batch_shape: torch.Size) -> Tensor:
    """Merge the batch dimensions of a leaf."""
    if values.shape[: len(batch_shape)] != batch_shape:
        msg = f"expected a leaf of shape {[*batch_shape, '...']}: got {list(values.shape)}."
        raise ValueError(msg)
    return values.flatten(0, len(batch_shape) - 1) if len(batch_shape) > 1 else values


def pad(rows: Tensor, cells: Tensor, shape: tuple[int, int], fill: float = 0) -> Tensor:
    """Put rows into their cells of a dense array."""
    return place(rows, cells, shape[0] * shape[1], fill).view(*shape, *rows.shape[1:])


def place(rows: Tensor, places: Tensor, size: int, fill: float = 0) -> Tensor:
    """Put rows into their places among others."""
    out = rows.new_full((size, *rows.shape[1:]), fill)
    if rows.dtype in _COPIED_AS:  # torch cannot index these, but their bits
        bits = _COPIED_AS[rows.dtype]
        out.view(bits).index_copy_(0, places, rows.view(bits))
        return out
    return out.index_copy_(0, places, rows)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values are added up, so that long sums stay exact."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64
