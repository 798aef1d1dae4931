"""Generalised advantages on CUDA, in three launches at most."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_value.scan.triton import gae_kernels, scan_kernels
from rl_value.scan.triton.linear_scan import TileSizes, check_device


def gae(
    arrays: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    factors: tuple[float, float],
    steps: int,
    sizes: TileSizes | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute advantages and targets of contiguous rows.

    Args:
        arrays: reward, value and next value, float32, of N numbers each.
        ends: terminated and done, bool, of the same shape.
        factors: discount and λ.
        steps: of a row of time: nothing comes into its last one.
        sizes: of tiles; chosen from N if absent.

    Returns:
        Advantage and target.
    """
    reward = arrays[0]
    check_device(reward)
    rows = reward.numel()
    sizes = TileSizes.of(rows) if sizes is None else sizes
    advantage, target = torch.empty_like(reward), torch.empty_like(reward)
    chunks, entering = -(-rows // sizes.rows), advantage
    counts = rows, steps, chunks, float(factors[0]), float(factors[0] * factors[1])
    with torch.cuda.device_of(reward):  # where Triton launches; nothing changes on a CPU
        many = chunks > 1
        # with one tile nothing enters it: totals and carries are not launched
        if many:
            totals, entering = reward.new_empty(2 * chunks), reward.new_empty(chunks + 1)
            tiles: dict[str, int] = {"ROWS": sizes.rows, "BLOCK": sizes.block, "num_warps": 1}
            gae_kernels.gae_totals[(chunks,)](*arrays, *ends, totals, *counts, **tiles)
            scan_kernels.carries[(1,)](totals, entering, chunks, BLOCK=sizes.chunks, num_warps=8)
        tiles = {"ROWS": sizes.rows, "MANY": many, "num_warps": max(1, min(8, sizes.rows // 256))}
        outputs = entering, advantage, target
        gae_kernels.gae_chunks[(chunks,)](*arrays, *ends, *outputs, *counts, **tiles)
    return advantage, target
