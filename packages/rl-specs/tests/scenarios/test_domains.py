"""Values of any domain: drawn evenly, projected, masked, indexed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    OneHot,
    Unbounded,
)

INF = math.inf


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (Bounded(-2, 1, (3,), dtype=torch.int8), -2, 1),
        (Bounded([-2, 5], [1, 6], dtype=torch.int64), -2, 6),
        (Bounded(-INF, INF, (3,), dtype=torch.int8), -128, 127),
        (Unbounded((3,), dtype=torch.int8), -128, 127),
        (Unbounded((3,), dtype=torch.bool), False, True),
        (Categorical(4), 0, 3),
        (Categorical(4, mask=torch.tensor([False, True, True, False])), 1, 2),
        (MultiCategorical([2, 4]), 0, 3),
        (Binary(3), 0, 1),
    ],
)
def test_rand_reaches_both_ends_of_an_integer_domain(spec, low, high):
    samples = spec.rand((5000,))
    assert (samples.min().item(), samples.max().item()) == (low, high)


FREE = torch.ones(5, dtype=torch.bool)

FAIR = {
    "categorical": Categorical(5),
    "one-hot": OneHot(5),
    "bounded": Bounded(0, 4, (), dtype=torch.int32),
    "masked": Categorical(5, mask=FREE),
}


@pytest.mark.parametrize("spec", FAIR.values(), ids=FAIR)
def test_choices_have_the_same_chance(spec):
    drawn = spec.rand((10_000,))
    places = drawn.int().argmax(-1) if drawn.ndim == 2 else drawn.long()
    counts = torch.bincount(places, minlength=5)
    # five standard deviations of a binomial count of mean 2000
    assert (counts - 2000).abs().max() < 200


bounds = st.floats(-(2.0**100), 2.0**100, width=32)


@given(st.tuples(bounds, bounds).map(sorted), st.floats(width=32))
def test_projection_is_nearest_between_any_bounds(limits, number):
    low, high = limits
    spec = Bounded(low, high, ())
    found = spec.project(torch.tensor(number)).item()
    assert low <= found <= high
    if not math.isnan(number):
        assert found == min(max(number, low), high)


int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(int64, int64).map(sorted), min_size=2, max_size=3))
def test_integers_of_any_width_stay_between_their_bounds(limits):
    low, high = (torch.tensor(list(side)) for side in zip(*limits, strict=True))
    spec = Bounded(low, high, dtype=torch.int64)
    assert spec.is_in(spec.rand((20,)))


@given(st.data())
def test_any_mask_is_obeyed(data):
    rows = data.draw(
        st.lists(
            st.lists(st.booleans(), min_size=4, max_size=4).filter(any), min_size=3, max_size=3
        )
    )
    mask = torch.tensor(rows)
    spec = Categorical(4, (3,), mask=mask)
    for value in (spec.rand(), spec.project(torch.tensor([-9, 1, 9]))):
        assert mask.gather(-1, value.unsqueeze(-1)).all()
    hot = spec.to_one_hot_spec()
    assert hot.is_in(spec.to_one_hot(spec.rand()))
    assert hot.to_categorical_spec() == spec


@given(
    st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=2, max_size=4),
    st.data(),
)
def test_any_index_of_a_spec_describes_the_indexed_data(sizes, data):
    spec = Unbounded(sizes)
    value = torch.zeros([5 if size < 0 else size for size in sizes])
    index = tuple(
        data.draw(st.sampled_from([0, -1, slice(None), None, Ellipsis]))
        for _ in range(data.draw(st.integers(1, len(sizes))))
    )
    if index.count(Ellipsis) > 1:
        index = tuple(entry for entry in index if entry is not Ellipsis)
    found = spec[index]
    assert found.is_in(value[index])
    assert found.shape.count(-1) == sum(size == 5 for size in value[index].shape)
