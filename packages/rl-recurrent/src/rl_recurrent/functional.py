"""Recurrent networks as functions: a batch and its segments in, outputs and states out."""

from __future__ import annotations

from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells.cell import States
from rl_recurrent.inputs import check_input, check_states
from rl_recurrent.network import Network, unroll_checked

DEFAULT = Settings()


def lstm(
    x: Tensor,
    segments: Segments,
    states: tuple[Tensor, Tensor] | None,
    network: Network,
    settings: Settings = DEFAULT,
    *,
    every_state: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an LSTM over every segment of a batch.

    i, f, o = σ(a_i), σ(a_f), σ(a_o), g = tanh(a_g) with a = W_ih x + b_ih + W_hh h' + b_hh;
    c = f c' + i g; h = o tanh(c), or its projection. A segment starts from its own state.

    Args:
        x: inputs ``[*B, T, I]``, time last among the dimensions of the batch.
        segments: first rows and lengths of the trajectories in the batch.
        states: h ``[S, L, P]`` and c ``[S, L, H]`` at the start of each segment, L counting
            layers times directions; zeros if None.
        network: the parameters, as ``Network.of(torch.nn.LSTM(...))``.
        settings: the backend and its options.
        every_state: return the states after every row, not at segment ends alone.

    Returns:
        Outputs ``[*B, T, O]``, zero on padding, and h and c at segment ends, ``[S, L, ...]``, or
        after every real row, ``[M, L, ...]``.

    Raises:
        ValueError: a shape, dtype or device does not fit; a backend has no cell states per row.
        RuntimeError: the backend cannot run here.

    Example:
        >>> import torch
        >>> segments = Segments.from_lengths(torch.tensor([2, 4]))
        >>> network = Network.of(torch.nn.LSTM(3, 5))
        >>> out, (h, c) = lstm(torch.randn(6, 3), segments, None, network)
        >>> torch.equal(h[:, 0], out[[1, 5]]), c.shape
        (True, torch.Size([2, 1, 5]))
    """
    out, (h, c) = unroll(x, segments, states, network, settings, every_state=every_state)
    return out, (h, c)


def gru(
    x: Tensor,
    segments: Segments,
    state: Tensor | None,
    network: Network,
    settings: Settings = DEFAULT,
    *,
    every_state: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run a GRU over every segment of a batch.

    r, z = σ(a_r + q_r), σ(a_z + q_z), n = tanh(a_n + r q_n) with a = W_ih x + b_ih and
    q = W_hh h' + b_hh; h = (1 - z) n + z h'. A segment starts from its own state.

    Args:
        x: inputs ``[*B, T, I]``, time last among the dimensions of the batch.
        segments: first rows and lengths of the trajectories in the batch.
        state: h ``[S, L, H]`` at the start of each segment, L counting layers times directions;
            zeros if None.
        network: the parameters, as ``Network.of(torch.nn.GRU(...))``.
        settings: the backend and its options.
        every_state: return the states after every row, not at segment ends alone.

    Returns:
        Outputs ``[*B, T, O]``, zero on padding, and h at segment ends, ``[S, L, H]``, or after
        every real row, ``[M, L, H]``.

    Raises:
        ValueError: a shape, dtype or device does not fit.
        RuntimeError: the backend cannot run here.

    Example:
        >>> import torch
        >>> segments = Segments.from_lengths(torch.tensor([2, 4]))
        >>> out, h = gru(torch.randn(6, 3), segments, None, Network.of(torch.nn.GRU(3, 5)))
        >>> torch.equal(h[:, 0], out[[1, 5]])
        True
    """
    states = None if state is None else (state,)
    out, (h,) = unroll(x, segments, states, network, settings, every_state=every_state)
    return out, h


def unroll(
    x: Tensor,
    segments: Segments,
    states: States | None,
    network: Network,
    settings: Settings = DEFAULT,
    *,
    every_state: bool = False,
) -> tuple[Tensor, States]:
    """Run an LSTM or a GRU over every segment; shapes are those of `lstm` and `gru`."""
    weight, shapes = network.layers[0].w_ih, network.state_shapes
    check_input(x, segments.batch_shape, weight)
    if states is None:
        states = tuple(x.new_zeros(len(segments), *shape) for shape in shapes)
    check_states(states, (len(segments),), weight, shapes)
    return unroll_checked(x, segments, states, network, settings, every_state=every_state)
