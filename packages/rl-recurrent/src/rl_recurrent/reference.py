"""Reference implementations: one Python loop over rows each, to test every backend against."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.cells.cell import RowWeights


def lstm_layer(
    x: Tensor, weights: RowWeights, states: tuple[Tensor, Tensor], segments: Segments
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction, one row after another.

    With a = W_ih x + W_hh h' + b: c = σ(a_f) c' + σ(a_i) tanh(a_g), h = σ(a_o) tanh(c).

    Args:
        x: real rows, segment after segment, ``[M, I]``.
        weights: of the layer.
        states: h and c that each segment starts from, ``[S, H]`` each.
        segments: where the rows begin and end.

    Returns:
        h and c after every row, ``[M, H]`` each.

    Example:
        >>> weights = RowWeights(torch.zeros(8, 3), torch.zeros(8, 2), torch.zeros(8))
        >>> segments = Segments.from_lengths(torch.tensor([2]))
        >>> states = torch.zeros(1, 2), torch.ones(1, 2)
        >>> lstm_layer(torch.zeros(2, 3), weights, states, segments)[1][:, 0]
        tensor([0.5000, 0.2500])
    """
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
    """Run one layer of a GRU in one direction, one row after another.

    With a = W_ih x + b and q = W_hh h': r = σ(a_r + q_r), z = σ(a_z + q_z),
    n = tanh(a_n + r (q_n + b_hn)), h = (1 - z) n + z h'.

    Args:
        x: real rows, segment after segment, ``[M, I]``.
        weights: of the layer.
        state: h that each segment starts from, ``[S, H]``.
        segments: where the rows begin and end.

    Returns:
        h after every row, ``[M, H]``.

    Example:
        >>> weights = RowWeights(*map(torch.zeros, ((6, 3), (6, 2), 6, 2)))
        >>> segments = Segments.from_lengths(torch.tensor([2]))
        >>> gru_layer(torch.zeros(2, 3), weights, torch.ones(1, 2), segments)[:, 0]
        tensor([0.5000, 0.2500])
    """
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
