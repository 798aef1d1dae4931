import math

import numpy as np
import pytest
import torch

from rl_specs import Bounded, BoundedContinuous, BoundedDiscrete, ContinuousBox

INF = math.inf


def test_the_dtype_or_the_domain_chooses_the_class():
    assert type(Bounded(0, 1, (3,))) is BoundedContinuous
    assert type(Bounded(0, 1, (3,), dtype=torch.uint8)) is BoundedDiscrete
    assert type(Bounded(0, 1, (3,), None, "int32")) is BoundedDiscrete
    assert type(Bounded(0, 1, (3,), domain="discrete")) is BoundedDiscrete
    assert isinstance(BoundedDiscrete(0, 1, (3,)), Bounded)


def test_the_default_dtype_follows_the_domain():
    assert Bounded(0, 1, (3,)).dtype == torch.float32
    assert BoundedDiscrete(0, 1, (3,)).dtype == torch.int64
    assert Bounded(0, 1, (3,)).domain == "continuous"


def test_the_shape_may_come_from_the_bounds():
    assert Bounded(np.zeros((5, 3)), 1).shape == (5, 3)
    assert Bounded(torch.zeros(5, 1), torch.ones(3)).shape == (5, 3)
    assert Bounded(torch.zeros(3), 1, (5, 3)).low.shape == (5, 3)
    assert Bounded(0, 1, 7).shape == (7,)


def test_bounds_are_copied():
    low = torch.zeros(3)
    array = np.array([1.0, 2.0, 3.0])
    spec = Bounded(low, array)
    low.fill_(-9)
    array[:] = 9
    assert spec.low.tolist() == [0, 0, 0]
    assert spec.high.tolist() == [1, 2, 3]


def test_space_holds_both_bounds():
    spec = Bounded(-1, 2, (3,))
    assert spec.space == ContinuousBox(torch.full((3,), -1.0), torch.full((3,), 2.0))
    low, high = spec.space
    assert (low.unique().tolist(), high.unique().tolist()) == ([-1], [2])


def test_equal_bounds_take_no_memory():
    spec = Bounded(np.zeros((5, 300, 300)), 255, dtype=torch.uint8).expand(7, 5, 300, 300)
    assert spec.low.untyped_storage().nbytes() < 10
    assert spec.clone().low.untyped_storage().nbytes() < 10


def test_bounds_of_integers_are_rounded_inward():
    spec = Bounded(0.5, [1.5, INF], dtype=torch.int8)
    assert spec.low.tolist() == [1, 1]
    assert spec.high.tolist() == [1, 127]


@pytest.mark.parametrize(
    ("low", "high"), [(1, 0), (math.nan, 1), (0, math.nan), (INF, INF), (-INF, -INF)]
)
def test_bounds_with_no_number_between_them_are_refused(low, high):
    with pytest.raises(ValueError, match="expected low <= high with a number between them"):
        Bounded(low, high, (3,))


@pytest.mark.parametrize("high", [256, 256.0, torch.tensor(300), math.nan])
def test_bounds_the_dtype_cannot_hold_are_refused(high):
    with pytest.raises(ValueError, match="can hold"):
        Bounded(0, high, (3,), dtype=torch.uint8)


def test_missing_and_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match=r"Pass math.inf for none"):
        Bounded(low=0, shape=(3,))
    with pytest.raises(TypeError, match="maximum"):
        Bounded(0, 1, (3,), maximum=2)
    with pytest.raises(TypeError, match="complex numbers have no order"):
        Bounded(0, 1, (3,), dtype=torch.complex64)
    with pytest.raises(ValueError, match="domain must be"):
        Bounded(0, 1, (3,), domain="both")


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"pass shape=\(\) for a scalar"):
        Bounded(0, 1)
    with pytest.raises(ValueError, match=r"does not fit the shape \(5,\)"):
        Bounded(torch.zeros(3), 1, (5,))
    with pytest.raises(ValueError, match="must have one shape"):
        Bounded(torch.zeros(3), torch.zeros(5))


def test_is_in_is_closed():
    spec = Bounded([0.0, 1.0], [1.0, 2.0])
    assert spec.is_in(torch.tensor([0.0, 2.0]))
    assert not spec.is_in(torch.tensor([0.0, 2.1]))
    assert not spec.is_in(torch.tensor([math.nan, 1.0]))
    assert Bounded(0, INF, ()).is_in(torch.tensor(INF))


def test_project_clips():
    spec = Bounded(-1, 1, (3,))
    assert spec.project(torch.tensor([-3.0, 0.25, math.inf])).tolist() == [-1.0, 0.25, 1.0]


def test_cardinality_counts_the_whole_box():
    assert Bounded(-1, 1, (2,), dtype=torch.int8).cardinality() == 9
    assert Bounded(0, [1, 4], dtype=torch.uint8).cardinality() == 10
    assert Bounded(0, 1, (2,)).cardinality() == INF
    assert Bounded(-INF, INF, (), dtype=torch.int64).cardinality() == 2**64


def test_casting_changes_the_class():
    spec = Bounded(-1.5, 2.5, (3,)).to(torch.int32)
    assert spec == BoundedDiscrete(-1, 2, (3,), dtype=torch.int32)
    assert spec.to(torch.float64).dtype == torch.float64


def test_dynamic_dimensions_sample_one_element():
    assert Bounded(0, 1, (5, -1)).rand().shape == (5, 1)
    assert Bounded(0, 1, (5, -1)).is_in(torch.zeros(5, 9))


def test_repr_is_short_whatever_the_bounds():
    assert "low=[0.0, 1.0]" in repr(Bounded([0.0, 1.0], 2))
    assert "low=[0.0 .. 99.0]" in repr(Bounded(torch.arange(100.0), 100))
    assert "low=[]" in repr(Bounded(0, 1, (0,)))
