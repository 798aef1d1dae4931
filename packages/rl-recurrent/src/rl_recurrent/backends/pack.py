"""Packed sequences: each step runs over all segments that are long enough, without padding.

Time is walked in pieces of a few hundred rows that stay in the cache. A piece gathers its inputs,
multiplies them at once, steps, and scatters its states to their rows. Only the states are kept,
and the open gates of an LSTM unless memory is to be saved: backward finds the gates of a piece
again with one matrix product, and adds its share of the weights' gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments
from rl_recurrent.backends.settings import Settings
from rl_recurrent.backends.step_plan import StepBlock, StepPlan, step_plan
from rl_recurrent.cells import pointwise
from rl_recurrent.cells.pointwise import GRUGates, LSTMGates
from rl_recurrent.cells.weights import RowWeights

CELLS = 1 << 18  # gates of a piece: 1 MB in float32
MIN_ROWS = 128


def lstm_layer(
    x: Tensor,
    weights: RowWeights,
    states: tuple[Tensor, Tensor],
    segments: Segments,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction: h and c after every row, ``[M, H]`` each."""
    w_ih, w_hh, bias, _ = weights
    trained = torch.is_grad_enabled() and any(
        t.requires_grad for t in (x, *states, w_ih, w_hh, bias)
    )
    keep = trained and settings.save != "state"
    inputs = x, w_ih, w_hh, bias, *states, step_plan(segments), keep
    states_after: tuple[Tensor, Tensor] = _LSTM.apply(*inputs)  # type: ignore[no-untyped-call]
    return states_after


def gru_layer(
    x: Tensor, weights: RowWeights, state: Tensor, segments: Segments, settings: Settings
) -> Tensor:
    """Run one layer of a GRU in one direction: h after every row, ``[M, H]``."""
    inputs = x, *weights, state, step_plan(segments)
    hidden: Tensor = _GRU.apply(*inputs)  # type: ignore[no-untyped-call]
    return hidden


# saved tensors of an LSTM: six inputs, hidden and cell states, then the gates if they are kept
_INPUTS, _OUTPUTS, _GATES = slice(6), slice(6, 8), slice(8, None)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *tensors, plan, keep = inputs
        hidden, cell, gates = _lstm_forward(tensors, plan, keep=keep)
        ctx.save_for_backward(*tensors, hidden, cell, *([gates] if keep else []))
        ctx.plan = plan
        ctx.set_materialize_grads(False)  # c after every row is seldom used: no zeros for it
        return hidden, cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, outputs, gates = (ctx.saved_tensors[part] for part in (_INPUTS, _OUTPUTS, _GATES))
        backward = _LSTMBackward(tensors, outputs, grads, ctx.plan, ctx.needs_input_grad)
        return (*backward.run(*gates), None, None)


