"""The dense cells of torch over blocks of time in which few cells are empty.

Segments of one length are one block, and torch's network runs on it unchanged: oneDNN's LSTM on a
CPU, cuDNN's persistent kernels on CUDA. Otherwise the states are carried from block to block. An
LSTM gets one more input, set in empty cells, which opens the forget gate and shuts the input gate:
c leaves a block as it was at the end of its segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends import pack
from rl_recurrent.backends.block_plan import Block, block_plan
from rl_recurrent.backends.density import is_dense
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells.weights import RowWeights

SHUT = 1e4  # sigmoid of -SHUT and SHUT is exactly 0 and 1 in every dtype


def lstm_layer(
    x: Tensor,
    weights: RowWeights,
    states: tuple[Tensor, Tensor],
    segments: Segments,
    settings: Settings,
) -> tuple[Tensor, Tensor]:
    """Run one layer of an LSTM in one direction: h ``[M, H]``, c at segment ends ``[S, H]``."""
    # torch returns c after the last step only
    if not len(segments):
        return pack.lstm_layer(x, weights, states, segments, settings)  # torch refuses no rows
    if is_dense(segments):
        h, c = (state.unsqueeze(0) for state in states)
        params, _ = _lstm_params(weights, [])
        x = x.view(len(segments), segments.max_length, -1)
        out, _, c = _dense(torch.lstm, x, (h, c), params, batch_first=True)
        return out.flatten(0, 1), c[0]
    plan = block_plan(segments)
    h, c = (state.index_select(0, plan.order).unsqueeze(0) for state in states)
    params, extended_params = _lstm_params(weights, plan.blocks)
    hidden, ended = [], []
    for block, inputs in zip(plan.blocks, plan.gather(x), strict=True):
        columns = block.shape[1]
        ended.append(c[0, columns:])  # columns are sorted by length: these have no later step
        state = h[:, :columns].contiguous(), c[:, :columns].contiguous()
        if block.padding is None:
            out, h, c = _dense(torch.lstm, inputs, state, params)
        else:
            # a huge repeated row would outweigh SHUT and move the gates
            inputs = inputs.masked_fill(block.padding, 0)
            extended = torch.cat([inputs, block.padding.to(x.dtype)], -1)
            out, h, c = _dense(torch.lstm, extended, state, extended_params)
        hidden.append(out)
    cells = torch.cat([c[0], *reversed(ended)])
    return plan.scatter(hidden), cells.index_select(0, plan.inverse)


def gru_layer(
    x: Tensor, weights: RowWeights, state: Tensor, segments: Segments, settings: Settings
) -> Tensor:
    """Run one layer of a GRU in one direction: h after every row, ``[M, H]``."""
    if not len(segments):
        return pack.gru_layer(x, weights, state, segments, settings)  # torch refuses no rows
    inner = torch.nn.functional.pad(weights.inner_bias, (2 * state.shape[1], 0))
    params = [weights.w_ih, weights.w_hh, weights.bias, inner]
    if is_dense(segments):
        x = x.view(len(segments), segments.max_length, -1)
        out, _ = _dense(torch.gru, x, state.unsqueeze(0), params, batch_first=True)
        return out.flatten(0, 1)
    plan, hidden = block_plan(segments), []
    h = state.index_select(0, plan.order).unsqueeze(0)
    for block, inputs in zip(plan.blocks, plan.gather(x), strict=True):
        before = h[:, : block.shape[1]].contiguous()
        out, h = _dense(torch.gru, inputs, before, params)
        hidden.append(out)
    return plan.scatter(hidden)


def _lstm_params(weights: RowWeights, blocks: list[Block]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters for blocks without empty cells, and for those with some."""
    w_ih, w_hh, bias, _ = weights
    rest = [w_hh, bias, torch.zeros_like(bias)]
    if all(block.padding is None for block in blocks):
        return [w_ih, *rest], []
    size = w_hh.shape[1]
    hold = w_ih.new_zeros(4, size)
    hold[0], hold[1] = -SHUT, SHUT  # i shuts, f opens
    return [w_ih, *rest], [torch.cat([w_ih, hold.view(-1, 1)], 1), *rest]


def _dense(
    network: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    state: object,
    params: list[Tensor],
    *,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Run one layer of torch's over a dense block."""
    options = True, 1, 0.0, True, False, batch_first
    if not x.is_cuda:
        return network(x, state, params, *options)
    # cuDNN copies weights into one buffer, which is cheap next to the run
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        return network(x, state, params, *options)
