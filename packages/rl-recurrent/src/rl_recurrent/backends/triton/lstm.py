"""LSTM over flat rows with segments, on CUDA, by Triton kernels; differentiable."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments
from rl_recurrent.backends.triton import lstm_kernels as kernels
from rl_recurrent.backends.triton.checks import Projection
from rl_recurrent.backends.triton.frame import Frame
from rl_recurrent.backends.triton.launch import apply_scan, checked_plan, in_dtypes


def lstm_scan(  # noqa: PLR0913 - the tensors of the recurrence, as every backend takes them
    gates: Tensor,
    w_hh: Tensor,
    h0: Tensor,
    c0: Tensor,
    segments: Segments,
    *,
    save: str = "state",
    precision: str = "auto",
    projection: Projection | None = None,
) -> tuple[Tensor, Tensor]:
    """Run an LSTM over flat rows, every segment from its own initial state.

    With (h', c') the state of the row before, or the segment's initial state at its first row::

        i, f, g, o = gates + h' W_hhᵀ
        c = σ(f) c' + σ(i) tanh(g)
        h = σ(o) tanh(c)

    The depth is the longest segment, whatever the number of rows. The state and every sum are
    float32; only the operands of the products are rounded. The products outside the kernels, over
    all rows at once, follow torch's own setting for float32 products. Differentiable once, in
    ``gates``, ``w_hh``, ``h0`` and ``c0``. Where H is above 256 it launches once per step.

    Args:
        gates: ``[M, 4H]`` the input's part with all biases, gates i, f, g, o; real rows only,
            segment after segment. float32 or bfloat16, as all the tensors.
        w_hh: ``[4H, H]``, as in `torch.nn.LSTM`.
        h0: ``[S, H]`` initial hidden state of each segment.
        c0: ``[S, H]`` initial cell state of each segment.
        segments: S segments with M real rows, on the same device.
        save: what backward keeps: ``"gates"`` the pre-activations too (4H more per row),
            ``"state"`` only the states, the rest is one product over all rows in backward.
        precision: operands: ``"ieee"`` float32, ``"tf32"``, ``"tf32x3"`` (three tf32 products for
            one, nearly float32), ``"bf16"``, or ``"auto"``: bfloat16 for
            bfloat16 gates, otherwise what `torch.nn.LSTM` uses on the device.
        projection: ``(x, w_ih, bias)`` with ``gates = x w_ihᵀ + bias``. With it, ``"state"`` makes
            the gates again in backward and keeps none of them; without it, it keeps ``gates``.

    Returns:
        Hidden and cell state of every row, ``[M, H]`` each, dtype of ``gates``.

    Raises:
        ValueError: an option or a shape is wrong, or the tensors are not on one CUDA device. On a
            CPU the kernels run only interpreted, with ``TRITON_INTERPRET=1`` set before import.
        TypeError: a dtype is wrong.

    Example:
        .. skip: start if(not torch.cuda.is_available(), reason="needs a CUDA device")

        >>> segments = Segments.from_lengths(torch.tensor([2, 3], device="cuda"))
        >>> gates = torch.zeros(5, 8, device="cuda")
        >>> w_hh, state = torch.zeros(8, 2, device="cuda"), torch.ones(2, 2, device="cuda")
        >>> lstm_scan(gates, w_hh, state, state, segments)[1][:, 0].tolist()
        [0.5, 0.25, 0.5, 0.25, 0.125]

        .. skip: end
    """
    tensors = {"gates": gates, "w_hh": w_hh, "h0": h0, "c0": c0}
    options: Any = {"save": save, "projection": projection}
    plan = checked_plan(tensors, 4, segments, precision=precision, **options)
    made: tuple[Tensor, Tensor] = apply_scan(Scan, plan, [*tensors.values()], segments, **options)
    return made


class Scan(torch.autograd.Function):
    """The recurrence and its gradient, one kernel each, and the products around them."""

    @staticmethod
    def forward(  # noqa: PLR0913 - one argument per tensor that has a gradient
        ctx: Any,
        frame: Frame,
        keep: bool,
        projection: Projection | None,
        gates: Tensor,
        w_hh: Tensor,
        h0: Tensor,
        c0: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Walk every segment forward; keep what backward needs."""
        initial = h0.float().contiguous(), c0.float().contiguous()
        operand = frame.weights(w_hh)
        hidden, cell, pre = run_forward(frame, gates.contiguous(), operand, initial, keep=keep)
        ctx.frame, ctx.kept, ctx.projected = frame, keep, projection is not None
        source = (pre,) if keep else projection or (gates,)
        ctx.save_for_backward(hidden, cell, w_hh, operand, h0, c0, *source)
        ctx.set_materialize_grads(False)
        ctx.dtypes = gates.dtype, w_hh.dtype, h0.dtype, c0.dtype
        return hidden.to(gates.dtype), cell.to(gates.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_hidden: Tensor | None, d_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Walk every segment backward, then one product for each of the other gradients."""
        hidden, cell, w_hh, operand, h0, c0, *source = ctx.saved_tensors
        frame: Frame = ctx.frame
        weights = w_hh.float()
        before = frame.before(hidden, h0.float())
        if ctx.kept:
            pre, d_pre = source[0], torch.empty_like(source[0])
        else:
            gates = F.linear(*source) if ctx.projected else source[0]
            pre = d_pre = torch.addmm(gates.float(), before, weights.t())
        if d_hidden is None:
            d_hidden = torch.zeros_like(hidden)
        d_c0 = run_backward(frame, operand, c0.float(), (cell, pre), (d_hidden, d_cell, d_pre))
        wanted = ctx.needs_input_grad[3:]
        gradients = (
            d_pre,
            d_pre.t() @ before if wanted[1] else None,
            d_pre[frame.first] @ weights if wanted[2] else None,
            d_c0,
        )
        return None, None, None, *in_dtypes(gradients, wanted, ctx.dtypes)


def run_forward(
    frame: Frame, gates: Tensor, w_hh: Tensor, initial: tuple[Tensor, Tensor], *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the forward kernel: float32 hidden and cell state, and pre-activations if kept."""
    rows, hidden_size = gates.shape[0], w_hh.shape[1]
    hidden = gates.new_empty((rows, hidden_size), dtype=torch.float32)
    cell = torch.empty_like(hidden)
    pre = gates.new_empty((rows, 4 * hidden_size), dtype=torch.float32) if keep else hidden
    tensors = gates, w_hh, *initial, hidden, cell, pre
    frame.launch((kernels.forward_resident, kernels.forward_streamed), tensors, w_hh, KEEP=keep)
    return hidden, cell, pre


def run_backward(
    frame: Frame,
    w_hh: Tensor,
    c0: Tensor,
    saved: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor | None, Tensor],
) -> Tensor:
    """Launch the backward kernel: writes ``d_pre``, returns the gradient of ``c0``."""
    cell, pre = saved
    d_hidden, d_cell, d_pre = gradients
    used = d_cell is not None
    d_hidden = d_hidden.contiguous()
    d_cell = d_cell.contiguous() if d_cell is not None else d_hidden
    carry = c0.new_zeros(c0.shape)
    tensors = w_hh, c0.contiguous(), cell, pre, d_hidden, d_cell, d_pre, carry
    both = kernels.backward_resident, kernels.backward_streamed
    frame.launch(both, tensors, w_hh, backwards=True, CELL_USED=used)
    return carry
