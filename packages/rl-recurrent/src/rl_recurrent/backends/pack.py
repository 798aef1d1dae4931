"""Packed sequences: each step runs over all segments that are long enough, without padding.

Time is walked in pieces of a few hundred rows that stay in the cache. A piece gathers its inputs,
multiplies them at once, steps, and scatters its states to their rows. The states are kept and,
unless memory is to be saved, the open gates: otherwise backward finds the gates of a piece again,
with one matrix product. It adds the piece's share of the weights' gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_layout import Segments
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells.cell import Cell, Factors, RowWeights, States

GATES = 1 << 18  # gates of a piece: 1 MB in float32
MIN_ROWS = 128


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
    keep = settings.save != "state" and torch.is_grad_enabled()
    keep = keep and any(t is not None and t.requires_grad for t in tensors)
    return _Packed.apply(cell, step_plan(segments), keep, *tensors)  # type: ignore[no-any-return, no-untyped-call]


class _Packed(torch.autograd.Function):
    """One layer; the tensors are x, w_ih, w_hh, bias, b_hn (None in an LSTM) and the states."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, plan: StepPlan, keep: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, kept = _forward(cell, plan, tensors, keep=keep)
        ctx.save_for_backward(*tensors, *outputs, *kept)
        ctx.cell, ctx.plan = cell, plan
        ctx.set_materialize_grads(False)  # c after every row is seldom used: no zeros for it
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, count = 5 + ctx.cell.num_states, ctx.cell.num_states
        saved = ctx.saved_tensors
        tensors, outputs = saved[:inputs], saved[inputs : inputs + count]
        run = _Backward(ctx.cell, ctx.plan, tensors, outputs, grads, ctx.needs_input_grad[3:])
        return (None, None, None, *run.gradients(saved[inputs + count :]))


def _forward(
    cell: Cell, plan: StepPlan, tensors: Sequence[Tensor], *, keep: bool
) -> tuple[States, Sequence[Tensor]]:
    """States after every row ``[M, H]``, and what is kept: open gates, and h's share of n."""
    x, w_ih, w_hh, bias, b_hn, *initial = tensors
    size, width = w_hh.shape[1], w_hh.shape[0]
    out = tuple([x.new_empty(len(x), size) for _ in initial])
    pieces = plan.pieces(_piece_rows(width))
    rows = max((len(piece.rows) for piece in pieces), default=0)
    gates = x.new_empty(len(x) if keep else rows, width)
    # h's share of n in a GRU, which backward needs next to the gates; of one step if it is not
    has_share = keep and b_hn is not None
    scratch = x.new_empty(len(x) if has_share else plan.num_segments, size)
    # two of each, since a piece begins with the states that the one before ended with
    memory = x.new_empty(2, len(initial), rows, size)
    # transposed in memory: products of few rows are faster by it
    products = [each.contiguous() for each in cell.products(w_hh, b_hn)]
    states: Sequence[Tensor] = [state.index_select(0, plan.order) for state in initial]
    running, num_gates = plan.num_segments, -len(initial)
    for number, piece in enumerate(pieces):
        piece_states = memory[number % 2][:, : len(piece.rows)].unbind(0)
        # inputs of all gates in one product over the rows of the piece, [R, G * H]
        place = piece.of(gates) if keep else gates[: len(piece.rows)]
        sums = torch.addmm(bias, x.index_select(0, piece.rows), w_ih.t(), out=place)
        shares = iter(piece.of(scratch).split(piece.counts)) if has_share else None
        for count, *views in piece.steps(*cell.views(sums), *piece_states):
            if count != running:  # columns are sorted by length: the last ones have ended
                states, running = [state[:count] for state in states], count
            opened, after = views[:num_gates], views[num_gates:]
            share = scratch[:count] if shares is None else next(shares)
            cell.open_(opened, states[0], products, share)
            cell.advance(opened, states, after, share)
            states = after
        for whole, part in zip(out, piece_states, strict=True):
            whole.index_copy_(0, piece.rows, part)
    return out, [gates, scratch][: keep + has_share]


