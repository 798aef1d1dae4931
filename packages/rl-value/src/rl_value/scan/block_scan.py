"""The recurrence on the CPU: many blocks of time at once, then their heads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_layout.internals import array_of
from rl_value.scan.powers import BLOCK, Flags, Floats, join, powers_of

PIECE = 262_144  # rows at a time, or near it: in the cache, and worth the calls of a piece
FEW = 128  # rows that are scanned one by one, which takes less time than calls of numpy


def blocked_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute y[i] = b[i] + a[i] y[i + 1] over flat rows, y[N] = 0."""
    weights: Floats = array_of(a.detach())
    terms: Floats = array_of(b.detach())
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    rows: Floats = out.numpy()
    scan = PieceScan(rows)
    for here in scan.pieces:
        scan.take(weights[here], terms[here], rows[here])
    return out


class PieceScan:
    """Scans flat rows piece by piece, from the last piece to the first."""

    # A piece has the shape [L, n], n blocks of L steps. All blocks are scanned at once, from their
    # last step: once for the first step of each block alone, which doubling joins in double
    # precision; and again from what then enters each block. Every factor is a product of a's, so
    # nothing is divided and a zero cuts. Rows of one factor that are seldom cut are scanned by
    # Powers instead, in half the time.

    def __init__(self, rows: Floats, factor: float | None = None) -> None:
        size = len(rows)
        step = -(-size // (max(1, round(size / PIECE)) * BLOCK)) * BLOCK  # no small piece is left
        self.pieces = [slice(max(0, stop - step), stop) for stop in range(size, 0, -step)]
        # rounded as the rows are, so that powers are those of the factor that is multiplied
        self.factor = None if factor is None else float(rows.dtype.type(factor))
        self.powers = None if self.factor is None else powers_of(self.factor, rows.dtype)
        # y of the first row scanned; and whether every b was finite, known with one factor only
        self.carry, self.is_finite = 0.0, True
        self.scratch: Floats = np.empty((2, min(step, size)), rows.dtype)

    def take(self, weight: Floats | Flags, term: Floats, out: Floats) -> None:
        """Scan the piece before that of the last call."""
        # weight: a [P]; with one factor the rows that are cut, bool [P]. term: b [P], then used up
        seldom = self.powers is not None and self._is_seldom_cut(weight)
        steps = BLOCK if seldom else 16 if len(term) >= 2_048 else 8
        whole = 0 if len(term) <= FEW else len(term) // steps * steps
        with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
            self._scan_rows_singly(weight[whole:], term[whole:], out[whole:])
            weight, term, out = weight[:whole], term[:whole], out[:whole]
            if seldom and self.powers is not None:
                self.carry, is_finite = self.powers.scan(weight, term, out, self.carry)
                self.is_finite &= is_finite
            elif whole:
                self._blocks(*(rows.reshape(-1, steps).T for rows in (weight, term, out)))
                self._look_at(out)

    @staticmethod
    def _is_seldom_cut(cut: Flags) -> bool:
        """Whether few blocks are cut elsewhere than at their end."""
        if len(cut) < 2_048:
            return False
        inside = int(np.count_nonzero(cut)) - int(np.count_nonzero(cut[BLOCK - 1 :: BLOCK]))
        return 4 * BLOCK * inside <= len(cut)

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
        join(factors, heads)
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

    def _scan_rows_singly(self, weight: Floats | Flags, term: Floats, out: Floats) -> None:
        """The rows that fill no block."""
        if not len(term):
            return
        if self.factor is not None:
            weight = np.where(weight, 0, self.factor)
        found, carry = [], self.carry
        for a, b in zip(weight[::-1].tolist(), term[::-1].tolist(), strict=True):
            carry = b + a * carry
            found.append(carry)
        out[::-1] = found
        self.carry = carry
        self._look_at(out)

    def _look_at(self, y: Floats) -> None:
        if self.factor is not None:
            self.is_finite &= bool(np.isfinite(y).all())
