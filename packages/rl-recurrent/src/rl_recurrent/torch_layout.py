"""The shapes of `torch.nn.LSTM` and `torch.nn.GRU`, led to runs over segments and back."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rl_layout import Segments
from rl_recurrent.functional import unroll
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
        one = None if states is None else tuple(state.unsqueeze(0) for state in states)
        rows = dense_segments(1, len(x), x.device)
        out, after = unroll(x.unsqueeze(0), rows, one, network, settings)
        return out[0], tuple(state[0] for state in after)
    inputs = x if module.batch_first else x.transpose(0, 1)
    rows = dense_segments(inputs.shape[0], inputs.shape[1], x.device)
    out, after = unroll(inputs, rows, _layers_second(states), network, settings)
    return _with_layers_first((out if module.batch_first else out.transpose(0, 1), after))


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


def _layers_second(states: States | None) -> States | None:
    return None if states is None else tuple(state.transpose(0, 1) for state in states)


def _with_layers_first(made: tuple[Tensor, States]) -> tuple[Tensor, States]:
    out, after = made
    return out, tuple(state.transpose(0, 1) for state in after)
