"""GRU: gates r, z, n; one state h.

With a = W_ih x + b and q = W_hh h': r, z = σ(a_r + q_r), σ(a_z + q_z),
n = tanh(a_n + r (q_n + b_hn)), h = n + z (h' - n). r multiplies h's share of n alone: that share,
"inner", and its bias stay apart from the inputs' sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rl_recurrent.cells.cell import Cell, Factors, LayerWeights, States


def gru_step(x: Tensor, states: States, layer: LayerWeights) -> States:
    """Step one layer, differentiable: x ``[..., I]``, h ``[..., H]``."""
    (h,) = states
    r_x, z_x, n_x = linear(x, layer.w_ih, layer.b_ih).chunk(3, -1)
    r_h, z_h, n_h = linear(h, layer.w_hh, layer.b_hh).chunk(3, -1)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (n + (z_x + z_h).sigmoid() * (h - n),)


def _torch_step(
    x: Tensor,
    states: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> States:
    return (torch.gru_cell(x, states[0], w_ih, w_hh, b_ih, b_hh),)


def _torch_layers(x: Tensor, states: States, params: list[Tensor], *options: Any) -> States:
    after: States = torch.gru(x, states[0], params, *options)
    return after


def _views(gates: Tensor) -> tuple[Tensor, ...]:
    """R and z side by side ``[n, 2H]``, then each gate alone."""
    r_z, n = gates.tensor_split((2 * gates.shape[1] // 3,), 1)
    r, z = r_z.chunk(2, 1)
    return r_z, r, z, n


def _products(w_hh: Tensor, b_hn: Tensor | None) -> tuple[Tensor, ...]:
    size = w_hh.shape[1]
    w_rz, w_n = w_hh.split([2 * size, size])
    if b_hn is None:
        msg = "the weights of a GRU need b_hn, the bias that its reset gate multiplies."
        raise ValueError(msg)
    return w_rz.t(), w_n.t(), b_hn


def _open_(
    views: Sequence[Tensor], h: Tensor, products: Sequence[Tensor], scratch: Tensor | None
) -> Tensor:
    r_z, r, _, n = views
    w_rz, w_n, b_hn = products
    r_z.addmm_(h, w_rz)
    inner = torch.addmm(b_hn, h, w_n, out=scratch)
    r_z.sigmoid_()  # r and z in one operation
    n.addcmul_(r, inner).tanh_()
    return inner


def _advance(
    views: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor], _: Tensor
) -> None:
    _, _, z, n = views
    torch.lerp(n, before[0], z, out=after[0])


def _factors_(gates: Tensor, inner: Tensor, before: Sequence[Tensor], _: None) -> Factors:
    # With C = (1-z) (1-n²):
    #   da_n = dh * C,  da_z = dh * (h'-n) z (1-z),  da_r = dh * C q r (1-r)
    #   dh' = dh * z + (da_r, da_z, da_n r) W_hh
    # gates [n, 3H] become the factors of da_r, da_z and da_n r; inner is q. The steps of the
    # backward pass multiply by z; C is for da_n, which W_ih takes without r
    factors = gates.unflatten(1, (3, -1))
    r, z, n = factors.unbind(1)
    update = z.clone()
    opposite = 1 - update
    torch.mul(before[0] - n, opposite, out=z).mul_(update)
    hidden_to_new = opposite.addcmul_(opposite, n.mul_(n), value=-1)
    torch.mul(hidden_to_new, r, out=n)
    inner.mul_(n)  # C q r
    torch.addcmul(inner, inner, r, value=-1, out=r)
    return Factors(factors, (update,), hidden_to_new)


def _factor_views(factors: Tensor) -> tuple[Tensor, ...]:
    return (factors,)


def _gradients_(parts: Sequence[Tensor], d_states: Sequence[Tensor]) -> Tensor:
    gates, update = parts
    (dh,) = d_states
    gates.mul_(dh.unsqueeze(1))
    return update.mul_(dh)


GRU = Cell(
    name="gru",
    num_gates=3,
    num_states=1,
    hold=None,
    has_inner_bias=True,
    step=gru_step,
    torch_step=_torch_step,
    torch_layers=_torch_layers,
    views=_views,
    products=_products,
    open_=_open_,
    advance=_advance,
    factors_=_factors_,
    factor_views=_factor_views,
    gradients_=_gradients_,
)
