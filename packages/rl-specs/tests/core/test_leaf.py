import numpy as np
import pytest
import torch

from rl_specs import Bounded, Categorical, OneHot, Unbounded


def test_is_in_allows_further_leading_dimensions():
    spec = Unbounded((5, 3))
    assert spec.is_in(torch.zeros(7, 2, 5, 3))
    assert not spec.is_in(torch.zeros(5, 1))
    assert not spec.is_in(torch.zeros(3))


def test_a_dimension_of_size_one_takes_size_one_only():
    assert not Unbounded((1,)).is_in(torch.zeros(7))


def test_is_in_takes_tensors_with_a_gradient():
    assert Bounded(0, 1, (3,)).is_in(torch.zeros(3, requires_grad=True))


def test_encode_takes_numbers_lists_and_arrays():
    spec = Unbounded((5, 3))
    values = np.arange(15.0).reshape(5, 3)
    for value in (values, values.tolist(), [values], values.ravel(), values[::-1][::-1]):
        assert torch.equal(spec.encode(value), torch.arange(15.0).reshape(5, 3))
    assert Unbounded((1,)).encode(3).tolist() == [3.0]


def test_encode_copies_and_takes_any_strides():
    values = np.arange(3.0, dtype=np.float32)
    found = Unbounded((3,)).encode(values[::-1])
    values[:] = 9
    assert found.tolist() == [2.0, 1.0, 0.0]


def test_encode_takes_arrays_that_cannot_be_written():
    values = np.zeros(3)
    values.flags.writeable = False
    assert Unbounded((3,)).encode(values).tolist() == [0, 0, 0]


def test_encode_leaves_tensors_alone():
    value = torch.zeros(7, dtype=torch.int64)
    assert Unbounded((3,)).encode(value) is value


def test_encode_refuses_a_shape_that_does_not_fit():
    with pytest.raises(ValueError, match=r"expected shape \(3,\).* got \(2,\)"):
        Unbounded((3,)).encode([1, 2])


@pytest.mark.parametrize("value", [0.5, 300, -1, 1j, float("nan"), "a", None])
def test_encode_loses_nothing(value):
    with pytest.raises(ValueError, match="expected"):
        Bounded(0, 255, (), dtype=torch.uint8).encode(value)


def test_encode_can_leave_the_result_on_the_cpu():
    spec = Unbounded((3,), device="meta")
    assert spec.encode([1, 2, 3], ignore_device=True).device.type == "cpu"
    assert spec.encode([1, 2, 3]).device.type == "meta"


def test_to_numpy_detaches_and_knows_bfloat16():
    value = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    found = Unbounded((3,), dtype=torch.bfloat16).to_numpy(value)
    assert found.dtype == np.float32
    with pytest.raises(TypeError, match="expected a tensor: got list"):
        Unbounded((3,)).to_numpy([1, 2, 3])


def test_project_takes_other_dtypes_and_leading_dimensions():
    spec = Bounded(0, 2, (3,), dtype=torch.int64)
    found = spec.project(torch.tensor([[-0.6, 1.4, 9.0]] * 5))
    assert found.tolist() == [[0, 1, 2]] * 5
    assert found.dtype == torch.int64


def test_project_refuses_other_shapes_and_kinds():
    with pytest.raises(ValueError, match=r"expected shape \(3,\)"):
        Bounded(0, 1, (3,)).project(torch.zeros(2))
    with pytest.raises(TypeError, match="got list"):
        Bounded(0, 1, (3,)).project([1, 2, 3])
    with pytest.raises(TypeError, match="expected real numbers"):
        Unbounded((3,)).project(torch.zeros(3, dtype=torch.complex64))


def test_equal_specs_agree_in_everything():
    spec = Bounded(0, 1, (3,))
    others = [
        Bounded(0, 1, (5,)), Bounded(0, 2, (3,)), Bounded(0, 1, (3,), dtype=torch.float64),
        Bounded(0, 1, (3,), device="meta"), Bounded(0, 1, (3,), domain="discrete", dtype="float32"),
        Unbounded((3,)), 3,
    ]  # fmt: skip
    assert spec == Bounded(torch.zeros(3), [1, 1, 1])
    assert all(spec != other for other in others)


def test_specs_cannot_be_hashed_because_they_can_change():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Unbounded())


def test_moving_keeps_what_is_held():
    spec = OneHot(3, (5, 3), mask=torch.tensor([True, False, True])).to("meta")
    assert spec.device.type == spec.mask.device.type == "meta"
    assert spec.mask.shape == (5, 3)


def test_a_copy_holds_tensors_of_its_own():
    spec = Categorical(3, mask=torch.tensor([True, False, True]))
    spec.clone().mask[1] = True
    assert spec.mask.tolist() == [True, False, True]


@pytest.mark.parametrize("shape", [(3, 5), (5, 3, 2), (3, 5, 1), (1, 3, 5)])
def test_encode_refuses_another_layout(shape):
    with pytest.raises(ValueError, match=r"expected shape \(5, 3\)"):
        Unbounded((5, 3)).encode(np.zeros(shape))


def test_encode_adds_and_removes_dimensions_of_size_one():
    assert Unbounded((1, 5, 1)).encode(np.zeros((5, 1))).shape == (1, 5, 1)
    assert Unbounded((5,)).encode(np.zeros((5, 1))).shape == (5,)
    assert Unbounded((-1,)).encode(3.0).shape == (1,)
    assert Unbounded((-1, 3)).encode(np.zeros((7, 3, 1))).shape == (7, 3)


@pytest.mark.parametrize("bounds", [(0, 1), ()], ids=["bounded", "unbounded"])
def test_a_domain_that_was_given_outlives_casts(bounds):
    def make(**options):
        return (Bounded if bounds else Unbounded)(*bounds, shape=(3,), **options)

    spec = make(dtype=torch.float32, domain="discrete")
    assert spec.to(torch.float64).domain == "discrete"
    assert spec.to(torch.int64).to(torch.int32).domain == "discrete"
    assert make(dtype=torch.int64, domain="continuous").to(torch.float32).domain == "continuous"
    assert make(dtype=torch.int64).to(torch.float32).domain == "continuous"
    there_and_back = make(dtype=torch.int64, domain="continuous").to(torch.float32).to(torch.int32)
    assert there_and_back.domain == "continuous"
    # views and copies between casts keep it too
    assert there_and_back.clone().expand(2, 3)[0].to(torch.float64).to(torch.uint8).domain == (
        "continuous"
    )
    assert spec.to(torch.int64).to(torch.float32).domain == "discrete"
    # what only the dtype said follows the dtype
    assert make(dtype=torch.int64).to(torch.float32).to(torch.int64).domain == "discrete"
    assert make(dtype=torch.float32).to(torch.int64).domain == "discrete"
