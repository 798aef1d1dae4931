import pytest
import torch

from rl_specs import Unbounded, UnboundedContinuous, UnboundedDiscrete


def test_the_dtype_or_the_domain_chooses_the_class():
    assert type(Unbounded((3,))) is UnboundedContinuous
    assert type(Unbounded((3,), None, torch.bool)) is UnboundedDiscrete
    assert type(Unbounded((3,), domain="discrete")) is UnboundedDiscrete
    assert UnboundedDiscrete((3,)).dtype == torch.int64
    with pytest.raises(ValueError, match="domain must be"):
        Unbounded((3,), domain="both")


def test_the_default_shape_is_one_element():
    assert Unbounded().shape == (1,)


def test_only_shape_and_dtype_count():
    spec = Unbounded((3,))
    assert spec.is_in(torch.tensor([float("nan"), float("inf"), -1e38]))
    assert not spec.is_in(torch.zeros(3, dtype=torch.float64))


def test_project_casts():
    spec = Unbounded((3,), dtype=torch.int8)
    assert spec.project(torch.tensor([1.6, 1e9, -1e9])).tolist() == [2, 127, -128]
    assert Unbounded((3,)).project(torch.arange(3)).dtype == torch.float32


def test_space_holds_the_limits_of_the_dtype():
    low, high = Unbounded((3,), dtype=torch.int8).space
    assert (low.tolist(), high.tolist()) == ([-128] * 3, [127] * 3)


def test_complex_numbers_have_a_spec():
    spec = Unbounded((3,), dtype=torch.complex64)
    assert spec.is_in(spec.rand())


def test_casting_changes_the_class():
    assert Unbounded((3,)).to(torch.int32) == UnboundedDiscrete((3,), dtype=torch.int32)
    assert Unbounded((3,)).to("meta").device.type == "meta"
