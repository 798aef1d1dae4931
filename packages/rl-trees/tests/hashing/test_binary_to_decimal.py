from __future__ import annotations

import pytest
import torch

from rl_trees import BinaryToDecimal


def test_digits_are_read_with_the_highest_first():
    numbers = BinaryToDecimal(3, "cpu", torch.int64)
    assert numbers(torch.tensor([[1, 0, 0], [0, 1, 1]])).tolist() == [4, 3]


def test_groups_are_added_up_and_leading_dimensions_become_one():
    digits = torch.tensor([1, 0, 1, 1]).expand(2, 3, 4)
    assert BinaryToDecimal(2, "cpu", torch.int32)(digits).tolist() == [2 + 3] * 6


def test_positive_features_are_ones_on_request():
    features = torch.tensor([[0.5, -1.0, 0.0, 7.0]])
    assert BinaryToDecimal(4, "cpu", torch.int64, True)(features).tolist() == [9]


@pytest.mark.parametrize(("bits", "features"), [(4, 3), (2, 3)])
def test_features_that_make_no_groups_are_refused(bits, features):
    with pytest.raises(ValueError, match=f"{features} features are no groups of num_bits={bits}"):
        BinaryToDecimal(bits, "cpu", torch.int64)(torch.zeros(1, features))


def test_groups_of_no_digits_are_refused():
    with pytest.raises(ValueError, match="num_bits: expected at least 1, got 0"):
        BinaryToDecimal(0, "cpu", torch.int64)


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.int64, 63), (torch.uint8, 8), (torch.float16, 16)]
)
def test_digits_that_a_dtype_cannot_hold_are_refused(dtype, digits):
    ones = torch.ones(1, digits)
    assert BinaryToDecimal(digits, "cpu", dtype)(ones).tolist() != [0]
    with pytest.raises(ValueError, match=f"num_bits must be at most {digits}, the digits of"):
        BinaryToDecimal(digits + 1, "cpu", dtype)


def test_features_and_dtypes_that_are_none_are_named():
    with pytest.raises(TypeError, match=r"dtype: expected a dtype, got 'int32'"):
        BinaryToDecimal(2, "cpu", "int32")
    with pytest.raises(TypeError, match=r"dtype: expected one of integers or floats"):
        BinaryToDecimal(2, "cpu", torch.bool)
    for features in (3, torch.tensor(1.0)):
        with pytest.raises(TypeError, match=r"features: expected a tensor \[\*B, F\], got"):
            BinaryToDecimal(2, "cpu", torch.int32)(features)
