"""The linear recurrence y(t) = b(t) + a(t) y(t + 1) on CUDA, in three launches at most."""

from __future__ import annotations

import dataclasses

import torch
import triton
from torch import Tensor

from rl_value.scan.triton import scan_kernels as kernels


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """How many rows, or chunks of rows, are scanned at once; all are powers of two."""

    rows: int  # of a chunk, at least 4
    block: int  # rows read at once to find the total of a chunk, no more than a chunk
    chunks: int  # whose totals are read at once

    @classmethod
    def of(cls, num_rows: int) -> TileSizes:
        """Choose from the number of rows alone; measured on one H200."""
        rows = min(2048, max(16, power_of_two_above(num_rows)))
        return cls(rows, min(256, rows), 4096)


def power_of_two_above(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << (number - 1).bit_length()


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute a linear recurrence from the last row to the first.

    yₜ = bₜ + aₜ yₜ₊₁, and yₜ = bₜ where aₜ = 0, and at the last row.

    Nothing passes an a of 0: neither NaN, nor infinity, nor rounding. All factors are products of
    a's, so it is stable for any length. No program waits for another: the first launch finds what
    each chunk of rows does as a whole, the second what enters each chunk, the third scans the rows.
    Rows that fit into one chunk need only the third. The same input gives the same bits.
    `rl_value.linear_scan` adds gradients.

    In float32 a product of k factors near 1 is off by up to k roundings, as in every parallel scan:
    5e-6 of the largest y was seen where 1,000 steps count.

    Args:
        a: float32 or float64 ``[N]``, in [0, 1].
        b: of the same dtype and shape.

    Returns:
        y, of the shape of b.

    Raises:
        ValueError: a shape is wrong, or the tensors are not on one CUDA device. On a CPU the kernel
            runs only interpreted, with ``TRITON_INTERPRET=1`` set before its import.
        TypeError: a dtype is wrong.
        RuntimeError: gradients are wanted.

    Example:
        .. skip: start if(not torch.cuda.is_available(), reason="needs a CUDA device")

        >>> half, one = torch.tensor([0.5, 0.0, 0.5, 0.5]).cuda(), torch.ones(4).cuda()
        >>> linear_scan(half, one).tolist()
        [1.5, 1.0, 1.5, 1.0]

        .. skip: end
    """
    check(a, b)
    return scan_by(TileSizes.of(len(b)), a, b)


def scan_by(sizes: TileSizes, a: Tensor, b: Tensor) -> Tensor:
    """`linear_scan` with given sizes, its arguments unchecked."""
    if not b.numel():
        return b.clone()
    a, b = a.contiguous(), b.contiguous()
    y, rows, chunks = torch.empty_like(b), len(b), -(-len(b) // sizes.rows)
    entering, many = y, chunks > 1
    with torch.cuda.device_of(b):  # where Triton launches; nothing changes on a CPU
        if many:
            totals, entering = b.new_empty(2 * chunks), b.new_empty(chunks + 1)
            tiles: dict[str, int] = {"ROWS": sizes.rows, "BLOCK": sizes.block, "num_warps": 1}
            kernels.chunk_totals[(chunks,)](a, b, totals, rows, chunks, **tiles)
            kernels.carries[(1,)](totals, entering, chunks, BLOCK=sizes.chunks, num_warps=8)
        tiles = {"ROWS": sizes.rows, "MANY": many, "num_warps": max(1, min(8, sizes.rows // 256))}
        kernels.scan_chunks[(chunks,)](a, b, entering, y, rows, chunks, **tiles)
    return y


def check(a: Tensor, b: Tensor) -> None:
    """Raise for tensors that the kernels cannot take."""
    check_device(b)
    if b.dtype not in (torch.float32, torch.float64) or a.dtype != b.dtype:
        msg = f"expected a and b both float32 or both float64: got {a.dtype} and {b.dtype}."
        raise TypeError(msg)
    if b.ndim != 1 or a.shape != b.shape:
        msg = f"expected a and b [N] alike: got {list(a.shape)} and {list(b.shape)}."
        raise ValueError(msg)
    if a.device != b.device:
        msg = f"a: expected it on {b.device} like b, got {a.device}. Move it there."
        raise ValueError(msg)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        msg = "the kernel alone has no gradients: use rl_value.linear_scan, which has."
        raise RuntimeError(msg)


def check_device(b: Tensor) -> None:
    """Raise for a device on which no kernel runs."""
    interpreting = triton.knobs.runtime.interpret
    compiled = isinstance(kernels.add, triton.runtime.JITFunction)
    if b.is_cuda or (b.device.type == "cpu" and interpreting and not compiled):
        return
    late = " TRITON_INTERPRET was set after the kernels were imported." if interpreting else ""
    msg = (
        f"expected tensors on a CUDA device, got {b.device}.{late} "
        "Use rl_value.linear_scan, which runs on any device."
    )
    raise ValueError(msg)
