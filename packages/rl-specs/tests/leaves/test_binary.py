import pytest
import torch

from rl_specs import Binary, BinaryBox


def test_n_and_shape_say_the_same():
    assert Binary(4) == Binary(shape=(4,)) == Binary(4, (4,))
    assert Binary(4, (5, 4)).shape == (5, 4)
    assert Binary(shape=()).n == 1
    assert Binary(4).space == BinaryBox(4)


def test_n_and_shape_are_checked():
    with pytest.raises(TypeError, match="needs n or a shape"):
        Binary()
    with pytest.raises(ValueError, match="the last size must be the number of bits, 4"):
        Binary(4, (4, 5))


def test_members_are_zeros_and_ones():
    spec = Binary(3, dtype=torch.float32)
    assert spec.is_in(torch.tensor([0.0, 1.0, 1.0]))
    assert not spec.is_in(torch.tensor([0.0, 2.0, 1.0]))
    assert not spec.is_in(torch.tensor([0.0, 0.5, 1.0]))


def test_project_rounds_and_clips():
    assert Binary(4).project(torch.tensor([-3.0, 0.4, 0.6, 9.0])).tolist() == [0, 0, 1, 1]


def test_enumerate_lists_all_vectors():
    spec = Binary(3, (2, 3))
    found = spec.enumerate()
    assert found.shape == (8, 2, 3)
    assert len({tuple(row.flatten().tolist()) for row in found}) == 8 == spec.cardinality()
    assert Binary(shape=()).enumerate().tolist() == [0, 1]
