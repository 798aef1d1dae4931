from __future__ import annotations

import torch
from torch.testing import assert_close

from rl_recurrent.cells import pointwise


def test_lstm_factors_are_the_derivatives():
    sums = torch.randn(6, 12, dtype=torch.float64, requires_grad=True)
    before = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    i, f, g, o = sums.chunk(4, 1)
    c = f.sigmoid() * before + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    dh, dc = torch.randn_like(h), torch.randn_like(c)
    wanted = torch.autograd.grad((h, c), (sums, before), (dh, dc))
    gates = sums.detach().clone()
    pointwise.lstm_gates_(pointwise.LSTMGates.of(gates))
    made = pointwise.lstm_factors_(gates, before.detach().clone(), c.detach().clone())
    factors, hidden_to_cell, forget = made
    whole = dc + dh * hidden_to_cell
    grads = torch.cat([factors[:, :3] * whole[:, None], factors[:, 3:] * dh[:, None]], 1)
    assert_close(grads.flatten(1), wanted[0])
    assert_close(whole * forget, wanted[1])


def test_gru_factors_are_the_derivatives():
    sums = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    inner = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    before = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    r, z, n = sums.chunk(3, 1)
    n = (n + r.sigmoid() * inner).tanh()
    h = (1 - z.sigmoid()) * n + z.sigmoid() * before
    dh = torch.randn_like(h)
    of_sums, of_inner, of_before = torch.autograd.grad(h, (sums, inner, before), dh)
    gates, q = sums.detach().clone(), inner.detach().clone()
    pointwise.gru_gates_(pointwise.GRUGates.of(gates), q)
    factors, hidden_to_new, update = pointwise.gru_factors_(gates, q, before.detach())
    assert_close((factors[:, :2] * dh[:, None]).flatten(1), of_sums[:, :6])
    assert_close(factors[:, 2] * dh, of_inner)
    assert_close(hidden_to_new * dh, of_sums[:, 6:])
    assert_close(update * dh, of_before)
