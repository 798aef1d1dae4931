from __future__ import annotations

import torch
from torch.testing import assert_close

from rl_recurrent.cells import CELLS


def test_lstm_factors_are_the_derivatives():
    sums = torch.randn(6, 12, dtype=torch.float64, requires_grad=True)
    before = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    i, f, g, o = sums.chunk(4, 1)
    c = f.sigmoid() * before + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    dh, dc = torch.randn_like(h), torch.randn_like(c)
    wanted = torch.autograd.grad((h, c), (sums, before), (dh, dc))
    lstm, gates, none = CELLS["lstm"], sums.detach().clone(), torch.zeros(6, 3).double()
    lstm.open_(lstm.views(gates), none, lstm.products(none.new_zeros(12, 3), None), None)
    states = none, before.detach().clone()
    factors = lstm.factors_(gates, None, states, c.detach().clone())
    parts = *lstm.factor_views(factors.gates), *factors.steps
    assert_close(lstm.gradients_(parts, (dh, dc)), wanted[1])
    assert_close(gates, wanted[0])


def test_gru_factors_are_the_derivatives():
    sums = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    inner = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    before = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    r, z, n = sums.chunk(3, 1)
    n = (n + r.sigmoid() * inner).tanh()
    h = (1 - z.sigmoid()) * n + z.sigmoid() * before
    dh = torch.randn_like(h)
    of_sums, of_inner, of_before = torch.autograd.grad(h, (sums, inner, before), dh)
    # with these products h's share of n is the tensor given as h
    gru, gates, eye = CELLS["gru"], sums.detach().clone(), torch.eye(3).double()
    products = eye.new_zeros(3, 6), eye, eye.new_zeros(3)
    q = gru.open_(gru.views(gates), inner.detach(), products, None)
    factors = gru.factors_(gates, q, (before.detach(),), None)
    parts = *gru.factor_views(factors.gates), *factors.steps
    assert_close(gru.gradients_(parts, (dh,)), of_before)
    assert_close(gates[:, :6], of_sums[:, :6])
    assert_close(gates[:, 6:], of_inner)
    assert_close(factors.new_input * dh, of_sums[:, 6:])
