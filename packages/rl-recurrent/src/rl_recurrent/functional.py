"""Recurrent networks as functions: a batch and its segments in, outputs and states out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends import pack, pad
from rl_recurrent.backends.dispatch import Choice, Settings, Work, explain_backend
from rl_recurrent.backends.static import scan
from rl_recurrent.cells.cell import Cell, RowWeights, States
from rl_recurrent.network import Network, run_layers

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
    weight, shapes = network.layers[0].w_ih, network.state_shapes
    check_input(x, segments.batch_shape, weight)
    if states is None:
        states = tuple(x.new_zeros(len(segments), *shape) for shape in shapes)
    check_states(states, (len(segments),), weight, shapes)
    return unroll_checked(x, segments, states, network, settings, every_state=every_state)


def unroll_checked(
    x: Tensor,
    segments: Segments,
    states: States,
    network: Network,
    settings: Settings,
    *,
    every_state: bool,
) -> tuple[Tensor, States]:
    """The same, of inputs and states that were checked."""
    choice = choice_for(x, segments, network, settings, every_state=every_state)
    # 16-bit networks are computed in float32 and their results rounded, as Triton kernels do
    kernels = choice.backend == "triton" and x.is_cuda
    narrow = x.dtype in (torch.float16, *([] if kernels else [torch.bfloat16]))
    layout = SegmentRows(segments, settings, choice.backend, every_state)
    rows = segments.gather(x)
    # the dtype is that of the parameters, under autocast too
    with torch.autocast(x.device.type, enabled=False):
        if narrow:
            wide = tuple(state.float() for state in states)
            out, after = run_layers(network.float(), rows.float(), wide, layout)
            out, after = out.to(x.dtype), tuple(state.to(x.dtype) for state in after)
        else:
            out, after = run_layers(network, rows, states, layout)
    return segments.scatter(out), after


def choice_for(
    x: Tensor, segments: Segments, network: Network, settings: Settings, *, every_state: bool
) -> Choice:
    """Choose the backend for these inputs, and say why."""
    work = Work(network.cell, network.hidden_size, x.device, x.dtype, every_state)
    return explain_backend(work, segments, settings)


def check_input(x: Tensor, batch_shape: Sequence[int], weight: Tensor) -> None:
    """Raise for inputs that do not fit the batch or the parameters, of which w_ih is given."""
    expected = (*batch_shape, weight.shape[1])
    if x.shape != expected:
        msg = f"expected inputs of shape {list(expected)}: got {list(x.shape)}."
        raise ValueError(msg)
    if (x.dtype, x.device) != (weight.dtype, weight.device):
        msg = (
            f"expected inputs in {weight.dtype} on {weight.device}, as the parameters are: "
            f"got {x.dtype} on {x.device}."
        )
        raise ValueError(msg)


def check_states(
    states: Sequence[Tensor],
    batch: Sequence[int],
    weight: Tensor,
    shapes: Sequence[Sequence[int]],
    *,
    layers_first: bool = False,
) -> None:
    """Raise for states that do not fit: ``shapes`` are those of one row, layers and width."""
    if len(states) != len(shapes):
        msg = f"expected {len(shapes)} states: got {len(states)}."
        raise ValueError(msg)
    for name, state, (depth, width) in zip("hc", states, shapes, strict=False):
        shape = (depth, *batch, width) if layers_first else (*batch, depth, width)
        if state.shape != shape:
            msg = f"expected the state {name} of shape {list(shape)}: got {list(state.shape)}."
            raise ValueError(msg)
        if (state.dtype, state.device) != (weight.dtype, weight.device):
            msg = (
                f"expected the state {name} in {weight.dtype} on {weight.device}: "
                f"got {state.dtype} on {state.device}."
            )
            raise ValueError(msg)


@dataclass(frozen=True)
class SegmentRows:
    """The real rows of segments, in which a backend runs a layer."""

    segments: Segments
    settings: Settings
    backend: str  # one that runs here, not "auto"
    every_state: bool  # states after every row, not at segment ends alone

    def run(self, cell: Cell, x: Tensor, weights: RowWeights, states: States) -> States:
        """Run one layer in one direction, by the backend."""
        layer = backend_layer(self.backend)
        return layer(cell, x, weights, states, self.segments, self.settings)

    def wanted(self, states: States) -> States:
        """The states of every row ``[M, H]``, or at segment ends ``[S, H]``."""
        if self.every_state:
            return states
        ends = self.segments.offsets[1:] - 1
        h, *cells = states
        if self.backend != "pad":  # which returns cell states at segment ends already
            cells = [c.index_select(0, ends) for c in cells]
        return h.index_select(0, ends), *cells

    def spread(self, h: Tensor) -> Tensor:
        """States ``[S, P]`` in the first rows of segments, ``[M, P]``."""
        rows = h.new_zeros(self.segments.num_real, h.shape[1])
        return rows.index_copy(0, self.segments.offsets[:-1], h)

    def mirror(self) -> Tensor:
        """The row at the place of each in its reversed segment, int64 ``[M]``."""
        offsets = self.segments.offsets
        # first + last row of each segment: row r of a segment is read backwards at first + last - r
        both = self.segments.spread(offsets[:-1] + offsets[1:] - 1)
        return both - torch.arange(len(both), device=both.device)


def backend_layer(backend: str) -> Callable[..., States]:
    """The function of a backend that runs one layer in one direction."""
    if backend == "triton":
        # imported on use: triton is optional, and slow to import
        from rl_recurrent.backends.triton import layer as triton

        return triton.layer
    return {"pad": pad.layer, "pack": pack.layer, "scan": scan.layer}[backend]
