"""A conformance check for recurrent backends, to call from the tests of an author."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent import reference
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import Cell, RowWeights, States
from rl_tensordict import CPU

__all__ = ["Backend", "Cell", "RowWeights", "check_backend"]


Layer = Callable[..., States]


class Backend(Protocol):
    """Computes one layer in one direction over the rows of all segments.

    A module with this function, or an object with this method. Where the two cells have nothing in
    common, it may have two instead: ``lstm_layer``, with the same arguments but ``cell``, and
    ``gru_layer``, which takes and returns the one state by itself.
    """

    def layer(
        self,
        cell: Cell,
        x: Tensor,
        weights: RowWeights,
        states: tuple[Tensor, ...],
        segments: Segments,
        settings: Settings,
    ) -> tuple[Tensor, ...]:
        """Return h after every row ``[M, H]``, and c of an LSTM after every row or at segment ends.

        Args:
            cell: its ``name`` is ``"lstm"`` or ``"gru"``.
            x: real rows, segment after segment, ``[M, I]``.
            weights: of the layer.
            states: h, and c of an LSTM, that each segment starts from, ``[S, H]`` each.
            segments: where the rows begin and end.
            settings: options of the recurrence.
        """


def check_backend(backend: Backend, *, tolerance: float = 1e-5) -> None:
    """Check that a backend computes what the plain loops compute, and its gradients.

    Segments of equal and of unequal length are run, in an order that is not sorted by length.

    Args:
        backend: computes ``layer``, or ``lstm_layer`` and ``gru_layer``.
        tolerance: largest absolute difference from the loops, in float32.

    Raises:
        AssertionError: values or gradients differ; the message says which.

    Example:
        >>> from rl_recurrent.backends import pack
        >>> check_backend(pack)
    """
    loops, layer, settings = layer_of(reference), layer_of(backend), Settings()
    for lengths in ([3, 1, 5, 2], [4, 4, 4], [1]):
        for cell in CELLS.values():
            _check_cell(cell, lengths, loops, lambda *args: layer(*args, settings), tolerance)


def layer_of(backend: Any) -> Layer:
    """The function of a backend for both cells, made of those for one cell each if need be."""
    if hasattr(backend, "layer"):
        layer: Layer = backend.layer
        return layer

    def either(
        cell: Cell, x: Tensor, weights: RowWeights, states: tuple[Tensor, ...], *layout: Any
    ) -> tuple[Tensor, ...]:
        if cell.num_states > 1:
            after: tuple[Tensor, ...] = backend.lstm_layer(x, weights, states, *layout)
            return after
        return (backend.gru_layer(x, weights, states[0], *layout),)

    return either


def _check_cell(
    cell: Cell, lengths: list[int], loops: Layer, layer: Layer, tolerance: float
) -> None:
    generator, size, hidden = torch.Generator().manual_seed(7), 6, 5
    segments = Segments.from_lengths(torch.tensor(lengths, device=CPU))
    width = cell.num_gates * hidden
    shapes: list[tuple[int, ...]] = [
        (sum(lengths), size),
        (width, size),
        (width, hidden),
        (width,),
        *[(hidden,)] * (cell.num_states == 1),  # b_hn
        *[(len(lengths), hidden)] * cell.num_states,
    ]
    drawn = [torch.randn(shape, generator=generator, device=CPU) for shape in shapes]
    inputs = [one.requires_grad_() for one in drawn]
    x, *weights = inputs[: -cell.num_states]
    states, arguments = tuple(inputs[-cell.num_states :]), RowWeights(*weights)
    expected = loops(cell, x, arguments, states, segments)
    actual = layer(cell, x, arguments, states, segments)
    pairs = list(zip(_at_ends(actual, segments), _at_ends(expected, segments), strict=True))
    for name, (ours, theirs) in zip("hc", pairs, strict=False):
        _compare(f"{cell.name}: {name} of segments {lengths}", ours, theirs, tolerance)
    grads = [
        torch.autograd.grad(torch.stack([o.square().sum() for o in out]).sum(), inputs)
        for out in zip(*pairs, strict=True)
    ]
    for number, (ours, theirs) in enumerate(zip(*grads, strict=True)):
        _compare(
            f"{cell.name}: gradient {number} of segments {lengths}", ours, theirs, 10 * tolerance
        )


def _at_ends(states: tuple[Tensor, ...], segments: Segments) -> list[Tensor]:
    """H after every row, and c at segment ends, which some backends give for every row."""
    hidden, *cells = states
    ends = segments.starts + segments.lengths - 1
    return [hidden, *(c[ends] if len(c) == len(hidden) else c for c in cells)]


def _compare(what: str, ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    if ours.shape != theirs.shape:
        msg = f"{what}: expected the shape {list(theirs.shape)}, got {list(ours.shape)}."
        raise AssertionError(msg)
    difference = float((ours - theirs).detach().abs().max())
    if not difference <= tolerance:
        msg = f"{what}: differs from the plain loops by {difference:.2g}, {tolerance:.2g} allowed."
        raise AssertionError(msg)