def _lstm_forward(
    tensors: Sequence[Tensor], plan: StepPlan, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """States after every row ``[M, H]``, and the gates: of all rows if kept, else scratch."""
    x, w_ih, w_hh, bias, h0, c0 = tensors
    size = w_hh.shape[1]
    out = x.new_empty(len(x), size), x.new_empty(len(x), size)
    pieces = plan.pieces(_piece_rows(4 * size))
    rows = max((len(piece.rows) for piece in pieces), default=0)
    gates = x.new_empty(len(x) if keep else rows, 4 * size)
    scratch = x.new_empty(plan.num_segments, size)
    # two of each, since a piece begins with the states that the one before ended with
    memory = x.new_empty(2, 2, rows, size)
    inward = w_hh.t().contiguous()  # products of few rows are faster by it
    h, c = h0.index_select(0, plan.order), c0.index_select(0, plan.order)
    running = plan.num_segments
    for number, piece in enumerate(pieces):
        hidden, cell = (_first_rows(part, piece) for part in memory[number % 2].unbind(0))
        # inputs of all gates in one product over the rows of the piece, [R, 4H]
        place = piece.of(gates) if keep else _first_rows(gates, piece)
        sums = torch.addmm(bias, x.index_select(0, piece.rows), w_ih.t(), out=place)
        steps = piece.steps(sums, *LSTMGates.of(sums), hidden, cell)
        for count, step, *opened, h_after, c_after in steps:
            if count != running:  # columns are sorted by length: the last ones have ended
                h, c, scratch, running = h[:count], c[:count], scratch[:count], count
            step.addmm_(h, inward)
            now = LSTMGates(*opened)
            pointwise.lstm_gates_(now)
            pointwise.lstm_states(now, c, (h_after, c_after), scratch)
            h, c = h_after, c_after
        for whole, part in zip(out, (hidden, cell), strict=True):
            whole.index_copy_(0, piece.rows, part)
    return (*out, gates)


class _Backward:
    """Backward pass over the pieces, last one first; a subclass has the equations of its cell."""

    # inputs: x, w_ih, w_hh, the biases, and the states that segments start from

    gates: int

    def __init__(
        self,
        inputs: list[Tensor],
        outputs: tuple[Tensor, ...],
        grads: tuple[Tensor | None, ...],
        plan: StepPlan,
        needs: tuple[bool, ...],
    ) -> None:
        self.x, self.w_ih, self.w_hh, *_ = inputs
        self.inputs, self.outputs, self.grads = inputs, outputs, grads
        self.plan, self.needs = plan, needs
        self.size = self.w_hh.shape[1]
        self.pieces = plan.pieces(_piece_rows(self.gates * self.size))
        rows = max((len(piece.rows) for piece in self.pieces), default=0)
        self.memory = self.x.new_empty(rows, self.gates * self.size)
        self.ones = self.x.new_ones(rows)
        # w_ih, w_hh and the biases: sums of the pieces' shares
        self.sums = [
            torch.zeros_like(t) if n else None for t, n in zip(inputs[1:], needs[1:], strict=False)
        ]
        self.d_x = torch.empty_like(self.x) if needs[0] else None

    def before(self, which: int, piece: StepBlock) -> Tensor:
        """A state before each row of a piece, ``[R, H]``."""
        first = self.inputs[len(self.inputs) - len(self.outputs) + which]
        outputs = self.outputs[which]
        if piece.begin:  # every first row is in the first piece
            return outputs.index_select(0, piece.rows - 1)
        inside = outputs.index_select(0, piece.rows[piece.counts[0] :] - 1)
        return torch.cat([first.index_select(0, self.plan.order), inside])

    def output_gradient(self, which: int, piece: StepBlock) -> Tensor | None:
        """The gradient of an output at each row of a piece, ``[R, H]``, in memory of its own."""
        grad = self.grads[which]
        return None if grad is None else grad.index_select(0, piece.rows)

    def hidden_gradient(self, piece: StepBlock) -> Tensor:
        """The gradient of h at each row of a piece, ``[R, H]``; zeros if h was not used."""
        grad = self.output_gradient(0, piece)
        return self.x.new_zeros(len(piece.rows), self.size) if grad is None else grad

    def add_inputs(self, piece: StepBlock, x: Tensor, d_gates: Tensor) -> None:
        """Add a piece's share to the gradients of x, w_ih and the bias, from those of the gates."""
        d_w_ih, _, d_bias, *_ = self.sums
        if self.d_x is not None:
            self.d_x.index_copy_(0, piece.rows, d_gates @ self.w_ih)
        if d_w_ih is not None:
            d_w_ih.addmm_(d_gates.t(), x)
        if d_bias is not None:
            d_bias.addmv_(d_gates.t(), self.ones[: len(d_gates)])


class _LSTMBackward(_Backward):
    gates = 4

    def run(self, saved_gates: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The gradients of x, w_ih, w_hh, the bias, h0 and c0."""
        dc = self.x.new_zeros(self.plan.num_segments, self.size)
        later = self.memory[:0]  # gradients of the gates, one step later
        for piece in reversed(self.pieces):
            x, hidden = self.x.index_select(0, piece.rows), self.before(0, piece)
            gates = _first_rows(self.memory, piece)
            if saved_gates is not None:
                gates.copy_(piece.of(saved_gates))
            else:  # one product over all rows, since every state before a row is known
                torch.addmm(self.inputs[3], x, self.w_ih.t(), out=gates)
                pointwise.lstm_gates_(LSTMGates.of(gates.addmm_(hidden, self.w_hh.t())))
            # a copy: the next piece overwrites the memory of these gates
            later = self._steps(piece, gates, dc, later).clone()
            self.add_inputs(piece, x, gates)
            if self.sums[1] is not None:
                self.sums[1].addmm_(gates.t(), hidden)
        inverse = self.plan.inverse
        d_states = (later @ self.w_hh).index_select(0, inverse), dc.index_select(0, inverse)
        return (self.d_x, *self.sums[:3], *d_states)

    def _steps(self, piece: StepBlock, gates: Tensor, dc: Tensor, later: Tensor) -> Tensor:
        """Turn the gates of a piece into their gradients, in place; return the first step's."""
        cell = self.outputs[1].index_select(0, piece.rows)
        factors, hidden_to_cell, forget = pointwise.lstm_factors_(
            gates, self.before(1, piece), cell
        )
        dh, d_cell = self.hidden_gradient(piece), self.output_gradient(1, piece)
        more = () if d_cell is None else (d_cell,)
        steps = piece.steps(dh, hidden_to_cell, factors[:, :3], factors[:, 3], forget, gates, *more)
        running = len(later)
        dc_now = dc[:running]
        for count, here, to_cell, d_i_f_g, d_o, forget_now, da, *more in reversed(list(steps)):
            if running:  # columns that have a later step
                here[:running].addmm_(later, self.w_hh)
            if count != running:  # shorter segments join in, going back
                dc_now, running = dc[:count], count
            if more:
                dc_now.add_(*more)
            dc_now.addcmul_(here, to_cell)
            d_i_f_g.mul_(dc_now.unsqueeze(1))
            d_o.mul_(here)
            dc_now.mul_(forget_now)
            later = da
        return later


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, plan = inputs
        hidden = _gru_forward(tensors, plan)
        ctx.save_for_backward(*tensors, hidden)
        ctx.plan = plan
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, hidden = ctx.saved_tensors
        backward = _GRUBackward(tensors, (hidden,), grads, ctx.plan, ctx.needs_input_grad)
        return (*backward.run(), None)


def _gru_forward(tensors: Sequence[Tensor], plan: StepPlan) -> Tensor:
    x, w_ih, w_hh, bias, b_hn, h0 = tensors
    size = w_hh.shape[1]
    out = x.new_empty(len(x), size)
    pieces = plan.pieces(_piece_rows(3 * size))
    rows = max((len(piece.rows) for piece in pieces), default=0)
    gates, scratch = x.new_empty(rows, 3 * size), x.new_empty(plan.num_segments, size)
    memory = x.new_empty(2, rows, size)
    # apart: r multiplies the state's share of n alone, before it is added
    w_rz, w_n = (part.t().contiguous() for part in w_hh.split([2 * size, size]))
    h, running = h0.index_select(0, plan.order), plan.num_segments
    for number, piece in enumerate(pieces):
        hidden = _first_rows(memory[number % 2], piece)
        sums = torch.addmm(
            bias, x.index_select(0, piece.rows), w_ih.t(), out=_first_rows(gates, piece)
        )
        for count, *opened, after in piece.steps(*GRUGates.of(sums), hidden):
            if count != running:
                h, scratch, running = h[:count], scratch[:count], count
            now = GRUGates(*opened)
            now.r_z.addmm_(h, w_rz)
            pointwise.gru_gates_(now, torch.addmm(b_hn, h, w_n, out=scratch))
            pointwise.gru_state(now, h, after)
            h = after
        out.index_copy_(0, piece.rows, hidden)
    return out


class _GRUBackward(_Backward):
    gates = 3

    def run(self) -> tuple[Tensor | None, ...]:
        """The gradients of x, w_ih, w_hh, the bias, b_hn and h0."""
        later, direct = self.memory[:0], self.memory[:0, : self.size]
        for piece in reversed(self.pieces):
            x, hidden = self.x.index_select(0, piece.rows), self.before(0, piece)
            gates, inner = self._recompute_gates(piece, x, hidden)
            factors, hidden_to_new, update = pointwise.gru_factors_(gates, inner, hidden)
            dh = self.hidden_gradient(piece)
            count = piece.counts[0]
            self._steps(piece, (factors, update, dh), (later, direct))
            later, direct = gates[:count].clone(), update[:count]
            # w_hh saw n through r, w_ih sees n itself: the last third of the gates is replaced
            self._add_states(gates, hidden)
            torch.mul(hidden_to_new, dh, out=gates[:, 2 * self.size :])
            self.add_inputs(piece, x, gates)
        d_state = torch.addmm(direct, later, self.w_hh).index_select(0, self.plan.inverse)
        return (self.d_x, *self.sums[:4], d_state)

    def _recompute_gates(
        self, piece: StepBlock, x: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        w_rz, w_n = self.w_hh.split([2 * self.size, self.size])
        gates = torch.addmm(self.inputs[3], x, self.w_ih.t(), out=_first_rows(self.memory, piece))
        gates[:, : 2 * self.size].addmm_(hidden, w_rz.t())
        inner = torch.addmm(self.inputs[4], hidden, w_n.t())
        pointwise.gru_gates_(GRUGates.of(gates), inner)
        return gates, inner

    def _steps(
        self,
        piece: StepBlock,
        piece_factors: tuple[Tensor, Tensor, Tensor],
        carried: tuple[Tensor, Tensor],
    ) -> None:
        """Turn the factors of a piece into gradients of its gates, in place."""
        # dh [R, H] becomes the whole gradient of h; update [R, H] becomes dh * z, the share that
        # reaches the state before without the gates
        factors, update, dh = piece_factors
        later, direct = carried
        running = len(later)
        steps = piece.steps(dh, factors, update, factors.flatten(1))
        for count, here, da, to_before, d_gates in reversed(list(steps)):
            if running:
                here[:running].add_(direct).addmm_(later, self.w_hh)
            da.mul_(here.unsqueeze(1))
            later, direct, running = d_gates, to_before.mul_(here), count

    def _add_states(self, d_gates: Tensor, hidden: Tensor) -> None:
        """Add a piece's share to the gradients of w_hh and b_hn."""
        _, d_w_hh, _, d_b_hn = self.sums[:4]
        if d_w_hh is not None:
            d_w_hh.addmm_(d_gates.t(), hidden)
        if d_b_hn is not None:
            d_b_hn.addmv_(d_gates[:, 2 * self.size :].t(), self.ones[: len(d_gates)])


def _piece_rows(width: int) -> int:
    return max(MIN_ROWS, CELLS // width)


def _first_rows(memory: Tensor, piece: StepBlock) -> Tensor:
    return memory[: len(piece.rows)]
