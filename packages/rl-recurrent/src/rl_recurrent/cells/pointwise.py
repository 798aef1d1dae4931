"""Element-wise equations of the gates: forward in place, and the factors of the backward pass.

The partial derivatives of a step depend on its states and gates alone. They are computed for all
rows at once; the backward pass over time then multiplies them with the gradients of the outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LSTMGates(NamedTuple):
    """Views of the gates of some rows; taken for many rows at once, they can be cut into steps."""

    i_f: Tensor  # i and f side by side, [n, 2H]
    i: Tensor  # [n, H]
    f: Tensor  # [n, H]
    g: Tensor  # [n, H]
    o: Tensor  # [n, H]

    @classmethod
    def of(cls, gates: Tensor) -> LSTMGates:
        """Take the views."""
        i_f, g, o = gates.tensor_split((gates.shape[1] // 2, 3 * gates.shape[1] // 4), 1)
        i, f = i_f.chunk(2, 1)
        return cls(i_f, i, f, g, o)


def lstm_gates_(gates: LSTMGates) -> None:
    """Apply sigmoid to i, f and o and tanh to g, in place."""
    gates.i_f.sigmoid_()
    gates.g.tanh_()
    gates.o.sigmoid_()


def lstm_states(
    gates: LSTMGates, before: Tensor, out: tuple[Tensor, Tensor], scratch: Tensor
) -> None:
    """Step the states: c = f * c' + i * g, h = o * tanh(c)."""
    hidden, cell = out
    torch.mul(gates.f, before, out=cell).addcmul_(gates.i, gates.g)
    torch.mul(gates.o, torch.tanh(cell, out=scratch), out=hidden)


def lstm_factors_(gates: Tensor, before: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the open gates by the factors of their gradients, in place."""
    # With dc = dc_next + dh * A and A = o (1 - tanh(c)²):
    #   da_i, da_f, da_g = dc * (g i (1-i), c' f (1-f), i (1-g²))
    #   da_o = dh * tanh(c) o (1-o),  dc' = dc * f
    # gates [n, 4H] become the factors [n, 4, H]; before (c') and cell (c) are overwritten.
    # Returned: the factors, A and f, [n, H] each.
    factors = gates.unflatten(1, (4, -1))
    i, f, g, o = factors.unbind(1)
    forget, tau = f.clone(), cell.tanh_()
    hidden = o * tau
    hidden_to_cell = torch.addcmul(o, hidden, tau, value=-1)
    torch.addcmul(hidden, hidden, o, value=-1, out=o)
    input_part, forget_part = i * g, before.mul_(f)
    slope = torch.addcmul(i, input_part, g, value=-1)
    torch.addcmul(input_part, input_part, i, value=-1, out=i)
    torch.addcmul(forget_part, forget_part, f, value=-1, out=f)
    g.copy_(slope)
    return factors, hidden_to_cell, forget


class GRUGates(NamedTuple):
    """Views of the gates of some rows; taken for many rows at once, they can be cut into steps."""

    r_z: Tensor  # r and z side by side, [n, 2H]
    r: Tensor  # [n, H]
    z: Tensor  # [n, H]
    n: Tensor  # [n, H]

    @classmethod
    def of(cls, gates: Tensor) -> GRUGates:
        """Take the views."""
        r_z, new = gates.tensor_split((2 * gates.shape[1] // 3,), 1)
        r, z = r_z.chunk(2, 1)
        return cls(r_z, r, z, new)


def gru_gates_(gates: GRUGates, inner: Tensor) -> None:
    """Apply sigmoid to r and z, then n = tanh(n_x + r * q) with q = inner, in place."""
    gates.r_z.sigmoid_()
    gates.n.addcmul_(gates.r, inner).tanh_()


def gru_state(gates: GRUGates, before: Tensor, out: Tensor) -> None:
    """Step the state: h = n + z * (h' - n)."""
    torch.lerp(gates.n, before, gates.z, out=out)


def gru_factors_(gates: Tensor, inner: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the open gates by the factors of their gradients, in place."""
    # With C = (1-z) (1-n²):
    #   da_n = dh * C,  da_z = dh * (h'-n) z (1-z),  da_r = dh * C q r (1-r)
    #   dh' = dh * z + (da_r, da_z, da_n r) W_hh
    # gates [n, 3H] become the factors of da_r, da_z and da_n r, [n, 3, H]; inner (q) is
    # overwritten. Returned: the factors, C and z, [n, H] each.
    factors = gates.unflatten(1, (3, -1))
    r, z, n = factors.unbind(1)
    update = z.clone()
    opposite = 1 - update
    torch.mul(before - n, opposite, out=z).mul_(update)
    hidden_to_new = opposite.addcmul_(opposite, n.mul_(n), value=-1)
    torch.mul(hidden_to_new, r, out=n)
    inner.mul_(n)  # C q r
    torch.addcmul(inner, inner, r, value=-1, out=r)
    return factors, hidden_to_new, update
