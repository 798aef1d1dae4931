import pytest
import torch

from rl_slabs.dtypes import carrier, dtype_named, name_of


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.float32]
)
def test_a_carrier_has_the_size_of_its_dtype(dtype):
    assert carrier(dtype).itemsize == dtype.itemsize


def test_names_lead_back_to_their_dtypes():
    for dtype in (torch.bool, torch.bfloat16, torch.complex128):
        assert dtype_named(name_of(dtype)) is dtype


def test_a_quantised_dtype_is_refused_by_name():
    with pytest.raises(TypeError, match=r"cannot hold torch.qint8: use one of torch's bool"):
        carrier(torch.qint8)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown dtype 'float31'"):
        dtype_named("float31")
