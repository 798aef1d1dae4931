"""Returns under `torch.vmap` and `torch.func.grad`."""

import pytest
import torch

from rl_value import gae, linear_scan, reward_to_go, td0, td1, td_lambda, vtrace

FUNCTIONS = {
    "gae": lambda r, v, w, d: gae(r, v, w, d, d, gamma=0.9, lmbda=0.7),
    "td0": lambda r, v, w, d: td0(r, w, d, gamma=0.9),
    "td1": lambda r, v, w, d: td1(r, w, d, d, gamma=0.9),
    "td_lambda": lambda r, v, w, d: td_lambda(r, w, d, d, gamma=0.9, lmbda=0.7),
    "reward_to_go": lambda r, v, w, d: reward_to_go(r, d, gamma=0.9),
    "vtrace": lambda r, v, w, d: vtrace(r, v, w, v - 1, d, d, gamma=0.9),
    "linear_scan": lambda r, v, w, d: linear_scan(v.sigmoid(), r, d),
}


def arrays():
    reward, value, ahead = torch.randn(3, 4, 6, 1, dtype=torch.float64)
    return reward, value, ahead, torch.rand(4, 6, 1) < 0.3


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_batch_may_be_mapped_over(name, grad):
    reward, *others = arrays()
    reward.requires_grad_(grad)
    function = FUNCTIONS[name]
    found, expected = torch.vmap(function)(reward, *others), function(reward, *others)
    torch.testing.assert_close(found, expected)
    shared = torch.vmap(function, in_dims=(0, 0, 0, None))(reward, *others[:2], others[2][0])
    assert isinstance(shared, type(expected))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_may_be_taken_of_each(name):
    def total(*given):
        found = FUNCTIONS[name](*given)
        return (found[0] if isinstance(found, tuple) else found).square().sum()

    given = arrays()
    found = torch.vmap(torch.func.grad(total))(*given)
    reward = given[0].requires_grad_()
    total(reward, *given[1:]).backward()
    torch.testing.assert_close(found, reward.grad)


def test_discounts_may_be_mapped_over():
    reward, value, ahead, done = arrays()
    gammas = torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64)

    def advantage(gamma):
        return gae(reward, value, ahead, done, done, gamma=gamma, lmbda=0.7)[0]

    found = torch.vmap(advantage)(gammas)
    for gamma, one in zip(gammas.tolist(), found, strict=True):
        torch.testing.assert_close(one, advantage(gamma))
