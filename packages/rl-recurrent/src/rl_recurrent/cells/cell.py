"""The record of what an LSTM and a GRU differ in; all other code serves both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

CellName: TypeAlias = Literal["lstm", "gru"]
States: TypeAlias = tuple[Tensor, ...]  # h, then c of an LSTM


class LayerWeights(NamedTuple):
    """The parameters of one layer in one direction, in the layout of ``torch.nn``.

    G is 4 for an LSTM (gates i, f, g, o), 3 for a GRU (r, z, n); P is the width of the hidden
    state, H of the cells. They differ in an LSTM with a projection only.

    Attributes:
        w_ih: ``[G * H, I]``.
        w_hh: ``[G * H, P]``.
        b_ih: ``[G * H]``, or None without biases.
        b_hh: ``[G * H]``, or None without biases.
        w_hr: ``[P, H]``, the projection of an LSTM; None without one.

    Example:
        >>> LayerWeights(torch.zeros(12, 5), torch.zeros(12, 3)).w_hr is None
        True
    """

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None

    def float(self) -> LayerWeights:
        """The same parameters in float32."""
        w_ih, w_hh, *rest = self
        others = (None if each is None else each.float() for each in rest)
        return LayerWeights(w_ih.float(), w_hh.float(), *others)


class RowWeights(NamedTuple):
    """Parameters of one layer in the form that backends take."""

    w_ih: Tensor  # [G * H, I]
    w_hh: Tensor  # [G * H, H]
    bias: Tensor  # [G * H]: all biases that are added outside of the recurrence
    b_hn: Tensor | None = None  # [H], of a GRU only: the bias that its reset gate multiplies

    @property
    def inner_bias(self) -> Tensor:
        """The bias that the reset gate multiplies, ``[H]``."""
        if self.b_hn is None:
            msg = "the weights of a GRU need b_hn, the bias that its reset gate multiplies."
            raise ValueError(msg)
        return self.b_hn


class Factors(NamedTuple):
    """The partial derivatives of steps, which depend on their states and gates alone."""

    gates: Tensor  # of the gates by the states after the step, [n, G, H]
    steps: States  # what a step of the backward pass multiplies by besides, [n, H] each
    new_input: Tensor | None = None  # of a GRU: of the inputs' share of n by h, [n, H]


@dataclass(frozen=True)
class Cell:
    """One kind of cell: gates, states, layout of the parameters, equations, twins in torch.

    The equations work in place on n rows, as `LSTM` and `GRU` write them out.
    """

    name: CellName
    num_gates: int  # G: blocks of H rows in w_ih and w_hh
    num_states: int  # h alone, or h and c
    # signs of a large input to each gate that keeps c as it is; None in a cell without c
    hold: tuple[int, ...] | None
    # whether a reset gate multiplies h's share of the last gate, and the bias in it
    has_inner_bias: bool
    # x [n, I], states before, parameters -> states after, in differentiable operations
    step: Callable[[Tensor, States, LayerWeights], States]
    # the same in one call of torch, without a projection: w_ih, w_hh, b_ih, b_hh one by one
    torch_step: Callable[..., States]
    # x, states [L, S, H], parameters, options of torch's network -> output, states at the end
    torch_layers: Callable[..., States]
    # gates [n, G * H] -> views of them, which may be cut into steps
    views: Callable[[Tensor], tuple[Tensor, ...]]
    # w_hh, b_hn -> what multiplies h in a step, and what is added
    products: Callable[[Tensor, Tensor | None], tuple[Tensor, ...]]
    # views of the inputs' sums, h before, products, scratch -> h's share of n in a GRU; opens gates
    open_: Callable[[Sequence[Tensor], Tensor, Sequence[Tensor], Tensor | None], Tensor | None]
    # views of open gates, states before, states after, scratch: writes the states after
    advance: Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Tensor], None]
    # open gates, h's share of n, states before, c after: all are overwritten but h
    factors_: Callable[[Tensor, Any, Sequence[Tensor], Any], Factors]
    # factors of gates -> views of them, which may be cut into steps
    factor_views: Callable[[Tensor], tuple[Tensor, ...]]
    # views and steps of factors, gradients of the states after -> direct gradient of the last state
    # before, without that through w_hh; the factors become the gradients of the gates
    gradients_: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def unprojected(
    x: Tensor, first: Tensor, layer: LayerWeights, w_hr: Tensor
) -> tuple[Tensor, LayerWeights]:
    """Rewrite an LSTM with a projection as one without: inputs ``[M, I + P]`` and parameters."""
    # With h = W_hr m, W_hh h = (W_hh W_hr) m: the recurrence runs over m, from m = 0. The initial
    # h of a segment need not be a projection of any m: it is an additional input [M, P], zero but
    # in first rows.
    w_ih, w_hh = torch.cat([layer.w_ih, layer.w_hh], 1), layer.w_hh @ w_hr
    return torch.cat([x, first], 1), layer._replace(w_ih=w_ih, w_hh=w_hh)
