"""A conformance check for recurrent backends, to call from the tests of an author."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rl_layout import Segments
from rl_recurrent import reference
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells.weights import RowWeights

__all__ = ["Backend", "RowWeights", "check_backend"]


class Backend(Protocol):
    """Computes one layer in one direction over the rows of all segments.

    A module with these two functions, or an object with these two methods.
    """

    def lstm_layer(
        self,
        x: Tensor,
        weights: RowWeights,
        states: tuple[Tensor, Tensor],
        segments: Segments,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        """Return h after every row ``[M, H]``, and c after every row or at segment ends."""

    def gru_layer(
        self, x: Tensor, weights: RowWeights, state: Tensor, segments: Segments, settings: Settings
    ) -> Tensor:
        """Return h after every row, ``[M, H]``."""


def check_backend(backend: Backend, *, tolerance: float = 1e-5) -> None:
    """Check that a backend computes what the plain loops compute, and its gradients.

    Segments of equal and of unequal length are run, in an order that is not sorted by length.

    Args:
        backend: computes ``lstm_layer`` and ``gru_layer``.
        tolerance: largest absolute difference from the loops, in float32.

    Raises:
        AssertionError: values or gradients differ; the message says which.

    Example:
        >>> from rl_recurrent.backends import pack
        >>> check_backend(pack)
    """
    for lengths in ([3, 1, 5, 2], [4, 4, 4], [1]):
        _check_cell(backend, "lstm", lengths, tolerance)
        _check_cell(backend, "gru", lengths, tolerance)


def _check_cell(backend: Backend, cell: str, lengths: list[int], tolerance: float) -> None:
    generator = torch.Generator().manual_seed(7)
    gates, size, hidden = (4 if cell == "lstm" else 3), 6, 5
    segments = Segments.from_lengths(torch.tensor(lengths))
    shapes: list[tuple[int, ...]] = [
        (sum(lengths), size),
        (gates * hidden, size),
        (gates * hidden, hidden),
    ]
    shapes += [(gates * hidden,), (hidden,), (len(lengths), hidden), (len(lengths), hidden)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    expected, actual = (
        _run(which, cell, inputs, segments) for which in (reference, _Bound(backend))
    )
    for name, ours, theirs in zip("hc", actual, expected, strict=False):
        _compare(f"{cell}: {name} of segments {lengths}", ours, theirs, tolerance)
    used = [each for position, each in enumerate(inputs) if position not in _unused(cell)]
    pairs = [
        torch.autograd.grad(torch.stack([o.square().sum() for o in out]).sum(), used)
        for out in (actual, expected)
    ]
    for number, (ours, theirs) in enumerate(zip(*pairs, strict=True)):
        _compare(f"{cell}: gradient {number} of segments {lengths}", ours, theirs, 10 * tolerance)


def _unused(cell: str) -> tuple[int, ...]:
    """Places of inputs that a cell does not have: an LSTM's b_hn, a GRU's cell state."""
    return (4,) if cell == "lstm" else (6,)


class _Bound:
    """A backend with the default settings, called as the reference is."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def lstm_layer(
        self, x: Tensor, weights: RowWeights, states: tuple[Tensor, Tensor], segments: Segments
    ) -> tuple[Tensor, Tensor]:
        return self.backend.lstm_layer(x, weights, states, segments, Settings())

    def gru_layer(
        self, x: Tensor, weights: RowWeights, state: Tensor, segments: Segments
    ) -> Tensor:
        return self.backend.gru_layer(x, weights, state, segments, Settings())


class _Loops(Protocol):
    def lstm_layer(
        self, x: Tensor, weights: RowWeights, states: tuple[Tensor, Tensor], segments: Segments
    ) -> tuple[Tensor, Tensor]: ...

    def gru_layer(
        self, x: Tensor, weights: RowWeights, state: Tensor, segments: Segments
    ) -> Tensor: ...


def _run(which: _Loops, cell: str, inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    x, w_ih, w_hh, bias, b_hn, h, c = inputs
    if cell == "lstm":
        out, cells = which.lstm_layer(x, RowWeights(w_ih, w_hh, bias), (h, c), segments)
        return [
            out,
            cells[segments.starts + segments.lengths - 1] if len(cells) == len(x) else cells,
        ]
    return [which.gru_layer(x, RowWeights(w_ih, w_hh, bias, b_hn), h, segments)]


def _compare(what: str, ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    if ours.shape != theirs.shape:
        msg = f"{what}: expected the shape {list(theirs.shape)}, got {list(ours.shape)}."
        raise AssertionError(msg)
    difference = float((ours - theirs).detach().abs().max())
    if not difference <= tolerance:
        msg = f"{what}: differs from the plain loops by {difference:.2g}, {tolerance:.2g} allowed."
        raise AssertionError(msg)
