"""Parameters of one layer in one direction, as a recurrence over rows needs them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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


def unprojected(
    x: Tensor, first: Tensor, layer: LayerWeights, w_hr: Tensor
) -> tuple[Tensor, LayerWeights]:
    """Rewrite an LSTM with a projection as one without: inputs ``[M, I + P]`` and parameters."""
    # With h = W_hr m, W_hh h = (W_hh W_hr) m: the recurrence runs over m, from m = 0. The initial
    # h of a segment need not be a projection of any m: it is an additional input [M, P], zero but
    # in first rows.
    w_ih, w_hh = torch.cat([layer.w_ih, layer.w_hh], 1), layer.w_hh @ w_hr
    return torch.cat([x, first], 1), layer._replace(w_ih=w_ih, w_hh=w_hh)
