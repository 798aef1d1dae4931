"""The recurrence with one factor over rows that are seldom cut: blocks times its powers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[Any]
Flags = NDArray[np.bool_]
BLOCK = 32  # steps; a longer block costs more products, a shorter one more heads to join
EXACT = ("none", "ieee")  # torch may be told to multiply with fewer bits: meant for networks
STEPS = np.arange(BLOCK, dtype=np.int16)


class Powers:
    """Scans blocks of 32 steps as products with the triangle of powers of the factor."""

    # A block that is cut is multiplied once more for each cut, with zeros after the cut, so
    # that the sums before a cut hold nothing else.

    def __init__(self, factor: float, dtype: np.dtype[Any]) -> None:
        apart = np.subtract.outer(STEPS, STEPS).astype(float)
        powers = np.where(apart >= 0, factor ** np.maximum(apart, 0), 0)
        self.factor = factor
        self.triangle: Floats = powers.astype(dtype)  # of step s in the y of step t
        self.of_head: Floats = self.triangle[:, 0].copy()
        self.of_block = factor**BLOCK

    def scan(self, cut: Flags, term: Floats, out: Floats, carry: float) -> tuple[float, bool]:
        """Scan rows of whole blocks."""
        blocks, y = term.reshape(-1, BLOCK), out.reshape(-1, BLOCK)
        ends = np.flatnonzero(cut)
        # block of each cut and the step in it; P is a multiple of 32
        block, at = ends // BLOCK, (ends % BLOCK).astype(np.int16)
        inside = at != BLOCK - 1  # cuts at the end of a block only stop what comes from the next
        # double precision, since errors of heads pass through all blocks before them
        factors, heads = np.empty((2, len(blocks) + 1))
        factors.fill(self.of_block)
        factors[block] = 0
        heads[:-1], heads[-1] = _times(blocks, self.of_head, np.empty_like(blocks[:, 0])), carry
        # a b that is not finite is in the sum of its block
        is_finite = bool(np.isfinite(heads).all())
        split, after_cut = block[inside], at[inside, None] < STEPS
        made = blocks[split]
        np.copyto(made, 0, where=after_cut)
        made = _times(made, self.triangle, np.empty_like(made))
        heads[split[::-1]] = made[::-1, 0]  # where a block is cut twice its first cut comes last
        join(factors, heads)
        # y after each block enters its last step, and the product carries it to the others
        after = (heads[1:] * self.factor).astype(y.dtype)
        after[block[~inside]] = 0
        blocks[:, -1] += after
        _write_before_cuts(made, after_cut, split, _times(blocks, self.triangle, y))
        return float(heads[0]), is_finite


@lru_cache(maxsize=16)
def powers_of(factor: float, dtype: np.dtype[Any]) -> Powers:
    """The powers of a factor; the last 16 are cached."""
    return Powers(factor, dtype)


def join(weight: Floats, term: Floats) -> None:
    """Turn first terms of blocks ``[n + 1]`` into their first y, until none reaches further."""
    # weight: products of the a's of each block, used up. term: what the first y of each block
    # would be alone, and last the y after them all
    weight[-1] = 0
    seen = 1
    while seen < len(term) and weight.any():
        term[:-seen] += weight[:-seen] * term[seen:]
        weight[:-seen] *= weight[seen:]
        weight[-seen:] = 0
        seen *= 2


def _write_before_cuts(made: Floats, after_cut: Flags, block: NDArray[Any], y: Floats) -> None:
    """Write the results between each cut and the one before it to their blocks."""
    last = np.ones(len(block), bool)
    np.not_equal(block[1:], block[:-1], out=last[:-1])
    if last.all():
        np.copyto(made, y[block], where=after_cut)
        y[block] = made
        return
    final, where = made[last], block[last]
    np.copyto(final, y[where], where=after_cut[last])
    y[where] = final
    earlier = np.flatnonzero(~last)  # cuts that are not the last of their block
    own = ~after_cut[earlier] & (after_cut[earlier - 1] | last[earlier - 1, None])
    row, step = np.nonzero(own)
    y[block[earlier[row]], step] = made[earlier[row], step]


def _times(rows: Floats, matrix: Floats, out: Floats) -> Floats:
    """Multiply rows by torch, whose threads are awake: those of numpy would get in their way."""
    if torch.backends.mkldnn.matmul.fp32_precision in EXACT:  # type: ignore[attr-defined]
        torch.matmul(*map(torch.from_numpy, (rows, matrix)), out=torch.from_numpy(out))
    else:
        np.matmul(rows, matrix, out=out)
    return out
