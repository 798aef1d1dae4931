"""The linear recurrence y(t) = b(t) + a(t) y(t + 1) on CUDA, in two launches at most."""

from __future__ import annotations

import dataclasses

import torch
import triton
from torch import Tensor

from rl_value.scan.triton import scan_kernels as kernels

ELEMENTS = 2048  # of a chunk: 16 for each thread of four warps
GROUP = 64  # totals read at once: 131,072 rows back, enough for one read in most batches


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """How rows and columns are cut into programs."""

    rows: int  # of a chunk, a power of two
    columns: int  # of a program, a power of two
    group: int  # totals of chunks read at once, a power of two

    @classmethod
    def of(cls, num_rows: int, num_columns: int) -> TileSizes:
        """Choose from the shape alone; not tuned for any device."""
        columns = min(8, power_of_two_above(num_columns))
        rows = min(ELEMENTS // columns, max(16, power_of_two_above(num_rows)))
        return cls(rows, columns, GROUP)


def power_of_two_above(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << (number - 1).bit_length()


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute a linear recurrence from the last row to the first.

    yₜ = bₜ + aₜ yₜ₊₁, and yₜ = bₜ where aₜ = 0, and at the last row.

    Nothing passes an a of 0: neither NaN, nor infinity, nor rounding. All factors are products of
    a's, so it is stable for any length. No program waits for another: the first launch finds what
    each chunk of rows does as a whole, the second combines what enters its chunk and scans it.
    Rows that fit into one chunk need only the second. `rl_value.linear_scan` adds gradients.

    In float32 a product of k factors near 1 is off by up to k roundings, as in every parallel scan:
    5e-6 of the largest y was seen where 1,000 steps count. The size of the chunks is not tuned.

    Args:
        a: float32 or float64 ``[N]`` or ``[N, C]``, in [0, 1].
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
    columns = 1 if b.ndim == 1 else b.shape[1]
    return scan_by(TileSizes.of(len(b), columns), a, b)


def scan_by(cutting: TileSizes, a: Tensor, b: Tensor) -> Tensor:
    """`linear_scan` by a given cutting, its arguments unchecked."""
    if not b.numel():
        return b.clone()
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(b)
    rows, columns = len(b), b.numel() // len(b)
    chunks, blocks = -(-rows // cutting.rows), -(-columns // cutting.columns)
    totals = b.new_empty((3, chunks, columns)) if chunks > 1 else y
    options = {"ROWS": cutting.rows, "COLUMNS": cutting.columns, "enable_fp_fusion": True}
    grid, shape = (chunks, blocks), (rows, columns, chunks)
    with torch.cuda.device_of(b):  # where Triton launches; nothing changes on a CPU
        if chunks > 1:
            kernels.chunk_totals[grid](a, b, totals, *shape, **options)
        kernels.scan_chunks[grid](a, b, totals, y, *shape, GROUP=cutting.group, **options)
    return y


def check(a: Tensor, b: Tensor) -> None:
    """Raise for tensors that the kernels cannot take."""
    check_device(b)
    if b.dtype not in (torch.float32, torch.float64) or a.dtype != b.dtype:
        msg = f"expected a and b both float32 or both float64: got {a.dtype} and {b.dtype}."
        raise TypeError(msg)
    if b.ndim not in (1, 2) or a.shape != b.shape:
        msg = f"expected a and b [N] or [N, C] alike: got {list(a.shape)} and {list(b.shape)}."
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
