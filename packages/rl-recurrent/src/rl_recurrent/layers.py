"""Layers, directions, projections and dropout, combined from runs of one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import dropout

from rl_layout import Segments
from rl_recurrent.backends.dispatch import backend_module
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells.cell import States
from rl_recurrent.cells.weights import LayerWeights, unprojected
from rl_recurrent.network import Network


@dataclass(frozen=True)
class LayerRun:
    """A network on the rows of one batch."""

    network: Network  # the parameters
    segments: Segments  # of the rows
    settings: Settings  # with a backend that is no longer "auto"
    every_state: bool  # states after every row, not at segment ends alone

    def rows(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        """Run every layer: outputs ``[M, O]``, states ``[S, L, H]`` at ends or ``[M, L, H]``."""
        final: list[States] = []
        directions = self.network.num_directions
        for number in range(0, len(self.network.layers), directions):
            if number and self.network.dropout:
                x = dropout(x, self.network.dropout)
            outs = []
            for which in range(number, number + directions):
                before = tuple(state[:, which] for state in states)
                out, after = self._direction(x, which, before, backwards=which > number)
                outs.append(out)
                final.append(after)
            x = torch.cat(outs, 1) if directions > 1 else outs[0]
        return x, tuple(torch.stack(each, 1) for each in zip(*final, strict=True))

    def _direction(
        self, x: Tensor, which: int, before: States, *, backwards: bool
    ) -> tuple[Tensor, States]:
        """One layer in one direction: outputs ``[M, P]``, states at segment ends or of all rows."""
        layer = self.network.layers[which]
        if not backwards:
            return self._layer(x, layer, before)
        offsets = self.segments.offsets
        # first + last row of each segment: row r of a segment is read backwards at first + last - r
        both = self.segments.spread(offsets[:-1] + offsets[1:] - 1)
        mirror = both - torch.arange(len(both), device=both.device)
        out, after = self._layer(x.index_select(0, mirror), layer, before)
        if self.every_state:
            after = tuple(state.index_select(0, mirror) for state in after)
        return out.index_select(0, mirror), after

    def _layer(self, x: Tensor, layer: LayerWeights, before: States) -> tuple[Tensor, States]:
        cell, run = self.network.equations, backend_module(self.settings.backend).layer
        layout = self.segments, self.settings
        if layer.w_hr is None:
            out, *cells = run(cell, x, cell.row_weights(layer), before, *layout)
        else:
            h, c = before
            starts = self.segments.offsets[:-1]
            first = x.new_zeros(len(x), h.shape[1]).index_copy(0, starts, h)
            x, whole = unprojected(x, first, layer, layer.w_hr)
            states = torch.zeros_like(c), c
            hidden, *cells = run(cell, x, cell.row_weights(whole), states, *layout)
            out = hidden @ layer.w_hr.t()
        if self.settings.backend != "pad":  # which returns cell states at segment ends already
            cells = [self._requested(each) for each in cells]
        return out, (self._requested(out), *cells)

    def _requested(self, states: Tensor) -> Tensor:
        if self.every_state:
            return states
        return states.index_select(0, self.segments.offsets[1:] - 1)


def with_backend(settings: Settings, backend: str) -> Settings:
    """The settings with another backend in place of ``"auto"``."""
    return replace(settings, backend=backend)
