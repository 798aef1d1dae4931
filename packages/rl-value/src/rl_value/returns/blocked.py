"""The recurrence on the CPU: many blocks of time at once, then their heads."""

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
    taken together, from the last: once for the first step of each block alone, which doubling
    joins in double precision; and again from what then enters each block. Every factor is a
    product of a's, so nothing is divided and a zero cuts. It writes nothing to its arguments.

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
    carry, scratch = 0.0, np.empty(2 * min(PIECE, len(rows)), rows.dtype)
    with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
        for stop in range(len(rows), 0, -PIECE):
            start = max(0, stop - PIECE)
            here = slice(start, stop)
            carry = _scan_piece(weights[here], terms[here], rows[here], carry, scratch)
    return out


def _scan_piece(a: Floats, b: Floats, out: Floats, carry: float, scratch: Floats) -> float:
    """Write y of one piece, given y behind it, and return its first."""
    steps = 16 if len(b) >= 2_048 else 8
    whole = len(b) // steps * steps
    carry = _scan_singly(a[whole:], b[whole:], out[whole:], carry)
    if not whole:
        return carry
    weight, term = scratch[: 2 * whole].reshape(2, steps, -1)  # [L, n] each
    np.copyto(weight, a[:whole].reshape(-1, steps).T)
    np.copyto(term, b[:whole].reshape(-1, steps).T)
    weights, terms, head = list(weight), list(term), term[-1].copy()
    for k in range(steps - 2, -1, -1):
        np.multiply(weights[k], head, head)
        np.add(head, terms[k], head)
    # products in double precision: 0.999 multiplied by itself in single is biased
    entering = _heads(np.multiply.reduce(weight, 0, dtype=float), head, carry)
    after = entering[1:].astype(b.dtype)
    for k in range(steps - 1, -1, -1):
        np.multiply(weights[k], after, weights[k])
        after = np.add(weights[k], terms[k], terms[k])
    out[:whole].reshape(-1, steps)[...] = term.T
    return float(entering[0])


def _heads(weight: Floats, term: Floats, carry: float) -> Floats:
    """The first y of each block, and behind them what is carried in, in double precision."""
    weight, term = np.append(weight.astype(float), 0), np.append(term.astype(float), carry)
    seen = 1
    while seen < len(term):
        term[:-seen] += weight[:-seen] * term[seen:]
        weight[:-seen] *= weight[seen:]
        seen *= 2
    return term


def _scan_singly(a: Floats, b: Floats, out: Floats, carry: float) -> float:
    """The rows that fill no block."""
    for i, (weight, term) in enumerate(zip(a[::-1].tolist(), b[::-1].tolist(), strict=True), 1):
        carry = term + weight * carry
        out[-i] = carry
    return carry
