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
    """Run an LSTM over flat rows, every segment from its own initial state."""
    # i, f, g, o = gates + h' W_hhᵀ,  c = σ(f) c' + σ(i) tanh(g),  h = σ(o) tanh(c)
    # gates [M, 4H] with all biases; w_hh [4H, H]; h0 and c0 [S, H]; h and c of every row [M, H].
    # States and sums are float32, operands of products follow precision. With projection
    # (x, w_ih, bias), "state" recomputes the gates in backward.
    tensors = {"gates": gates, "w_hh": w_hh, "h0": h0, "c0": c0}
    options: Any = {"save": save, "projection": projection}
    plan = checked_plan(tensors, 4, segments, precision=precision, **options)
    states: tuple[Tensor, Tensor] = apply_scan(
        LSTMScan, plan, [*tensors.values()], segments, **options
    )
    return states


class LSTMScan(torch.autograd.Function):
    """The recurrence and its gradient: one kernel each, and products over all rows."""

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
        """Run the forward kernel and save the tensors of the backward pass."""
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
        """Run the backward kernel, then one product for each of the other gradients."""
        hidden, cell, w_hh, operand, h0, c0, *source = ctx.saved_tensors
        frame: Frame = ctx.frame
        weights = w_hh.float()
        before = frame.before(hidden, h0.float())
        if ctx.kept:
            pre, d_pre = source[0], torch.empty_like(source[0])
        else:
            gates = F.linear(*source) if ctx.projected else source[0]
            # in place: the kernel reads each pre-activation before it writes its gradient
            pre = d_pre = torch.addmm(gates.float(), before, weights.t())
        if d_hidden is None:
            d_hidden = torch.zeros_like(hidden)
        d_c0 = run_backward(frame, operand, c0.float(), (cell, pre), (d_hidden, d_cell, d_pre))
        needed = ctx.needs_input_grad[3:]
        gradients = (
            d_pre,
            d_pre.t() @ before if needed[1] else None,
            d_pre[frame.first] @ weights if needed[2] else None,
            d_c0,
        )
        return None, None, None, *in_dtypes(gradients, needed, ctx.dtypes)


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
    # a kernel needs some pointer: without CELL_USED it is never read
    d_cell = d_cell.contiguous() if d_cell is not None else d_hidden
    carry = c0.new_zeros(c0.shape)
    tensors = w_hh, c0.contiguous(), cell, pre, d_hidden, d_cell, d_pre, carry
    both = kernels.backward_resident, kernels.backward_streamed
    frame.launch(both, tensors, w_hh, backwards=True, CELL_USED=used)
    return carry
