"""Advantages by compiled loops, against the loop of the definition and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_value import gae
from rl_value.scan.numba_loops import CHAIN, TILE, gae_rows

GAMMA, DECAY = 0.98, 0.91
SIZES = [1, 7, CHAIN, TILE - 1, TILE, TILE + 1, 2 * TILE + CHAIN + 3]


def drawn(size, share, dtype, seed=0):
    """Rewards, values, next values, terminated rows and cuts."""
    rng = np.random.default_rng(seed)
    cut = rng.random(size) < share
    return (*rng.standard_normal((3, size)).astype(dtype), cut & (rng.random(size) < 0.5), cut)


def run(reward, value, ahead, terminated, cut, gamma=GAMMA, decay=DECAY):
    made = np.empty((2, len(reward)), reward.dtype)
    gae_rows(reward, value, ahead, terminated, cut, gamma, decay, *made)
    return made


def slowly(reward, value, ahead, terminated, cut, gamma=GAMMA, decay=DECAY):
    """The definition, in double precision."""
    found, after = np.empty(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        following = 0.0 if terminated[t] else gamma * float(ahead[t])
        after = float(reward[t]) + following - float(value[t]) + (0 if cut[t] else decay * after)
        found[t] = after
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0, 0.001, 0.02, 0.5, 1])
@pytest.mark.parametrize("size", SIZES)
def test_advantages_are_those_of_the_definition(size, share, dtype):
    given = drawn(size, share, dtype)
    advantage, target = run(*given)
    tolerance = 1e-4 if dtype == np.float32 else 1e-11  # sums of some ten terms near 1
    np.testing.assert_allclose(advantage, slowly(*given), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(target, advantage + given[1])


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_gae_rows_equal_the_loop_for_any_decay(decay):
    given = drawn(2 * TILE + 77, 0.0005, np.float64)
    found = run(*given, gamma=1.0, decay=decay)[0]
    np.testing.assert_allclose(found, slowly(*given, 1.0, decay), rtol=1e-9, atol=1e-9)


def test_next_values_of_terminated_rows_are_not_read():
    given = drawn(TILE + 9, 0.1, np.float32)
    expected = run(*given)
    given[2][given[3]] = np.nan
    np.testing.assert_array_equal(run(*given), expected)


def batch(shape, time_dim, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(3, *shape, generator=generator, dtype=dtype).unbind(0)
    done = torch.rand(shape, generator=generator) < 0.03
    ended = done & (torch.rand(shape, generator=generator) < 0.5)
    return (*values, ended, done), {"gamma": 0.97, "lmbda": 0.9, "time_dim": time_dim}


@pytest.mark.parametrize(("shape", "dim"), [((6_100, 1), -2), ((7, 900, 2), 1), ((1_200, 5), 0)])
def test_gae_is_equal_with_and_without_numba(shape, dim, request):
    given, settings = batch(shape, dim)
    expected = gae(*given, **settings)
    request.getfixturevalue("without_numba")
    for found, wanted in zip(gae(*given, **settings), expected, strict=True):
        assert not found.equal(torch.zeros_like(found))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_with_no_decay_nothing_is_carried():
    one, no = torch.ones(4_000, 1), torch.zeros(4_000, 1, dtype=torch.bool)
    reward = one.clone()
    reward[-1] = torch.nan
    found = gae(reward, one, one, no, no, gamma=0.5, lmbda=0)[0]
    assert found.isnan().sum() == 1
