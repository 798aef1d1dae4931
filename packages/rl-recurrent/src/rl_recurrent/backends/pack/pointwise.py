"""What the gates do, row by row: forward in place, and the factors of the backward pass.

Of a step that has gone by, every partial derivative is known before the gradients are: a backward
pass is a product of these factors with what arrives, and can compute them for all rows at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LSTMGates(NamedTuple):
    """Views of the gates of some rows; taken for many rows at once, they can be cut into steps.

    Attributes:
        i_f: i and f side by side, ``[n, 2H]``.
        i: ``[n, H]``.
        f: ``[n, H]``.
        g: ``[n, H]``.
        o: ``[n, H]``.

    Example:
        >>> LSTMGates.of(torch.arange(4.0)[None]).g
        tensor([[2.]])
    """

    i_f: Tensor
    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor

    @classmethod
    def of(cls, gates: Tensor) -> LSTMGates:
        """Take the views.

        Args:
            gates: ``[n, 4H]``, gates i, f, g, o.

        Returns:
            The views.
        """
        i_f, g, o = gates.tensor_split((gates.shape[1] // 2, 3 * gates.shape[1] // 4), 1)
        i, f = i_f.chunk(2, 1)
        return cls(i_f, i, f, g, o)


def lstm_gates_(gates: LSTMGates) -> None:
    """Apply sigmoid to i, f and o and tanh to g, in place.

    Args:
        gates: sums of inputs, states and biases.

    Example:
        >>> gates = torch.zeros(1, 4)
        >>> lstm_gates_(LSTMGates.of(gates))
        >>> gates
        tensor([[0.5000, 0.5000, 0.0000, 0.5000]])
    """
    gates.i_f.sigmoid_()
    gates.g.tanh_()
    gates.o.sigmoid_()


def lstm_states(
    gates: LSTMGates, before: Tensor, out: tuple[Tensor, Tensor], scratch: Tensor
) -> None:
    """Step the states: c = f * c' + i * g, h = o * tanh(c).

    Args:
        gates: open.
        before: c', ``[n, H]``.
        out: where h and c go, ``[n, H]`` each.
        scratch: memory ``[n, H]``.

    Example:
        >>> h, c = torch.empty(1, 1), torch.empty(1, 1)
        >>> gates = LSTMGates.of(torch.tensor([[0.5, 0.5, 1.0, 0.5]]))
        >>> lstm_states(gates, torch.ones(1, 1), (h, c), torch.empty(1, 1))
        >>> c
        tensor([[1.]])
    """
    hidden, cell = out
    torch.mul(gates.f, before, out=cell).addcmul_(gates.i, gates.g)
    torch.mul(gates.o, torch.tanh(cell, out=scratch), out=hidden)


def lstm_factors_(gates: Tensor, before: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the open gates by the factors of their gradients, in place.

    With dc = dc_next + dh * A: da = dc * (g i (1-i), c' f (1-f), i (1-g²)) for i, f, g, and
    da_o = dh * tanh(c) o (1-o); dc' = dc * f.

    Args:
        gates: the open gates ``[n, 4H]``; they become the factors.
        before: c', ``[n, H]``; it is overwritten.
        cell: c, ``[n, H]``; it is overwritten.

    Returns:
        The factors ``[n, 4, H]``, A = o (1 - tanh(c)²) and f, ``[n, H]`` each.

    Example:
        >>> gates = torch.tensor([[0.5, 0.5, 0.0, 0.5]])
        >>> made = lstm_factors_(gates, torch.ones(1, 1), torch.zeros(1, 1))
        >>> made[0].flatten(), made[1]
        (tensor([0.0000, 0.2500, 0.5000, 0.0000]), tensor([[0.5000]]))
    """
    factors = gates.unflatten(1, (4, -1))
    i, f, g, o = factors.unbind(1)
    forget, tau = f.clone(), cell.tanh_()
    shown = o * tau
    towards_cell = torch.addcmul(o, shown, tau, value=-1)
    torch.addcmul(shown, shown, o, value=-1, out=o)
    added, kept = i * g, before.mul_(f)
    slope = torch.addcmul(i, added, g, value=-1)
    torch.addcmul(added, added, i, value=-1, out=i)
    torch.addcmul(kept, kept, f, value=-1, out=f)
    g.copy_(slope)
    return factors, towards_cell, forget


