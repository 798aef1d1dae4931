"""LSTM: gates i, f, g, o; states h and c.

With a = W_ih x + W_hh h' + b: i, f, o = σ(a_i), σ(a_f), σ(a_o), g = tanh(a_g);
c = f c' + i g, h = o tanh(c).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rl_recurrent.cells.cell import Cell, Factors, LayerWeights, States


def lstm_step(x: Tensor, states: States, layer: LayerWeights) -> States:
    """Step one layer, differentiable: x ``[..., I]``, h ``[..., P]``, c ``[..., H]``."""
    h, c = states
    gates = linear(x, layer.w_ih, layer.b_ih) + linear(h, layer.w_hh, layer.b_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if layer.w_hr is None else linear(h, layer.w_hr)), c


def _torch_layers(x: Tensor, states: States, params: list[Tensor], *options: Any) -> States:
    after: States = torch.lstm(x, states, params, *options)
    return after


def _views(gates: Tensor) -> tuple[Tensor, ...]:
    """All gates ``[n, 4H]``, i and f side by side ``[n, 2H]``, then each alone."""
    size = gates.shape[1] // 4
    i_f, g, o = gates.tensor_split((2 * size, 3 * size), 1)
    i, f = i_f.chunk(2, 1)
    return gates, i_f, i, f, g, o


def _products(w_hh: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    return (w_hh.t(),)


def _open_(
    views: Sequence[Tensor], h: Tensor, products: Sequence[Tensor], _: Tensor | None
) -> None:
    gates, i_f, _, _, g, o = views
    gates.addmm_(h, products[0])
    i_f.sigmoid_()  # i and f in one operation
    g.tanh_()
    o.sigmoid_()


def _advance(
    views: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor], scratch: Tensor
) -> None:
    _, _, i, f, g, o = views
    h, c = after
    torch.mul(f, before[1], out=c).addcmul_(i, g)
    torch.mul(o, torch.tanh(c, out=scratch), out=h)


def _factors_(gates: Tensor, _: None, before: Sequence[Tensor], cell: Tensor) -> Factors:
    # With dc = dc_next + dh * A and A = o (1 - tanh(c)²):
    #   da_i, da_f, da_g = dc * (g i (1-i), c' f (1-f), i (1-g²))
    #   da_o = dh * tanh(c) o (1-o),  dc' = dc * f
    # the steps of the backward pass multiply by A and f
    factors = gates.unflatten(1, (4, -1))
    i, f, g, o = factors.unbind(1)
    forget, tau = f.clone(), cell.tanh_()
    hidden = o * tau
    hidden_to_cell = torch.addcmul(o, hidden, tau, value=-1)
    torch.addcmul(hidden, hidden, o, value=-1, out=o)
    input_part, forget_part = i * g, before[1].mul_(f)
    slope = torch.addcmul(i, input_part, g, value=-1)
    # i, f and g are written last: the lines before read them
    torch.addcmul(input_part, input_part, i, value=-1, out=i)
    torch.addcmul(forget_part, forget_part, f, value=-1, out=f)
    g.copy_(slope)
    return Factors(factors, (hidden_to_cell, forget))


def _factor_views(factors: Tensor) -> tuple[Tensor, ...]:
    """Factors that multiply dc, ``[n, 3, H]``, and the one that multiplies dh, ``[n, H]``."""
    return factors[:, :3], factors[:, 3]


def _gradients_(parts: Sequence[Tensor], d_states: Sequence[Tensor]) -> Tensor:
    i_f_g, o, hidden_to_cell, forget = parts
    dh, dc = d_states
    dc.addcmul_(dh, hidden_to_cell)
    i_f_g.mul_(dc.unsqueeze(1))
    o.mul_(dh)
    return dc.mul_(forget)


LSTM = Cell(
    name="lstm",
    num_gates=4,
    num_states=2,
    hold=(-1, 1, 0, 0),  # i shuts, f opens
    has_inner_bias=False,
    step=lstm_step,
    torch_step=torch.lstm_cell,
    torch_layers=_torch_layers,
    views=_views,
    products=_products,
    open_=_open_,
    advance=_advance,
    factors_=_factors_,
    factor_views=_factor_views,
    gradients_=_gradients_,
)
