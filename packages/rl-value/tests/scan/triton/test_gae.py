"""One kernel computes generalised advantages of rows on CUDA, as operations of torch do."""

from __future__ import annotations

import math

import pytest
import torch

import rl_value
from rl_value.returns import has_kernel
from rl_value.scan.triton.gae import gae
from rl_value.scan.triton.linear_scan import TileSizes

# numpy, which interprets, warns of products that the kernel computes and then leaves out
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")


def drawn(shape, seed=0):
    """Reward, value, next value, terminated and done."""
    draw = torch.Generator().manual_seed(seed)
    floats = [torch.randn(shape, generator=draw) for _ in range(3)]
    done = torch.rand(shape, generator=draw) < 0.1
    return floats, [done & (torch.rand(shape, generator=draw) < 0.5), done]


def found_by(floats, ends, factors, sizes, device):
    arrays, flags = (tuple(each.to(device) for each in group) for group in (floats, ends))
    return [each.cpu() for each in gae(arrays, flags, factors, floats[0].shape[-2], sizes)]


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (90, 1), (3, 29, 1)])
@pytest.mark.parametrize("factors", [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_the_kernel_agrees_with_the_loop(shape, factors, device):
    floats, ends = drawn(shape)
    names = "reward", "value", "next_value", "terminated", "done"
    given = dict(zip(names, (*(each.double() for each in floats), *ends), strict=True))
    wanted = rl_value.gae(**given, gamma=factors[0], lmbda=factors[1])
    for sizes in (TileSizes(16, 8, 4), None):
        found = found_by(floats, ends, factors, sizes, device)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=2e-6)


def test_nothing_passes_an_end(device):
    floats, ends = drawn((40, 1))
    ends[1][20] = True
    ends[0][20] = True
    clean = found_by(floats, ends, (0.99, 0.95), TileSizes(16, 8, 4), device)
    floats[2][20] = math.nan  # the next value of a step that terminated
    floats[0][21] = math.nan
    dirty = found_by(floats, ends, (0.99, 0.95), TileSizes(16, 8, 4), device)
    for one, other in zip(clean, dirty, strict=True):
        assert torch.equal(one[:21], other[:21])
        assert other[21].isnan()


def test_the_kernel_takes_plain_rows_alone():
    floats, ends = drawn((6, 1))
    half = [each.double() for each in floats]
    wide, flags = drawn((6, 2))
    learned = [each.clone().requires_grad_() for each in floats]
    assert not has_kernel(half, ends, (0.9, 0.9), 0)
    assert not has_kernel(wide, flags, (0.9, 0.9), 0)
    assert not has_kernel(learned, ends, (0.9, 0.9), 0)
    assert not has_kernel(floats, ends, (torch.tensor(0.9), 0.9), 0)
    assert not has_kernel([each[::2] for each in floats], [each[::2] for each in ends], (1, 1), 0)
    with torch.no_grad():
        assert has_kernel(learned, ends, (0.9, 0.9), 0)
    assert has_kernel(floats, ends, (0.9, 0.9), 0)
