"""Conversion between the shapes of `torch.nn.LSTM` and `torch.nn.GRU` and runs over segments."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rl_layout import Segments
from rl_recurrent.arguments import check_tensor
from rl_recurrent.backends.settings import Settings, is_dense
from rl_recurrent.cells.cell import States
from rl_recurrent.functional import check_input, check_states, choice_for, unroll
from rl_recurrent.network import Network


def run_network(
    module: nn.RNNBase,
    x: Tensor | PackedSequence,
    states: States | None,
    segments: Segments | None,
    settings: Settings,
) -> tuple[Tensor, States]:
    """Run a network on what `torch.nn` takes, or on a batch with segments."""
    if isinstance(x, PackedSequence):
        msg = "packed sequences are not taken: pass the rows end to end, and segments=."
        raise TypeError(msg)
    check_tensor("input", x)
    if segments is not None:
        return _over_segments(module, x, states, segments, settings)
    if x.ndim not in (2, 3):
        msg = f"expected inputs [T, I] or [B, T, I], or segments=: got {list(x.shape)}."
        raise ValueError(msg)
    if x.ndim == 2:
        batched = None if states is None else tuple(state.unsqueeze(1) for state in states)
        out, after = _over_sequences(module, x.unsqueeze(0), batched, settings)
        return out[0], tuple(state.squeeze(1) for state in after)
    inputs = x if module.batch_first else x.transpose(0, 1)
    out, after = _over_sequences(module, inputs, states, settings)
    return out if module.batch_first else out.transpose(0, 1), after


@lru_cache(maxsize=16)
def dense_segments(num_sequences: int, num_steps: int, device: torch.device) -> Segments:
    """Segments of one length, cached by shape and device."""
    if not num_sequences * num_steps:
        msg = f"expected at least one row: got [{num_sequences}, {num_steps}]."
        raise ValueError(msg)
    lengths = torch.full((num_sequences,), num_steps, dtype=torch.int64, device=device)
    flat = Segments.from_lengths(lengths)
    return Segments(flat.starts, lengths, flat.kinds, torch.Size([num_sequences, num_steps]))


def _over_sequences(
    module: nn.RNNBase, x: Tensor, states: States | None, settings: Settings
) -> tuple[Tensor, States]:
    """Run over ``[B, T, I]`` with one trajectory per sequence."""
    rows = dense_segments(x.shape[0], x.shape[1], x.device)
    return _over_segments(module, x, states, rows, settings)


def _over_segments(
    module: nn.RNNBase, x: Tensor, states: States | None, segments: Segments, settings: Settings
) -> tuple[Tensor, States]:
    """Run over ``[*B, T, I]``, every segment from its states ``[L, S, H]``."""
    network, count = Network.of(module), len(segments)
    check_input(x, segments.batch_shape, network)
    if states is None:
        states = tuple(x.new_zeros(depth, count, width) for depth, width in network.state_shapes)
    check_states(states, (count,), network, layers_first=True)
    choice = choice_for(x, segments, network, settings, every_state=False)
    of_torch = x.dtype in (torch.float32, torch.float64) and not module.proj_size  # of oneDNN
    if not (choice.backend == "pad" and of_torch and is_dense(segments)):
        second = tuple(state.transpose(0, 1) for state in states)
        out, after = unroll(x, segments, second, network, settings)
        return out, tuple(state.transpose(0, 1) for state in after)
    rows = segments.gather(x).view(count, segments.max_length, -1)
    with torch.autocast(x.device.type, enabled=False):
        out, after = _run_torch(module, rows, states)
    return segments.scatter(out.flatten(0, 1)), after


def _run_torch(module: nn.RNNBase, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Run all layers in one call of torch: the same memory and time as torch's own network."""
    params: list[Tensor] = [weight for layer in module.all_weights for weight in layer]
    states = tuple(state.contiguous() for state in states)  # cuDNN takes no others
    depth, dropout = module.num_layers, module.dropout
    options = module.bias, depth, dropout, module.training, module.bidirectional, True
    if len(states) == 1:
        out, h = torch.gru(x, states[0], params, *options)
        return out, (h,)
    out, h, c = torch.lstm(x, states, params, *options)
    return out, (h, c)
