"""The recurrence on the CPU: many blocks of time at once, then their heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_layout.views import array_of

Floats = NDArray[Any]
Flags = NDArray[np.bool_]
PIECE = 65_536  # rows at a time: what three arrays of it hold stays in the cache


def blocked_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute y[i] = b[i] + a[i] y[i + 1] over flat rows, y[N] = 0.

    Args:
        a: float32 or float64 ``[N]`` on the CPU, in [0, 1].
        b: the same ``[N]``.

    Returns:
        y ``[N]``, not finite before a value that is not finite, across zeros of a too.

    Example:
        >>> blocked_scan(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([1.0, 2.0, 4.0]))
        tensor([2., 2., 4.])
    """
    weights: Floats = array_of(a.detach())
    terms: Floats = array_of(b.detach())
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    rows: Floats = out.numpy()
    scan = PieceScan(rows)
    for here in scan.pieces:
        scan.take(weights[here], terms[here], rows[here])
    return out


class PieceScan:
    """Scans flat rows piece by piece, from the last piece to the first.

    A piece is laid out as `[L, n]`, n blocks of L steps. The steps of all blocks are taken
    together, from the last: once for the first step of each block alone, which doubling joins in
    double precision; and again from what then enters each block. Every factor is a product of
    a's, so nothing is divided and a zero cuts.

    Args:
        rows: ``[N]``, of the dtype and the number of what will be scanned.
        factor: what every a is but where a row is cut; None where they differ.

    Example:
        >>> y = np.empty(3)
        >>> scan = PieceScan(y, factor=0.5)
        >>> for here in scan.pieces:
        ...     scan.take(np.array([0, 1, 0], bool)[here], np.array([1.0, 2.0, 4.0])[here], y[here])
        >>> y.tolist()
        [2.0, 2.0, 4.0]
    """

    def __init__(self, rows: Floats, factor: float | None = None) -> None:
        size = len(rows)
        self.pieces = [slice(max(0, stop - PIECE), stop) for stop in range(size, 0, -PIECE)]
        self.factor = None if factor is None else float(rows.dtype.type(factor))
        self.carry = 0.0
        self.scratch: Floats = np.empty((2, min(PIECE, size)), rows.dtype)

    def take(self, weight: Floats | Flags, term: Floats, out: Floats) -> None:
        """Scan the piece before that of the last call; it writes to nothing but `out`.

        Args:
            weight: a ``[P]``; where there is one factor, the rows that are cut, bool.
            term: b ``[P]``.
            out: y ``[P]`` is written here.
        """
        steps = 16 if len(term) >= 2_048 else 8
        whole = len(term) // steps * steps
        with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
            self._singly(weight[whole:], term[whole:], out[whole:])
            if whole:
                weight, term = (rows[:whole].reshape(-1, steps).T for rows in (weight, term))
                self._blocks(weight, term, out[:whole].reshape(-1, steps).T)

    def _blocks(self, given: Floats | Flags, term: Floats, out: Floats) -> None:
        """Scan n blocks of L steps, ``[L, n]`` each."""
        weight, y = (rows[: term.size].reshape(term.shape) for rows in self.scratch)
        factors, heads = np.empty((2, term.shape[1] + 1))
        factors[:-1] = self._lay_out(given, weight)
        np.copyto(y, term)
        weights, terms, head = list(weight), list(y), y[-1].copy()
        for k in range(len(terms) - 2, -1, -1):
            np.multiply(weights[k], head, head)
            np.add(head, terms[k], head)
        heads[:-1], heads[-1] = head, self.carry
        _join(factors, heads)
        after = heads[1:].astype(y.dtype)
        for k in range(len(terms) - 1, -1, -1):
            np.multiply(weights[k], after, weights[k])
            after = np.add(weights[k], terms[k], terms[k])
        np.copyto(out, y)
        self.carry = float(heads[0])

    def _lay_out(self, given: Floats | Flags, weight: Floats) -> Floats:
        """Write a in the order of blocks, and multiply the a's of each, ``[n]``."""
        if self.factor is None:
            np.copyto(weight, given)
            # in double precision: 0.999 multiplied by itself in single is biased
            product: Floats = np.multiply.reduce(weight, 0, dtype=float)
            return product
        cut = np.ascontiguousarray(given)
        weight.fill(self.factor)
        np.copyto(weight, 0, where=cut)
        whole: Floats = ~np.logical_or.reduce(cut, 0) * self.factor ** len(cut)
        return whole

    def _singly(self, weight: Floats | Flags, term: Floats, out: Floats) -> None:
        """The rows that fill no block."""
        if self.factor is not None:
            weight = np.where(weight, 0, self.factor)
        pairs = zip(weight[::-1].tolist(), term[::-1].tolist(), strict=True)
        for i, (a, b) in enumerate(pairs, 1):
            self.carry = b + a * self.carry
            out[-i] = self.carry


def _join(weight: Floats, term: Floats) -> None:
    """Turn first terms of blocks ``[n + 1]`` into their first y, until none reaches further."""
    weight[-1] = 0
    seen = 1
    while seen < len(term) and weight.any():
        term[:-seen] += weight[:-seen] * term[seen:]
        weight[:-seen] *= weight[seen:]
        weight[-seen:] = 0
        seen *= 2