class _Backward:
    """Backward pass over the pieces, last one first."""

    def __init__(
        self,
        cell: Cell,
        plan: StepPlan,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> None:
        self.x, self.w_ih, self.w_hh, self.bias, b_hn, *self.initial = tensors
        self.cell, self.plan, self.outputs, self.grads = cell, plan, outputs, grads
        width, self.size = self.w_hh.shape
        self.products = cell.products(self.w_hh, b_hn)
        self.pieces = plan.pieces(_piece_rows(width))
        rows = max((len(piece.rows) for piece in self.pieces), default=0)
        self.memory = self.x.new_empty(rows, width)
        self.ones = self.x.new_ones(rows)
        # w_ih, w_hh and the biases: sums of the pieces' shares
        pairs = zip(tensors[1:5], needs[1:5], strict=True)
        self.sums = [torch.zeros_like(t) if need else None for t, need in pairs]
        self.d_x = torch.empty_like(self.x) if needs[0] else None
        # gradient of c at the step before those done so far, [S, H]; h has none of its own to keep
        self.dc = self.x.new_zeros(plan.num_segments, self.size) if len(outputs) > 1 else None

    def gradients(self, kept: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """The gradients of x, w_ih, w_hh, the biases and the states that segments start from."""
        later = self.memory[:0]  # gradients of the gates, one step later
        carry = self.memory[:0, : self.size]  # direct gradient of the last state, h or c
        for piece in reversed(self.pieces):
            x = self.x.index_select(0, piece.rows)
            before = [self._before(which, piece) for which in range(len(self.outputs))]
            gates = self.memory[: len(piece.rows)]
            if kept:
                gates.copy_(piece.of(kept[0]))
                inner = piece.of(kept[1]).clone() if len(kept) > 1 else None
            else:  # one product over all rows, since every state before a row is known
                torch.addmm(self.bias, x, self.w_ih.t(), out=gates)
                inner = self.cell.open_(self.cell.views(gates), before[0], self.products, None)
            cells = None if self.dc is None else self.outputs[1].index_select(0, piece.rows)
            factors = self.cell.factors_(gates, inner, before, cells)
            dh = self._output_gradient(0, piece)
            dh = self.x.new_zeros(len(piece.rows), self.size) if dh is None else dh
            later, carry = self._steps(piece, gates, factors, dh, (later, carry))
            later = later.clone()  # the next piece overwrites the memory of these gates
            self._add_shares(piece, x, before[0], gates, factors, dh)
        if self.dc is None:
            d_states = [torch.addmm(carry, later, self.w_hh)]
        else:
            d_states = [later @ self.w_hh, self.dc]
        inverse = self.plan.inverse
        return (self.d_x, *self.sums, *(each.index_select(0, inverse) for each in d_states))

    def _before(self, which: int, piece: StepBlock) -> Tensor:
        """A state before each row of a piece, ``[R, H]``."""
        outputs = self.outputs[which]
        if piece.begin:  # every first row is in the first piece
            return outputs.index_select(0, piece.rows - 1)
        inside = outputs.index_select(0, piece.rows[piece.counts[0] :] - 1)
        return torch.cat([self.initial[which].index_select(0, self.plan.order), inside])

    def _output_gradient(self, which: int, piece: StepBlock) -> Tensor | None:
        """The gradient of an output at each row of a piece, ``[R, H]``, in memory of its own."""
        grad = self.grads[which]
        return None if grad is None else grad.index_select(0, piece.rows)

    def _steps(
        self,
        piece: StepBlock,
        gates: Tensor,
        factors: Factors,
        dh: Tensor,
        carried: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Turn the factors of a piece into the gradients of its gates, in place."""
        # dh ``[R, H]`` becomes the whole gradient of h. Returned: the gradients of the first step's
        # gates, and the direct gradient of the last state before that step.
        later, carry = carried
        running, gradients_ = len(later), self.cell.gradients_
        outer = None if self.dc is None else self._output_gradient(1, piece)
        outers: Any = repeat(None) if outer is None else reversed(outer.split(piece.counts))
        views = self.cell.factor_views(factors.gates)
        steps = reversed(list(piece.steps(dh, gates, *views, *factors.steps)))
        for (count, dh_now, d_gates, *parts), dc_now in zip(steps, outers, strict=False):
            if running:  # columns that have a later step
                before = dh_now[:running]
                if self.dc is None:
                    before.add_(carry)
                before.addmm_(later, self.w_hh)
            d_states = [dh_now]
            if self.dc is not None:
                if count != running:  # shorter segments join in, going back
                    carry = self.dc[:count]
                d_states = [dh_now, carry if dc_now is None else carry.add_(dc_now)]
            carry = gradients_(parts, d_states)
            later, running = d_gates, count
        return later, carry

    def _add_shares(
        self,
        piece: StepBlock,
        x: Tensor,
        hidden: Tensor,
        d_gates: Tensor,
        factors: Factors,
        dh: Tensor,
    ) -> None:
        """Add a piece's share to the gradients of x and of the parameters."""
        d_w_ih, d_w_hh, d_bias, d_b_hn = self.sums
        ones = self.ones[: len(d_gates)]
        if d_w_hh is not None:
            d_w_hh.addmm_(d_gates.t(), hidden)
        if factors.new_input is not None:
            # w_hh saw n through r, w_ih sees n itself: the last third of the gates is replaced
            new = d_gates[:, 2 * self.size :]
            if d_b_hn is not None:
                d_b_hn.addmv_(new.t(), ones)
            torch.mul(factors.new_input, dh, out=new)
        if self.d_x is not None:
            self.d_x.index_copy_(0, piece.rows, d_gates @ self.w_ih)
        if d_w_ih is not None:
            d_w_ih.addmm_(d_gates.t(), x)
        if d_bias is not None:
            d_bias.addmv_(d_gates.t(), ones)


def _piece_rows(width: int) -> int:
    return max(MIN_ROWS, GATES // width)


@dataclass(frozen=True)
class StepBlock:
    """Successive steps of a batch, each over all segments that are long enough."""

    rows: Tensor  # row of each cell, step after step, int64 [R], counted over real rows
    counts: list[int]  # how many segments take part in each step, descending
    begin: int  # cells in earlier pieces

    def steps(self, *parts: Tensor) -> Iterator[tuple[Any, ...]]:
        """Split tensors ``[R, ...]`` into views of steps; cheaper than one slice per step."""
        return zip(self.counts, *[part.split(self.counts) for part in parts], strict=True)

    def of(self, cells: Tensor) -> Tensor:
        """Slice this piece out of a tensor over all cells of the batch, ``[M, ...]``."""
        return cells[self.begin : self.begin + len(self.rows)]


class StepPlan:
    """The steps of a batch: step t holds row t of every segment longer than t."""

    # Columns are the segments from the longest to the shortest, so that the columns of a step are
    # the first ones of the step before.

    def __init__(self, segments: Segments) -> None:
        # numpy: the one copy to the host, and less than calls of torch on a minibatch
        lengths = segments.lengths.cpu().numpy()
        order = np.argsort(-lengths, kind="stable")
        descending = lengths[order]
        longest = int(descending[0]) if len(descending) else 0
        ends = np.searchsorted(descending[::-1], np.arange(longest), side="right")
        counts = len(descending) - ends  # segments longer than t, for each step t
        self.counts: list[int] = counts.tolist()
        before = np.cumsum(counts) - counts  # cells of earlier steps
        columns = np.arange(counts.sum()) - np.repeat(before, counts)
        firsts = (np.cumsum(lengths) - lengths)[order]
        rows = firsts[columns] + np.repeat(np.arange(longest), counts)
        device = segments.lengths.device
        self.order, self.rows = (torch.from_numpy(each).to(device) for each in (order, rows))
        self._pieces: dict[int, list[StepBlock]] = {}

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return self.order.shape[0]

    @cached_property
    def inverse(self) -> Tensor:
        """Column of each segment, int64 ``[S]``."""
        return self.order.argsort()

    def pieces(self, min_rows: int) -> list[StepBlock]:
        """Cut time into pieces of at least ``min_rows`` rows; the last may have fewer."""
        if min_rows not in self._pieces:
            self._pieces[min_rows] = self._cut(min_rows)
        return self._pieces[min_rows]

    def _cut(self, min_rows: int) -> list[StepBlock]:
        pieces: list[StepBlock] = []
        counts: list[int] = []
        begin = end = 0
        for step, count in enumerate(self.counts):
            counts.append(count)
            end += count
            if end - begin >= min_rows or step + 1 == len(self.counts):
                pieces.append(StepBlock(self.rows[begin:end], counts, begin))
                counts, begin = [], end
        return pieces


def step_plan(segments: Segments) -> StepPlan:
    """Lay segments out by time; cached as long as the segments live."""
    if segments not in _plans:
        _plans[segments] = StepPlan(segments)
    return _plans[segments]


_plans: WeakKeyDictionary[Segments, StepPlan] = WeakKeyDictionary()
