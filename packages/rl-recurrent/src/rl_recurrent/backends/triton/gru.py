"""GRU over flat rows with segments, on CUDA, by Triton kernels; differentiable."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments
from rl_recurrent.backends.triton import gru_kernels as kernels
from rl_recurrent.backends.triton.checks import Projection
from rl_recurrent.backends.triton.frame import Frame
from rl_recurrent.backends.triton.launch import apply_scan, checked_plan, in_dtypes


def gru_scan(  # noqa: PLR0913 - the tensors of the recurrence, as every backend takes them
    gates: Tensor,
    w_hh: Tensor,
    b_hn: Tensor,
    h0: Tensor,
    segments: Segments,
    *,
    save: str = "state",
    precision: str = "auto",
    projection: Projection | None = None,
) -> Tensor:
    """Run a GRU over flat rows, every segment from its own initial state."""
    # r = σ(gates_r + h' W_hrᵀ),  z = σ(gates_z + h' W_hzᵀ)
    # n = tanh(gates_n + r (h' W_hnᵀ + b_hn)),  h = n + z (h' - n)
    # gates [M, 3H] with the biases of r and z and the input's bias of n; w_hh [3H, H]; b_hn [H];
    # h0 [S, H]; h of every row [M, H]. States and sums are float32, operands of products follow
    # precision. With projection (x, w_ih, bias), "state" recomputes the gates in backward.
    tensors = {"gates": gates, "w_hh": w_hh, "b_hn": b_hn, "h0": h0}
    options: Any = {"save": save, "projection": projection}
    plan = checked_plan(tensors, 3, segments, precision=precision, **options)
    hidden: Tensor = apply_scan(GRUScan, plan, [*tensors.values()], segments, **options)
    return hidden


class GRUScan(torch.autograd.Function):
    """The recurrence and its gradient: one kernel each, and products over all rows."""

    @staticmethod
    def forward(  # noqa: PLR0913 - one argument per tensor that has a gradient
        ctx: Any,
        frame: Frame,
        keep: bool,
        projection: Projection | None,
        gates: Tensor,
        w_hh: Tensor,
        b_hn: Tensor,
        h0: Tensor,
    ) -> Tensor:
        """Run the forward kernel and save the tensors of the backward pass."""
        initial = h0.float().contiguous()
        bias = b_hn.float().contiguous()
        operand = frame.weights(w_hh)
        hidden, pre = run_forward(frame, gates.contiguous(), (operand, bias), initial, keep=keep)
        ctx.frame, ctx.kept, ctx.projected = frame, keep, projection is not None
        source = (pre,) if keep else projection or (gates,)
        ctx.save_for_backward(hidden, w_hh, operand, b_hn, h0, *source)
        ctx.dtypes = gates.dtype, w_hh.dtype, b_hn.dtype, h0.dtype
        return hidden.to(gates.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        """Run the backward kernel, then one product for each of the other gradients."""
        hidden, w_hh, operand, b_hn, h0, *source = ctx.saved_tensors
        frame: Frame = ctx.frame
        size = w_hh.shape[1]
        before = frame.before(hidden, h0.float())
        if ctx.kept:
            pre, d_pre = source[0], torch.empty_like(source[0])
        else:
            gates = F.linear(*source) if ctx.projected else source[0]
            pre = d_pre = pre_activations(gates, before, w_hh, b_hn)
        carry = run_backward(frame, operand, h0.float(), (hidden, pre), (d_hidden, d_pre))
        reset, d_scaled = (
            d_pre[:, : 2 * size],
            d_pre[:, 3 * size :],
        )  # d_pre of dr, dz and of r dn: the inputs of w_hh
        needed = ctx.needs_input_grad[3:]
        gradients = (
            d_pre[:, : 3 * size],
            torch.cat([reset.t() @ before, d_scaled.t() @ before]) if needed[1] else None,
            d_scaled.sum(0) if needed[2] else None,
            initial_gradient(frame, d_pre, w_hh.float(), carry) if needed[3] else None,
        )
        return None, None, None, *in_dtypes(gradients, needed, ctx.dtypes)


def pre_activations(gates: Tensor, before: Tensor, w_hh: Tensor, b_hn: Tensor) -> Tensor:
    """The pre-activations [M, 4H] of all rows, recomputed by products instead of kept."""
    size = w_hh.shape[1]
    weights, gates = w_hh.float().t(), gates.float()
    pre = gates.new_empty(gates.shape[0], 4 * size)
    torch.addmm(gates[:, : 2 * size], before, weights[:, : 2 * size], out=pre[:, : 2 * size])
    pre[:, 2 * size : 3 * size] = gates[:, 2 * size :]
    torch.addmm(b_hn.float(), before, weights[:, 2 * size :], out=pre[:, 3 * size :])
    return pre


def initial_gradient(frame: Frame, d_pre: Tensor, weights: Tensor, carry: Tensor) -> Tensor:
    """Gradient of each segment's initial state, [S, H]: the direct one and that through w_hh."""
    size = weights.shape[1]
    first = d_pre[frame.first]  # [S, 4H]
    carry = carry.addmm(first[:, : 2 * size], weights[: 2 * size])
    return carry.addmm(first[:, 3 * size :], weights[2 * size :])


def run_forward(
    frame: Frame, gates: Tensor, weights: tuple[Tensor, Tensor], h0: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Launch the forward kernel: float32 state, and pre-activations if kept."""
    w_hh, b_hn = weights
    rows, size = gates.shape[0], w_hh.shape[1]
    hidden = gates.new_empty((rows, size), dtype=torch.float32)
    pre = gates.new_empty((rows, 4 * size), dtype=torch.float32) if keep else hidden
    tensors = gates, w_hh, b_hn, h0, hidden, pre
    frame.launch((kernels.forward_resident, kernels.forward_streamed), tensors, w_hh, KEEP=keep)
    return hidden, pre


def run_backward(
    frame: Frame,
    w_hh: Tensor,
    h0: Tensor,
    saved: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor],
) -> Tensor:
    """Launch the backward kernel: writes ``d_pre``, returns the direct gradient of ``h0``."""
    hidden, pre = saved
    d_hidden, d_pre = gradients
    carry = h0.new_zeros(h0.shape)
    tensors = w_hh, h0.contiguous(), hidden, pre, d_hidden.contiguous(), d_pre, carry
    both = kernels.backward_resident, kernels.backward_streamed
    frame.launch(both, tensors, w_hh, backwards=True)
    return carry
