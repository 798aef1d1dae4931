"""The shapes of `torch.nn.LSTM` and `torch.nn.GRU`, led to runs over segments and back."""

from __future__ import annotations

from functools import lru_cache
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rl_layout import Segments
from rl_recurrent.functional import check_input, check_states, choice_for, unroll
from rl_recurrent.network import Network
from rl_recurrent.settings import Settings
from rl_recurrent.stack import States


def run_network(
    module: nn.RNNBase,
    x: Tensor | PackedSequence,
    states: States | None,
    segments: Segments | None,
    settings: Settings,
) -> tuple[Tensor, States]:
    """Run a network on what `torch.nn` takes, or on a batch with segments.

    Args:
        module: a `torch.nn.LSTM` or `torch.nn.GRU`.
        x: ``[T, I]``, or ``[B, T, I]`` (``[T, B, I]`` where not `batch_first`); with segments
            ``[*B, T, I]``.
        states: ``[L, H]``, or ``[L, B, H]``; with segments ``[L, S, H]``. Zeros if None.
        segments: where the trajectories begin and end; None where every sequence is one.
        settings: the backend and its options.

    Returns:
        Outputs in the shape of the input, and states in theirs.

    Raises:
        TypeError: the input is a packed sequence.
        ValueError: a shape, dtype or device does not fit.

    Example:
        >>> x, network = torch.randn(2, 4, 3), nn.GRU(3, 5, batch_first=True)
        >>> out, (h,) = run_network(network, x, None, None, Settings())
        >>> out.shape, h.shape
        (torch.Size([2, 4, 5]), torch.Size([1, 2, 5]))
    """
    if isinstance(x, PackedSequence):
        msg = "packed sequences are not taken: pass the rows end to end, and segments=."
        raise TypeError(msg)
    network = Network.of(module)
    if segments is not None:
        return _with_layers_first(unroll(x, segments, _layers_second(states), network, settings))
    if x.ndim not in (2, 3):
        msg = f"expected inputs [T, I] or [B, T, I], or segments=: got {list(x.shape)}."
        raise ValueError(msg)
    if x.ndim == 2:
        one = None if states is None else tuple(state.unsqueeze(1) for state in states)
        out, after = _dense(module, network, x.unsqueeze(0), one, settings)
        return out[0], tuple(state.squeeze(1) for state in after)
    inputs = x if module.batch_first else x.transpose(0, 1)
    out, after = _dense(module, network, inputs, states, settings)
    return out if module.batch_first else out.transpose(0, 1), after


@lru_cache(maxsize=16)
def dense_segments(num_sequences: int, num_steps: int, device: torch.device) -> Segments:
    """Segments of one length, kept for the next batch of this shape.

    Args:
        num_sequences: B.
        num_steps: T.
        device: where they lie.

    Returns:
        The segments of a batch ``[B, T]`` without resets.

    Raises:
        ValueError: there is no row.

    Example:
        >>> dense_segments(2, 3, torch.device("cpu"))
        Segments(2 in 6 rows, lengths 3 to 3, 2 cut)
    """
    if not num_sequences * num_steps:
        msg = f"expected at least one row: got [{num_sequences}, {num_steps}]."
        raise ValueError(msg)
    lengths = torch.full((num_sequences,), num_steps, dtype=torch.int64, device=device)
    made = Segments.from_lengths(lengths)
    return Segments(made.starts, lengths, made.kinds, torch.Size([num_sequences, num_steps]))


def _dense(
    module: nn.RNNBase, network: Network, x: Tensor, states: States | None, settings: Settings
) -> tuple[Tensor, States]:
    """Run over sequences ``[B, T, I]`` that are one trajectory each, from states ``[L, B, H]``."""
    rows, shapes = dense_segments(x.shape[0], x.shape[1], x.device), network.state_shapes
    if x.dtype not in (torch.float32, torch.float64):
        return _with_layers_first(unroll(x, rows, _layers_second(states), network, settings))
    check_input(x, rows.batch_shape, network)
    if states is None:
        states = tuple(x.new_zeros(depth, len(x), width) for depth, width in shapes)
    second = _layers_second(states)
    check_states(second, (len(x),), network)
    choice = choice_for(x, rows, network, settings, every_state=False)
    if choice.backend != "pad" or module.proj_size:  # oneDNN has no projections
        return _with_layers_first(unroll(x, rows, second, network, settings))
    with torch.autocast(x.device.type, enabled=False):
        return _torchs_own(module, x, states)


def _torchs_own(module: nn.RNNBase, x: Tensor, states: States) -> tuple[Tensor, States]:
    """All layers in one call of torch, which needs no more than its own network does."""
    params: list[Tensor] = [weight for layer in module.all_weights for weight in layer]
    states = tuple(state.contiguous() for state in states)  # cuDNN takes no others
    depth, dropout = module.num_layers, module.dropout
    options = module.bias, depth, dropout, module.training, module.bidirectional, True
    if len(states) == 1:
        out, h = torch.gru(x, states[0], params, *options)
        return out, (h,)
    out, h, c = torch.lstm(x, states, params, *options)
    return out, (h, c)


@overload
def _layers_second(states: States) -> States: ...
@overload
def _layers_second(states: None) -> None: ...
def _layers_second(states: States | None) -> States | None:
    return None if states is None else tuple(state.transpose(0, 1) for state in states)


def _with_layers_first(made: tuple[Tensor, States]) -> tuple[Tensor, States]:
    out, after = made
    return out, tuple(state.transpose(0, 1) for state in after)
