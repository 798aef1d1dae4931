"""Reference implementations: one Python loop over rows each, to test every backend against."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.cells.cell import RowWeights


def lstm_layer(
    x: Tensor, weights: RowWeights, states: tuple[Tensor, Tensor], segments: Segments
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction, one row after another."""
    # With a = W_ih x + W_hh h' + b: c = σ(a_f) c' + σ(a_i) tanh(a_g), h = σ(a_o) tanh(c).
    # x: real rows, segment after segment, ``[M, I]``.
    # states: h and c that each segment starts from, ``[S, H]`` each.
    # returns: h and c after every row, ``[M, H]`` each.
    hidden, cells, row = [], [], 0
    for number, length in enumerate(segments.lengths.tolist()):
        h, c = (state[number] for state in states)
        for _ in range(length):
            a = weights.w_ih @ x[row] + weights.w_hh @ h + weights.bias
            i, f, g, o = a.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            cells.append(c)
            row += 1
    return torch.stack(hidden), torch.stack(cells)


def gru_layer(x: Tensor, weights: RowWeights, state: Tensor, segments: Segments) -> Tensor:
    """Run one layer of a GRU in one direction, one row after another."""
    # With a = W_ih x + b and q = W_hh h': r = σ(a_r + q_r), z = σ(a_z + q_z), n = tanh(a_n + r (q_n
    # + b_hn)), h = (1 - z) n + z h'.
    # x: real rows, segment after segment, ``[M, I]``.
    # state: h that each segment starts from, ``[S, H]``.
    # returns: h after every row, ``[M, H]``.
    hidden, row = [], 0
    for number, length in enumerate(segments.lengths.tolist()):
        h = state[number]
        for _ in range(length):
            a_r, a_z, a_n = (weights.w_ih @ x[row] + weights.bias).chunk(3)
            q_r, q_z, q_n = (weights.w_hh @ h).chunk(3)
            z = (a_z + q_z).sigmoid()
            n = (a_n + (a_r + q_r).sigmoid() * (q_n + weights.inner_bias)).tanh()
            h = (1 - z) * n + z * h
            hidden.append(h)
            row += 1
    return torch.stack(hidden)
