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
    """What the recurrence of one layer over rows is computed with.

    Attributes:
        w_ih: ``[G * H, I]``.
        w_hh: ``[G * H, H]``.
        bias: ``[G * H]``: all that can be added before the recurrence.
        b_hn: ``[H]``, of a GRU only: the bias that its reset gate multiplies.

    Example:
        >>> lstm_row_weights(LayerWeights(torch.zeros(12, 5), torch.zeros(12, 3))).bias.shape
        torch.Size([12])
    """

    w_ih: Tensor
    w_hh: Tensor
    bias: Tensor
    b_hn: Tensor | None = None

    @property
    def inner_bias(self) -> Tensor:
        """The bias that the reset gate multiplies, ``[H]``.

        Raises:
            ValueError: there is none: the weights are those of an LSTM.
        """
        if self.b_hn is None:
            msg = "the weights of a GRU need b_hn: build them with gru_row_weights."
            raise ValueError(msg)
        return self.b_hn


def lstm_row_weights(layer: LayerWeights) -> RowWeights:
    """Add the two biases of an LSTM up, since both are added to the same sum.

    Args:
        layer: the parameters of the layer.

    Returns:
        The weights of its recurrence.

    Example:
        >>> one = torch.ones(12)
        >>> made = lstm_row_weights(LayerWeights(torch.zeros(12, 5), torch.zeros(12, 3), one, one))
        >>> made.bias[0]
        tensor(2.)
    """
    if layer.b_ih is None or layer.b_hh is None:
        return RowWeights(layer.w_ih, layer.w_hh, layer.w_hh.new_zeros(layer.w_hh.shape[0]))
    return RowWeights(layer.w_ih, layer.w_hh, layer.b_ih + layer.b_hh)


def gru_row_weights(layer: LayerWeights) -> RowWeights:
    """Add the biases of a GRU up, but the one under its reset gate.

    Args:
        layer: the parameters of the layer.

    Returns:
        The weights of its recurrence.

    Example:
        >>> one = torch.ones(9)
        >>> made = gru_row_weights(LayerWeights(torch.zeros(9, 5), torch.zeros(9, 3), one, one))
        >>> made.bias[[0, 3, 6]], made.b_hn[0]
        (tensor([2., 2., 1.]), tensor(1.))
    """
    size = layer.w_hh.shape[1]
    if layer.b_ih is None or layer.b_hh is None:
        bias, b_hn = layer.w_hh.new_zeros(3 * size), layer.w_hh.new_zeros(size)
    else:
        reset_update, b_hn = layer.b_hh.split([2 * size, size])
        bias = layer.b_ih + torch.nn.functional.pad(reset_update, (0, size))
    return RowWeights(layer.w_ih, layer.w_hh, bias, b_hn)


def unprojected(
    x: Tensor, first: Tensor, layer: LayerWeights, w_hr: Tensor
) -> tuple[Tensor, LayerWeights]:
    """Write an LSTM with a projection as one without.

    With h = W_hr m, W_hh h = (W_hh W_hr) m: the recurrence runs over m. The state that a segment
    starts from need not be a projection of any m; it enters as one more input of its first row.

    Args:
        x: ``[M, I]``.
        first: h that a segment starts from in its first row, zeros elsewhere, ``[M, P]``.
        layer: the parameters of the layer.
        w_hr: its projection ``[P, H]``.

    Returns:
        Inputs ``[M, I + P]`` and the parameters of the LSTM over m, which starts from m = 0.

    Example:
        >>> layer = LayerWeights(torch.zeros(12, 5), torch.zeros(12, 2))
        >>> x, made = unprojected(torch.zeros(4, 5), torch.zeros(4, 2), layer, torch.zeros(2, 3))
        >>> x.shape, made.w_hh.shape
        (torch.Size([4, 7]), torch.Size([12, 3]))
    """
    w_ih, w_hh = torch.cat([layer.w_ih, layer.w_hh], 1), layer.w_hh @ w_hr
    return torch.cat([x, first], 1), layer._replace(w_ih=w_ih, w_hh=w_hh)
