"""A recurrent network: its parameters, and its run over the rows of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.functional import pad as pad_last

from rl_layout import Segments
from rl_recurrent.backends import pack, pad
from rl_recurrent.backends.compiled import layer as compiled
from rl_recurrent.backends.dispatch import BackendChoice, Settings, Work, choose
from rl_recurrent.backends.static import scan
from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import Cell, CellName, LayerWeights, RowWeights, States, unprojected


@dataclass(frozen=True)
class Network:
    """Layers of one kind of cell, in the order of ``torch.nn``.

    Attributes:
        cell: ``"lstm"`` or ``"gru"``.
        layers: the parameters of each layer; of both directions in turn if there are two.
        bidirectional: whether every layer also runs backwards in time.
        dropout: share of the features between two layers that is dropped; 0 while not training.

    Example:
        >>> Network.of(nn.GRU(3, 5, num_layers=2)).state_shapes
        ((2, 5),)
    """

    cell: CellName
    layers: tuple[LayerWeights, ...]
    bidirectional: bool = False
    dropout: float = 0.0

    @classmethod
    def of(cls, module: nn.RNNBase) -> Network:
        """Read the parameters of a network of torch.

        Args:
            module: a `torch.nn.LSTM` or `torch.nn.GRU`.

        Returns:
            The same parameters, not copied.

        Raises:
            TypeError: it is neither.

        Example:
            >>> Network.of(nn.LSTM(3, 5, bidirectional=True)).layers[1].w_ih.shape
            torch.Size([20, 3])
        """
        if module.mode not in ("LSTM", "GRU"):
            msg = f"expected torch.nn.LSTM or torch.nn.GRU: got {type(module).__name__}."
            raise TypeError(msg)
        dropout = module.dropout if module.training else 0.0
        layers = tuple([_layer(module, weights) for weights in module.all_weights])
        cell: CellName = "lstm" if module.mode == "LSTM" else "gru"
        return cls(cell, layers, module.bidirectional, dropout)

    def float(self) -> Network:
        """The same in single precision; gradients reach the parameters as they are."""
        return replace(self, layers=tuple(layer.float() for layer in self.layers))

    @property
    def equations(self) -> Cell:
        """The record of the cell."""
        return CELLS[self.cell]

    @property
    def hidden_size(self) -> int:
        """Width H of the cells."""
        return self.layers[0].w_hh.shape[0] // self.equations.num_gates

    @property
    def output_size(self) -> int:
        """Features of an output: the width of h, twice that with two directions."""
        return self.layers[0].w_hh.shape[1] * self.num_directions

    @property
    def num_directions(self) -> int:
        """Directions of time."""
        return 2 if self.bidirectional else 1

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape of each state of one row: layers (times directions) and width; h, then c."""
        rows = len(self.layers)
        shapes = ((rows, self.layers[0].w_hh.shape[1]), (rows, self.hidden_size))
        return shapes[: self.equations.num_states]


class RowLayout(Protocol):
    """Rows of a batch, in which a layer runs over every segment."""

    @property
    def every_state(self) -> bool:
        """Whether states are wanted after every row, not at segment ends alone."""

    def run(self, cell: Cell, x: Tensor, weights: RowWeights, states: States) -> States:
        """Run one layer in one direction: h and c after every row, ``[M, H]`` each."""

    def wanted(self, states: States) -> States:
        """Select the states of one layer, as `run` returns them, that the caller wants."""

    def spread(self, h: Tensor) -> Tensor:
        """States that segments start from, in their first rows; zeros in others, ``[M, P]``."""

    def mirror(self) -> Tensor:
        """The row at the place of each in its reversed segment, int64 ``[M]``."""


def run_layers(
    network: Network, x: Tensor, states: States, rows: RowLayout
) -> tuple[Tensor, States]:
    """Run every layer in every direction: outputs ``[M, O]``, states with layers second."""
    final: list[States] = []
    directions = network.num_directions
    for number in range(0, len(network.layers), directions):
        if number and network.dropout:
            x = dropout(x, network.dropout)
        outs = []
        for which in range(number, number + directions):
            before = tuple([state[:, which] for state in states])
            mirror = rows.mirror() if which > number else None
            inputs = x if mirror is None else x.index_select(0, mirror)
            out, after = _run_layer(network, which, inputs, before, rows)
            if mirror is not None:
                out = out.index_select(0, mirror)
            if mirror is not None and rows.every_state:
                # final states are read at last rows, where the mirrored run has ended
                after = tuple(state.index_select(0, mirror) for state in after)
            outs.append(out)
            final.append(after)
        x = torch.cat(outs, 1) if directions > 1 else outs[0]
    return x, tuple([torch.stack(each, 1) for each in zip(*final, strict=True)])


def _run_layer(
    network: Network, which: int, x: Tensor, before: States, rows: RowLayout
) -> tuple[Tensor, States]:
    """Run one layer in one direction: its output ``[M, P]``, and the states that are wanted."""
    cell, layer = network.equations, network.layers[which]
    if layer.w_hr is None:
        states = rows.run(cell, x, _row_weights(cell, layer), before)
    else:
        h, c = before
        x, whole = unprojected(x, rows.spread(h), layer, layer.w_hr)
        hidden, c = rows.run(cell, x, _row_weights(cell, whole), (torch.zeros_like(c), c))
        states = hidden @ layer.w_hr.t(), c
    return states[0], rows.wanted(states)


def _row_weights(cell: Cell, layer: LayerWeights) -> RowWeights:
    """The parameters with the biases merged that are added to the same sum."""
    w_ih, w_hh, b_ih, b_hh, _ = layer
    if b_ih is None or b_hh is None:
        b_ih = b_hh = w_hh.new_zeros(len(w_hh))
    if not cell.has_inner_bias:
        return RowWeights(w_ih, w_hh, b_ih + b_hh)
    size = len(w_hh) // cell.num_gates
    outer, b_hn = b_hh.split([len(b_hh) - size, size])
    return RowWeights(w_ih, w_hh, b_ih + pad_last(outer, (0, size)), b_hn)


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
) -> BackendChoice:
    """Choose the backend for these inputs, and say why."""
    work = Work(network.cell, network.hidden_size, x.device, x.dtype, every_state)
    return choose(work, segments, settings.backend)


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
    layers = {"pad": pad.layer, "pack": pack.layer, "scan": scan.layer, "compiled": compiled.layer}
    return layers[backend]


def _layer(module: nn.RNNBase, weights: Sequence[Tensor]) -> LayerWeights:
    w_ih, w_hh, *rest = weights
    w_hr = rest.pop() if module.proj_size else None
    b_ih, b_hh = rest if module.bias else (None, None)
    return LayerWeights(w_ih, w_hh, b_ih, b_hh, w_hr)
