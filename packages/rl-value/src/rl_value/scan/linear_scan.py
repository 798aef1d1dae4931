"""The one recurrence after every return: y(t) = b(t) + a(t) y(t + 1)."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rl_layout.internals import array_of
from rl_value.arguments import broadcasts, check_floats, check_tensor, time_of
from rl_value.scan.block_scan import BLOCKS, block_scan, is_transformed
from rl_value.scan.doubling_scan import doubling_scan

DOUBLING, KERNEL = "torch, by doubling", "triton"


def linear_scan(a: Tensor, b: Tensor, cut: Tensor | None = None, *, time_dim: int = -2) -> Tensor:
    """Compute a linear recurrence from the end of each row of time.

    yₜ = bₜ + aₜ yₜ₊₁, and yₜ = bₜ where the row is cut, where aₜ = 0, and at the last t.

    Nothing passes a cut: neither NaN, nor infinity, nor rounding. All factors are products of
    a's, so it is stable for any length. Differentiable, also twice.

    Args:
        a: ``[*B, T, C]``, in [0, 1], or of a shape that broadcasts with b.
        b: float32 or float64 ``[*B, T, C]``; ``[T]`` is one column.
        cut: bool, True where nothing comes from the next step; broadcasts with b.
        time_dim: dimension of time; of ``[T]`` it is the only one.

    Returns:
        y, of the shape of b.

    Raises:
        TypeError: a or b is neither float32 nor float64, or cut is not boolean.
        ValueError: the shapes do not broadcast to that of b, or there is no such dimension.

    Example:
        >>> half, one = torch.full((4,), 0.5), torch.ones(4)
        >>> linear_scan(half, one, torch.tensor([False, True, False, False]))
        tensor([1.5000, 1.0000, 1.5000, 1.0000])
    """
    _check(a, b, cut)
    dim = time_of(b, time_dim)
    if not b.numel():
        return b.clone()
    dtype, steps = torch.promote_types(a.dtype, b.dtype), b.shape[dim]
    decay = a.to(dtype).expand(b.shape)
    decay = decay if cut is None else torch.where(cut, 0, decay)
    term = b.to(dtype).movedim(dim, -1)  # [*B, C, T]: all rows of time end to end
    rows = decay.movedim(dim, -1).reshape(-1, steps)
    if len(rows) > 1:  # nothing comes into the last step of a row from the row that follows it
        rows = torch.cat([rows[:, :-1], torch.zeros_like(rows[:, -1:])], 1)
    return scan_rows(rows.reshape(-1), term.reshape(-1)).view(term.shape).movedim(-1, dim)


def scan_rows(a: Tensor, b: Tensor) -> Tensor:
    """Compute the recurrence over flat rows; a zero in a is a cut."""
    if is_transformed() and not torch.compiler.is_compiling():
        return doubling_scan(a, b)  # of plain operations, which `torch.func` transforms
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        made: Tensor = _LinearScan.apply(a, b)  # type: ignore[no-untyped-call]
        return made
    return _scan(a, b)


class _LinearScan(torch.autograd.Function):
    """The recurrence, whose adjoint is the same recurrence in the other direction."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        y = _scan(a, b)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        # dL/db(t) = g(t) + a(t-1) dL/db(t-1), and dL/da(t) = dL/db(t) y(t+1)
        a, y = ctx.saved_tensors
        before = torch.nn.functional.pad(a[:-1], (1, 0))
        term = scan_rows(before.flip(0), gradients[0].flip(0)).flip(0)
        weight = None
        if ctx.needs_input_grad[0]:
            weight = term * torch.nn.functional.pad(y[1:], (0, 1))
        return weight, term


def general_scan(b: Tensor) -> str:
    """Name the scan that steps with any factors take."""
    if torch.compiler.is_compiling() or b.device.type not in ("cpu", "cuda"):
        return DOUBLING
    if b.device.type == "cpu":
        return BLOCKS
    return KERNEL if has_triton() else DOUBLING


def _scan(a: Tensor, b: Tensor) -> Tensor:
    way = general_scan(b)
    if way == DOUBLING:
        return doubling_scan(a, b)
    if way == KERNEL:
        from rl_value.scan.triton.linear_scan import linear_scan as kernel

        found: Tensor = kernel(a, b)  # zeros in a cut
        return found
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    block_scan(array_of(a.detach()), array_of(b.detach()), out.numpy())
    return out


@cache
def has_triton() -> bool:
    """Whether triton is installed."""
    return find_spec("triton") is not None


def _check(a: Tensor, b: Tensor, cut: Tensor | None) -> None:
    check_floats("a", a)
    check_floats("b", b)
    if cut is not None:
        check_tensor("cut", cut)
    if not b.ndim:
        msg = "b: expected steps [*B, T, C], got a single number."
        raise ValueError(msg)
    if cut is not None and cut.dtype != torch.bool:
        msg = f"cut: expected torch.bool, got {cut.dtype}. Call .bool()."
        raise TypeError(msg)
    shapes = {"a": a.shape, "cut": b.shape if cut is None else cut.shape}
    for name, shape in shapes.items():
        if not broadcasts(shape, b.shape):
            msg = (
                f"{name}: expected a shape that broadcasts to that of b, {list(b.shape)}: "
                f"got {list(shape)}."
            )
            raise ValueError(msg)