class GRUGates(NamedTuple):
    """Views of the gates of some rows; taken for many rows at once, they can be cut into steps.

    Attributes:
        r_z: r and z side by side, ``[n, 2H]``.
        r: ``[n, H]``.
        z: ``[n, H]``.
        n: ``[n, H]``.

    Example:
        >>> GRUGates.of(torch.arange(3.0)[None]).z
        tensor([[1.]])
    """

    r_z: Tensor
    r: Tensor
    z: Tensor
    n: Tensor

    @classmethod
    def of(cls, gates: Tensor) -> GRUGates:
        """Take the views.

        Args:
            gates: ``[n, 3H]``, gates r, z, n.

        Returns:
            The views.
        """
        r_z, new = gates.tensor_split((2 * gates.shape[1] // 3,), 1)
        r, z = r_z.chunk(2, 1)
        return cls(r_z, r, z, new)


def gru_gates_(gates: GRUGates, inner: Tensor) -> None:
    """Open the gates of a GRU, n = tanh(n_x + r * q), in place.

    Args:
        gates: sums for r and z, and the part of n that comes from the input.
        inner: q, the part of n that comes from the state, ``[n, H]``.

    Example:
        >>> gates = torch.zeros(1, 3)
        >>> gru_gates_(GRUGates.of(gates), torch.ones(1, 1))
        >>> gates
        tensor([[0.5000, 0.5000, 0.4621]])
    """
    gates.r_z.sigmoid_()
    gates.n.addcmul_(gates.r, inner).tanh_()


def gru_state(gates: GRUGates, before: Tensor, out: Tensor) -> None:
    """Step the state: h = n + z * (h' - n).

    Args:
        gates: open.
        before: h', ``[n, H]``.
        out: where h goes, ``[n, H]``.

    Example:
        >>> out = torch.empty(1, 1)
        >>> gru_state(GRUGates.of(torch.tensor([[0.5, 0.5, 0.0]])), torch.ones(1, 1), out)
        >>> out
        tensor([[0.5000]])
    """
    torch.lerp(gates.n, before, gates.z, out=out)


def gru_factors_(gates: Tensor, inner: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the open gates by the factors of their gradients, in place.

    da_n = dh * C with C = (1-z) (1-n²), da_z = dh * (h'-n) z (1-z), da_r = dh * C q r (1-r); what
    the state sees of n is da_n * r; dh' = dh * z + da W_hh.

    Args:
        gates: the open gates ``[n, 3H]``; they become the factors of r, z and n * r.
        inner: q, ``[n, H]``; it is overwritten.
        before: h', ``[n, H]``.

    Returns:
        The factors ``[n, 3, H]``, C and z, ``[n, H]`` each.

    Example:
        >>> gates = torch.tensor([[0.5, 0.5, 0.0]])
        >>> factors, new, update = gru_factors_(gates, torch.ones(1, 1), torch.ones(1, 1))
        >>> factors.flatten(), new
        (tensor([0.1250, 0.2500, 0.2500]), tensor([[0.5000]]))
    """
    factors = gates.unflatten(1, (3, -1))
    r, z, n = factors.unbind(1)
    update = z.clone()
    opposite = 1 - update
    torch.mul(before - n, opposite, out=z).mul_(update)
    towards_new = opposite.addcmul_(opposite, n.mul_(n), value=-1)
    torch.mul(towards_new, r, out=n)
    inner.mul_(n)  # C q r
    torch.addcmul(inner, inner, r, value=-1, out=r)
    return factors, towards_new, update
