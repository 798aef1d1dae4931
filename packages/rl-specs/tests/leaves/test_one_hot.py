import numpy as np
import pytest
import torch

from rl_specs import OneHot

MASK = torch.tensor([True, False, True])


def test_members_have_a_single_one():
    spec = OneHot(3, dtype=torch.int64)
    assert spec.is_in(torch.tensor([0, 1, 0]))
    assert not any(
        spec.is_in(torch.tensor(value)) for value in ([0, 0, 0], [1, 1, 0], [2, -1, 0], [0, 2, 0])
    )


def test_project_takes_the_largest_entry():
    spec = OneHot(3, (2, 3))
    found = spec.project(torch.tensor([[0.1, 0.7, 0.2], [-3.0, -1.0, -2.0]]))
    assert found.tolist() == [[False, True, False], [False, True, False]]
    masked = OneHot(3, mask=MASK).project(torch.tensor([0.1, 0.7, 0.2]))
    assert masked.tolist() == [False, False, True]


def test_project_leaves_members_as_they_are():
    spec = OneHot(3, (2, 3), mask=MASK)
    value = torch.tensor([[False, False, True], [False, True, False]])
    assert spec.project(value).tolist() == [[False, False, True], [True, False, False]]


def test_the_last_size_must_be_n():
    for shape in ((5,), (), (3, 5)):
        with pytest.raises(ValueError, match="the last size must be the number of entries, 3"):
            OneHot(3, shape)


def test_encode_takes_positions():
    spec = OneHot(3, (2, 3))
    expected = [[False, False, True], [True, False, False]]
    for value in ([2, 0], np.array([2, 0]), torch.tensor([2, 0]), np.array([2.0, 0.0])):
        assert spec.encode(value).tolist() == expected
    assert OneHot(3).encode(2).shape == (3,)
    assert OneHot(3).encode([[2], [1]]).shape == (2, 1, 3)


def test_encode_returns_vectors_as_they_are():
    for dtype in (torch.bool, torch.int64):
        value = OneHot(3, dtype=dtype).rand()
        assert OneHot(3, dtype=dtype).encode(value) is value
    forbidden = torch.tensor([False, True, False])
    assert OneHot(3, mask=MASK).encode(forbidden) is forbidden


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_bools_are_vectors_and_no_positions(dtype):
    spec = OneHot(3, dtype=dtype)
    for value in ([False, True, False], np.eye(3, dtype=bool)[1], torch.eye(3).bool()[1]):
        assert torch.equal(spec.encode(value), torch.tensor([0, 1, 0]).to(dtype))
    for value in (np.array([True, True, False]), torch.zeros(3).bool()):
        with pytest.raises(ValueError, match=r"rows with \[(2|0)\] True. Positions are integers"):
            spec.encode(value)
    with pytest.raises(ValueError, match=r"shape=\(2, 3\).* got shape \(3, 2\)"):
        OneHot(3, (2, 3)).encode(np.zeros((3, 2), dtype=bool))
    assert OneHot(2).encode(True).tolist() == [False, True]
    assert OneHot(2, use_register=True).encode([True, False]).shape == (2, 2)


@pytest.mark.parametrize("value", [3, -1, 0.5])
def test_encode_refuses_positions_out_of_range(value):
    with pytest.raises(ValueError, match="expected"):
        OneHot(3).encode(value)


def test_a_register_numbers_values_in_the_order_they_come():
    spec = OneHot(3, use_register=True)
    assert spec.encode("left").tolist() == [True, False, False]
    assert spec.encode("right").tolist() == [False, True, False]
    assert spec.encode("left").tolist() == [True, False, False]
    assert spec.encode(["right", 7]).tolist() == [[False, True, False], [False, False, True]]
    assert spec.to_numpy(spec.encode("right")) == "right"
    with pytest.raises(ValueError, match=r"all 3 choices are taken by \['left', 'right', 7\]"):
        spec.encode("up")


def test_views_share_the_register_and_copies_do_not():
    spec = OneHot(2, use_register=True)
    view, copied = spec.expand(5, 2), spec.clone()
    spec.encode("left")
    assert view[0].encode("right").tolist() == [False, True]
    assert copied.encode("right").tolist() == [True, False]


def test_enumerate_lists_the_vectors():
    assert OneHot(3, dtype=torch.int8).enumerate().tolist() == torch.eye(3).tolist()
    assert OneHot(3, (5, 3)).enumerate().shape == (3, 5, 3)
    assert OneHot(3, mask=MASK).enumerate(use_mask=True).shape == (2, 3)
    assert OneHot(3, (5, 3)).cardinality() == 3


def test_index_reads_the_chosen_entry():
    spec = OneHot(7, (5, 7))
    choice, values = spec.rand(), torch.rand(5, 7)
    assert torch.equal(spec.index(choice, values), values[choice])


def test_conversions():
    spec = OneHot(3, dtype=torch.float32)
    value = spec.encode(2)
    assert spec.to_categorical(value).item() == 2
    assert spec.to_one_hot(value) is value
    assert spec.to_one_hot_spec() is spec
    assert spec.n == 3
