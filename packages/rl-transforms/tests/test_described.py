from __future__ import annotations

import pytest
import torch

from rl_specs import Bounded, Unbounded
from rl_transforms.described import described, limited, without_bounds


def test_bounds_change_like_values():
    spec = described(Bounded(0, 255, (2,), dtype=torch.uint8), lambda x: x / 255)
    assert (spec.low.tolist(), spec.high.tolist()) == ([0, 0], [1, 1])
    assert spec.dtype == torch.float32


def test_bounds_are_swapped_by_a_decreasing_change():
    spec = described(Bounded(-1, 3, (2,)), torch.neg)
    assert (spec.low.tolist(), spec.high.tolist()) == ([-3, -3], [1, 1])


def test_clipping_bounds_an_unbounded_leaf():
    spec = limited(Unbounded((2,)), lambda x: x.clamp(-1, None))
    assert (spec.low.tolist(), spec.high.tolist()) == ([-1, -1], [torch.inf, torch.inf])


def test_arbitrary_change_unbounds_the_changed_leaf():
    spec = without_bounds(Bounded(0, 1, (2,)), lambda x: x.double())
    assert isinstance(spec, Unbounded)
    assert (spec.shape, spec.dtype) == ((2,), torch.float64)


def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="sizes of a leaf must be known"):
        described(Unbounded((-1,)), torch.neg)
