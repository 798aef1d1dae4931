"""The recurrence on the CPU: many blocks of time at once, then their heads, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[Any]
PIECE = 65_536  # rows at a time: what three arrays of it hold stays in the cache


def blocked_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute y[i] = b[i] + a[i] y[i + 1] over flat rows, y[N] = 0.

    A piece of rows is laid out as `[L, n]`, n blocks of L steps. The steps of all blocks are
    taken together, from the last; the heads of the blocks follow one by one in double precision,
    and what they carry is spread over their blocks. Every factor is a product of a's, so nothing
    is divided and a zero cuts. It writes nothing to its arguments.

    Args:
        a: float32 or float64 ``[N]`` on the CPU, in [0, 1].
        b: the same ``[N]``.

    Returns:
        y ``[N]``, not finite before a value that is not finite, across zeros of a too.

    Example:
        >>> blocked_scan(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([1.0, 2.0, 4.0]))
        tensor([2., 2., 4.])
    """
    weights: Floats = np.from_dlpack(a.detach())
    terms: Floats = np.from_dlpack(b.detach())
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    rows: Floats = np.from_dlpack(out)
    carry = 0.0
    with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
        for stop in range(len(rows), 0, -PIECE):
            start = max(0, stop - PIECE)
            carry = _scan_piece(weights[start:stop], terms[start:stop], rows[start:stop], carry)
    return out


def _scan_piece(a: Floats, b: Floats, out: Floats, carry: float) -> float:
    """Write y of one piece, given y behind it, and return its first."""
    steps = 64 if len(b) >= 16_384 else 32 if len(b) >= 2_048 else 8
    whole = len(b) // steps * steps
    carry = _scan_singly(a[whole:], b[whole:], out[whole:], carry)
    if not whole:
        return carry
    weight = np.array(a[:whole].reshape(-1, steps).T, order="C")  # [L, n]
    term = np.array(b[:whole].reshape(-1, steps).T, order="C")
    weights, terms, product = list(weight), list(term), np.empty_like(term[0])
    for k in range(steps - 2, -1, -1):
        np.multiply(weights[k], terms[k + 1], product)
        np.add(terms[k], product, terms[k])
        np.multiply(weights[k], weights[k + 1], weights[k])
    heads, first = _heads(weights[0].tolist(), terms[0].tolist(), carry)
    weight *= np.array(heads, b.dtype)
    out[:whole].reshape(-1, steps)[...] = np.add(term, weight, term).T
    return first


def _heads(weights: list[float], terms: list[float], carry: float) -> tuple[list[float], float]:
    """What is carried into each block, and the first y of all."""
    carried = [0.0] * len(terms)
    for n in range(len(terms) - 1, -1, -1):
        carried[n] = carry
        carry = terms[n] + weights[n] * carry
    return carried, carry


def _scan_singly(a: Floats, b: Floats, out: Floats, carry: float) -> float:
    """The rows that fill no block."""
    for i, (weight, term) in enumerate(zip(a[::-1].tolist(), b[::-1].tolist(), strict=True), 1):
        carry = term + weight * carry
        out[-i] = carry
    return carry
