"""Recurrent networks as functions: a batch and its segments in, outputs and states out."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.dispatch import Choice, Work, explain_backend
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells.cell import States
from rl_recurrent.layers import LayerRun, with_backend
from rl_recurrent.network import Network

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
    check_input(x, segments.batch_shape, network)
    if states is None:
        states = tuple(x.new_zeros(len(segments), *shape) for shape in network.state_shapes)
    check_states(states, (len(segments),), network)
    choice = choice_for(x, segments, network, settings, every_state=every_state)
    run = LayerRun(network, segments, with_backend(settings, choice.backend), every_state)
    # the dtype is that of the parameters, under autocast too
    with torch.autocast(x.device.type, enabled=False):
        out, after = _in_float32(run, segments.gather(x), states)
    return segments.scatter(out), after


def choice_for(
    x: Tensor, segments: Segments, network: Network, settings: Settings, *, every_state: bool
) -> Choice:
    """Choose the backend for these inputs, and say why."""
    work = Work(network.cell, network.hidden_size, x.device, x.dtype, every_state)
    return explain_backend(work, segments, settings)


def check_input(x: Tensor, batch_shape: torch.Size, network: Network) -> None:
    """Raise for inputs that do not fit the batch or the parameters."""
    weight = network.layers[0].w_ih
    expected = [*batch_shape, weight.shape[1]]
    if list(x.shape) != expected:
        msg = f"expected inputs of shape {expected}: got {list(x.shape)}."
        raise ValueError(msg)
    if (x.dtype, x.device) != (weight.dtype, weight.device):
        msg = (
            f"expected inputs in {weight.dtype} on {weight.device}, as the parameters are: "
            f"got {x.dtype} on {x.device}."
        )
        raise ValueError(msg)


def check_states(
    states: States, batch: tuple[int, ...], network: Network, *, layers_first: bool = False
) -> None:
    """Raise for states that do not fit."""
    weight, shapes = network.layers[0].w_ih, network.state_shapes
    if len(states) != len(shapes):
        msg = f"expected {len(shapes)} states: got {len(states)}."
        raise ValueError(msg)
    for name, state, (depth, width) in zip("hc", states, shapes, strict=False):
        shape = [depth, *batch, width] if layers_first else [*batch, depth, width]
        if list(state.shape) != shape:
            msg = f"expected the state {name} of shape {shape}: got {list(state.shape)}."
            raise ValueError(msg)
        if (state.dtype, state.device) != (weight.dtype, weight.device):
            msg = (
                f"expected the state {name} in {weight.dtype} on {weight.device}: "
                f"got {state.dtype} on {state.device}."
            )
            raise ValueError(msg)


def _in_float32(run: LayerRun, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Compute 16-bit networks in float32 and round the results, as the Triton kernels do."""
    kernels = run.settings.backend == "triton" and x.is_cuda
    if x.dtype not in (torch.float16, *([] if kernels else [torch.bfloat16])):
        return run.rows(x, states)
    wide = LayerRun(run.network.float(), run.segments, run.settings, run.every_state)
    out, after = wide.rows(x.float(), tuple(state.float() for state in states))
    return out.to(x.dtype), tuple(state.to(x.dtype) for state in after)
