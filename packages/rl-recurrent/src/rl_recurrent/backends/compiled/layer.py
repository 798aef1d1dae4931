"""A layer whose segments run through loops that numba compiles: one call forward, one back.

For float32 on a CPU. Some segments at a time walk through time with all that they need in the
cache: states, gates, weights. Kept for backward are the states, the open gates and, in a GRU, h's
share of n; or the states alone, where memory is to be saved: then backward runs forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments
from rl_recurrent.backends.compiled.loops import loaded
from rl_recurrent.backends.compiled.threads import num_threads, run_together
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells.cell import Cell, RowWeights, States
from rl_tensordict.types import Array

# one thread more is worth its start for as many segments and products
MIN_COLUMNS, MIN_PRODUCTS = 8, 2**23
NONE = np.empty((0, 0), np.float32)  # rows that are not there, or not wanted
NO_BIAS = np.empty(0, np.float32)


def layer(
    cell: Cell,
    x: Tensor,
    weights: RowWeights,
    states: States,
    segments: Segments,
    settings: Settings,
) -> States:
    """Run one layer in one direction: the states after every row, ``[M, H]`` each."""
    tensors = x, *weights, *states
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    run = _Run(cell.num_states > 1, segments, weights)
    keep = keep and settings.save != "state"
    return _Compiled.apply(run, keep, *tensors)  # type: ignore[no-any-return, no-untyped-call]


class _Compiled(torch.autograd.Function):
    """One layer; the tensors are x, w_ih, w_hh, bias, b_hn (None in an LSTM) and the states."""

    @staticmethod
    def forward(ctx: Any, run: _Run, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, w_hh = tensors[0], tensors[2]
        size = w_hh.shape[1]
        outs = tuple([x.new_empty(len(x), size) for _ in tensors[5:]])
        kept = x.new_empty(len(x) if keep else 0, 4 * size)
        run.forward(tensors, outs, kept)
        ctx.save_for_backward(*tensors, *outs, kept)
        ctx.run = run
        ctx.set_materialize_grads(False)  # c after every row is seldom used: no zeros for it
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, kept = ctx.saved_tensors
        count = len(grads)
        tensors, outs = saved[:-count], saved[-count:]
        if not len(kept):
            kept = tensors[0].new_empty(len(tensors[0]), 4 * tensors[2].shape[1])
            ctx.run.forward(tensors, [torch.empty_like(out) for out in outs], kept)
        needs = ctx.needs_input_grad[2:]
        return (None, None, *ctx.run.backward(tensors, outs, kept, grads, needs))


class _Run:
    """The segments of a batch, dealt to threads, and the calls of the loops over them."""

    def __init__(self, is_lstm: bool, segments: Segments, weights: RowWeights) -> None:
        lengths = _array(segments.lengths)
        firsts = np.cumsum(lengths) - lengths
        longest_first = np.argsort(-lengths, kind="stable")
        products = segments.num_real * (weights.w_ih.numel() + weights.w_hh.numel())
        most = min(len(lengths) // MIN_COLUMNS, products // MIN_PRODUCTS)
        parts = min(most, num_threads()) if most > 1 else 1
        self.is_lstm = is_lstm
        # one after the other to each thread in turn, so that all have segments of all lengths
        self.plans = [(firsts, lengths, longest_first[part::parts].copy()) for part in range(parts)]

    def forward(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], kept: Tensor) -> None:
        """Write the states after every row, and what is kept if there is room for it."""
        x, w_ih, w_hh, bias, b_hn, *starts = tensors
        weights = _array(w_ih.t()), _array(w_hh.t()), _array(bias), _flat(b_hn)
        arrays = _array(x), *weights, _pair(starts), _pair(outs), _array(kept)
        _run(loaded().forward, [(self.is_lstm, plan, *arrays) for plan in self.plans])

    def backward(
        self,
        tensors: Sequence[Tensor],
        outs: Sequence[Tensor],
        kept: Tensor,
        grads: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """The gradients of the tensors that need one; those of states are found anyway."""
        x, w_ih, w_hh, *_, first = tensors
        d_x = x.new_empty(x.shape) if needs[0] else None
        d_starts = [first.new_empty(first.shape) for _ in outs]
        # each thread adds up its own [P, ...]
        pairs = zip(tensors[1:5], needs[1:5], strict=True)
        parts = len(self.plans)
        sums = [x.new_zeros(parts, *each.shape) if need else None for each, need in pairs]
        inputs = _array(x), _array(w_ih), _array(w_hh)
        states = _pair(tensors[5:]), _pair(outs), _array(kept), _pair(grads)
        calls = []
        for part, plan in enumerate(self.plans):
            own = [None if each is None else each[part] for each in sums]
            arrays = (*map(_rows, own[:2]), *map(_flat, own[2:]))
            wanted = _rows(d_x), arrays, _pair(d_starts)
            calls.append((self.is_lstm, plan, *inputs, *states, *wanted))
        _run(loaded().backward, calls)
        totals = [None if each is None else each.sum(0) for each in sums]
        return [d_x, *totals, *d_starts]


def _run(function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    if len(calls) == 1:
        function(*calls[0])
    else:
        run_together(function, calls)


def _array(tensor: Tensor) -> Array:
    """The memory of a tensor, or of a copy whose rows follow each other."""
    return tensor.detach().contiguous().numpy()


def _rows(tensor: Tensor | None) -> Array:
    return NONE if tensor is None else _array(tensor)


def _flat(tensor: Tensor | None) -> Array:
    return NO_BIAS if tensor is None else _array(tensor)


def _pair(tensors: Sequence[Tensor | None]) -> tuple[Array, Array]:
    """Two of h and c; there is no c in a GRU."""
    h, *c = map(_rows, tensors)
    return h, c[0] if c else NONE
