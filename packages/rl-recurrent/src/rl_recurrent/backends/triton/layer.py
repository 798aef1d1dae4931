"""One kernel for all segments at once, differentiable; CUDA, or a CPU under Triton's interpreter.

States and sums are float32, operands of products follow the precision. Kernels read and write
``pre`` [M, 4H], what the activations are made of. In an LSTM those are the four sums i, f, g, o, of
which ``w_hh`` has all; in a GRU r, z, the inputs' share of n, and h's share of n, of which ``w_hh``
has all but the third.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rl_layout import Segments
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.backends.triton import gru_kernels, lstm_kernels, tiles
from rl_recurrent.backends.triton.launch import Frame, LaunchPlan, make_plan
from rl_recurrent.cells.cell import Cell, RowWeights, States

Projection = tuple[Tensor, Tensor, Tensor]  # x, w_ih and the bias
DTYPES = (torch.float32, torch.bfloat16)
KERNELS: dict[str, ModuleType] = {"lstm": lstm_kernels, "gru": gru_kernels}


def layer(
    cell: Cell,
    x: Tensor,
    weights: RowWeights,
    states: States,
    segments: Segments,
    settings: Settings,
) -> States:
    """Run one layer in one direction: the states after every row, ``[M, H]`` each."""
    projection = x, weights.w_ih, weights.bias
    return scan(
        cell,
        [linear(*projection), weights.w_hh, weights.b_hn, *states],
        segments,
        save="gates" if settings.save == "gates" else "state",
        precision=settings.precision,
        projection=projection,
    )


def scan(
    cell: Cell,
    tensors: Sequence[Tensor | None],
    segments: Segments,
    *,
    save: str = "state",
    precision: str = "auto",
    projection: Projection | None = None,
) -> States:
    """Run a cell over flat rows, every segment from its own initial states."""
    # Tensors: the inputs' sums of the gates [M, G * H] with all biases but b_hn, w_hh [G * H, H],
    # b_hn [H] (None in an LSTM), and the states [S, H]. With projection (x, w_ih, bias), "state"
    # computes the sums again in backward.
    gates: Any = tensors[0]
    check_gates(gates, segments)
    if precision == "auto" and not gates.is_cuda:
        precision = "ieee"  # interpreted: a CPU has no tf32
    plan = make_plan(gates.shape[1] // cell.num_gates, len(segments), precision, gates.dtype)
    return planned_scan(cell, tensors, segments, plan, save=save, projection=projection)


def check_gates(gates: Tensor, segments: Segments) -> None:
    """Raise for a device or a dtype without kernels, and for segments on another device."""
    if segments.starts.device != gates.device:
        msg = (
            f"expected segments on {gates.device} like the inputs, got {segments.starts.device}. "
            "Move them there with segments.to(device)."
        )
        raise ValueError(msg)
    dtypes = DTYPES if gates.is_cuda else DTYPES[:1]
    if gates.dtype not in dtypes:
        names = " or ".join(map(str, dtypes))
        msg = f"backend 'triton': expected {names} on {gates.device.type}, got {gates.dtype}."
        raise TypeError(msg)
    if gates.is_cuda:
        return
    interpreting = triton.knobs.runtime.interpret
    if gates.device.type == "cpu" and interpreting and not is_compiled():
        return
    # the variable is read when the kernels are decorated, at import
    late = " TRITON_INTERPRET was set after the kernels were imported." if interpreting else ""
    msg = (
        f"backend 'triton': expected tensors on a CUDA device, got {gates.device}.{late} "
        "Use backend 'pad', 'pack' or 'scan', which run there."
    )
    raise ValueError(msg)


def is_compiled() -> bool:
    """Whether the kernels were imported to be compiled, not interpreted."""
    return isinstance(tiles.tanh, triton.runtime.JITFunction)


def planned_scan(
    cell: Cell,
    tensors: Sequence[Tensor | None],
    segments: Segments,
    plan: LaunchPlan,
    *,
    save: str = "state",
    projection: Projection | None = None,
) -> States:
    """Run a cell under a plan; arguments are not checked."""
    trained = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    keep = save == "gates" and trained and torch.is_grad_enabled()
    frame = Frame.of(segments, plan)
    with torch.cuda.device_of(tensors[0]):  # where Triton launches; nothing changes on a CPU
        states: States = _LayerScan.apply(cell, frame, keep, projection, *tensors)  # type: ignore[no-untyped-call]
    return states


class _LayerScan(torch.autograd.Function):
    """The recurrence and its gradient: one kernel each, and products over all rows."""

    @staticmethod
    def forward(  # noqa: PLR0913 - one argument per tensor that has a gradient
        ctx: Any,
        cell: Cell,
        frame: Frame,
        keep: bool,
        projection: Projection | None,
        gates: Tensor,
        w_hh: Tensor,
        b_hn: Tensor | None,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the forward kernel and save the tensors of the backward pass."""
        operand, size = frame.weights(w_hh), w_hh.shape[1]
        outputs = [gates.new_empty((len(gates), size), dtype=torch.float32) for _ in states]
        # a kernel needs some pointer: without KEEP it is never written
        pre = gates.new_empty((len(gates), 4 * size), dtype=torch.float32) if keep else outputs[0]
        initial = [state.float().contiguous() for state in states]
        bias = [] if b_hn is None else [b_hn.float().contiguous()]
        kernels = KERNELS[cell.name]
        both = kernels.forward_resident, kernels.forward_streamed
        arguments = gates.contiguous(), operand, *bias, *initial, *outputs, pre
        frame.launch(both, arguments, operand, KEEP=keep)
        ctx.cell, ctx.frame, ctx.kept, ctx.projected = cell, frame, keep, projection is not None
        source = (pre,) if keep else projection or (gates,)
        ctx.save_for_backward(w_hh, b_hn, operand, *states, *outputs, *source)
        ctx.set_materialize_grads(False)
        inputs = gates, w_hh, b_hn, *states
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        return tuple(output.to(gates.dtype) for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the backward kernel, then one product for each of the other gradients."""
        frame, count, needed = ctx.frame, ctx.cell.num_states, ctx.needs_input_grad[4:]
        w_hh, b_hn, operand, *saved = ctx.saved_tensors
        states, outputs, source = saved[:count], saved[count : 2 * count], saved[2 * count :]
        before = frame.before(outputs[0], states[0].float())
        if ctx.kept:
            pre, d_pre = source[0], torch.empty_like(source[0])
        else:
            gates = linear(*source) if ctx.projected else source[0]
            # in place: the kernel reads each pre-activation before it writes its gradient
            pre = d_pre = _pre_activations(gates.float(), before, w_hh.float(), b_hn)
        # direct gradient of the last state: of c, or of h in a GRU
        carry = _run_backward(
            ctx.cell, frame, operand, (states[-1], outputs[-1]), grads, pre, d_pre
        )
        size, weights = w_hh.shape[1], w_hh.float()
        parts = _parts_of_states(size, split=b_hn is not None)
        gradients: list[Tensor | None] = [d_pre[:, : len(w_hh)], None, None]
        if needed[1]:
            products = [d_pre[:, columns].t() @ before for columns, _ in parts]
            gradients[1] = torch.cat(products) if len(products) > 1 else products[0]
        if b_hn is not None:
            gradients[2] = d_pre[:, 3 * size :].sum(0)
        first = d_pre[frame.first] if needed[3] else d_pre[:0]  # [S, 4H]
        if b_hn is None:
            gradients += [first @ weights, carry]
        elif needed[3]:
            for columns, rows in parts:
                carry = carry.addmm(first[:, columns], weights[rows])
            gradients.append(carry)
        else:
            gradients.append(None)
        return None, None, None, None, *_in_dtypes(gradients, needed, ctx.dtypes)


def _parts_of_states(size: int, *, split: bool) -> list[tuple[slice, slice]]:
    """Columns of ``pre`` that h takes part in, each with its rows of ``w_hh``."""
    if not split:
        return [(slice(0, 4 * size), slice(0, 4 * size))]
    # r and z; h's share of n is the fourth block of pre and the third of w_hh
    return [
        (slice(0, 2 * size), slice(0, 2 * size)),
        (slice(3 * size, 4 * size), slice(2 * size, 3 * size)),
    ]


def _pre_activations(gates: Tensor, before: Tensor, w_hh: Tensor, b_hn: Tensor | None) -> Tensor:
    """The pre-activations [M, 4H] of all rows, recomputed by products instead of kept."""
    size = w_hh.shape[1]
    pre = gates.new_empty(len(gates), 4 * size)
    for columns, rows in _parts_of_states(size, split=b_hn is not None):
        added = gates[:, rows] if b_hn is None or columns == rows else b_hn.float()
        torch.addmm(added, before, w_hh[rows].t(), out=pre[:, columns])
    if b_hn is not None:
        pre[:, 2 * size : 3 * size] = gates[:, 2 * size :]
    return pre


def _run_backward(  # noqa: PLR0913 - what the kernels read and write
    cell: Cell,
    frame: Frame,
    w_hh: Tensor,
    last: tuple[Tensor, Tensor],
    grads: Sequence[Tensor | None],
    pre: Tensor,
    d_pre: Tensor,
) -> Tensor:
    """Launch the backward kernel: writes ``d_pre``, returns the gradient of the last state."""
    initial, output = last
    d_hidden, *d_others = grads
    d_hidden = torch.zeros_like(output) if d_hidden is None else d_hidden.contiguous()
    # a kernel needs some pointer: without CELL_USED it is never read
    d_cells = [d_hidden if grad is None else grad.contiguous() for grad in d_others]
    flags = {"CELL_USED": d_others[0] is not None} if d_others else {}
    carry = initial.new_zeros(initial.shape, dtype=torch.float32)
    tensors = initial.float().contiguous(), output, pre, d_hidden, *d_cells, d_pre, carry
    kernels = KERNELS[cell.name]
    both = kernels.backward_resident, kernels.backward_streamed
    frame.launch(both, (w_hh, *tensors), w_hh, backwards=True, **flags)
    return carry


def _in_dtypes(
    gradients: Sequence[Tensor | None], needed: Sequence[bool], dtypes: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Cast float32 gradients to the dtypes of their inputs; None for inputs without gradient."""
    return tuple(
        gradient.to(dtype) if need and gradient is not None else None
        for gradient, need, dtype in zip(gradients, needed, dtypes, strict=True)
    )
