import pytest
import torch

from rl_specs.core.sizes import as_size, padded, safe, viewed, viewed_shape, without_repeats


def test_as_size_takes_integers_sequences_and_none():
    assert as_size(5, 3) == as_size((5, 3)) == as_size([5, torch.tensor(3)]) == torch.Size((5, 3))
    assert as_size(7) == torch.Size((7,))
    assert as_size(None) == as_size() == torch.Size(())


@pytest.mark.parametrize("shape", ["a", 2.5j, [None]])
def test_as_size_refuses_what_is_no_shape(shape):
    with pytest.raises(TypeError, match="shape must be integers"):
        as_size(shape)


def test_as_size_refuses_sizes_below_minus_one():
    with pytest.raises(ValueError, match=r"got \(3, -2\)"):
        as_size(3, -2)


def test_safe_puts_one_for_dynamic():
    assert safe((5, -1, 3)) == torch.Size((5, 1, 3))


@pytest.mark.parametrize(
    ("found", "shape", "sizes"),
    [
        ([2, 7], [2, -1], [2, 7]),
        ([7, 2], [-1, 2], [7, 2]),
        ([2], [-1, 2], [1, 2]),
        ([5, 1, 3], [5, 3, 1], [5, 3, 1]),
        ([1, 4], [-1], [4]),
        ([3, 4], [3, 5], None),
        ([3, 4], [3], None),
    ],
)
def test_padded_sizes_fit_what_is_left_to_dynamic_dimensions(found, shape, sizes):
    assert padded(found, shape) == sizes


def test_dynamic_dimensions_stay_dynamic_through_a_view():
    shape = torch.Size((5, -1, 3))
    assert viewed_shape(lambda v: v.unsqueeze(1), shape) == torch.Size((5, 1, -1, 3))
    assert viewed_shape(lambda v: v.flatten(1), shape) == torch.Size((5, -1))
    assert viewed_shape(lambda v: v[0, 4], shape) == torch.Size((3,))


@pytest.mark.parametrize("size", [0, 100_003, 200_006, 4_099])
def test_a_static_size_is_never_taken_for_a_dynamic_one(size):
    for shape in ((size,), (size, -1), (size % 5000, -1, -1, -1, -1)):
        assert viewed_shape(lambda v: v, torch.Size(shape)) == torch.Size(shape)


def test_viewed_acts_on_the_first_dimensions_only():
    part = torch.arange(5 * 3 * 7).reshape(5, 3, 7)
    found = viewed(lambda v: v.flatten(), part, torch.Size((5, 3)))
    assert torch.equal(found, part.reshape(15, 7))


def test_viewed_keeps_size_one_along_dynamic_dimensions():
    part = torch.arange(3.0).reshape(1, 3)
    found = viewed(lambda v: v.expand(5, *v.shape), part, torch.Size((-1, 3)))
    assert torch.equal(found, part.expand(5, 1, 3))


def test_viewed_repeats_without_memory():
    part = torch.zeros(7).expand(3, 7)
    found = viewed(lambda v: v.expand(5, 3), part, torch.Size((3,)))
    assert found.shape == (5, 3, 7)
    assert found.stride()[:2] == (0, 0)


def test_without_repeats_keeps_values_and_repeats():
    part = torch.arange(3.0).expand(5, 3)
    found = without_repeats(part, torch.clone)
    assert torch.equal(found, part)
    assert found.stride() == (0, 1)
    assert found.data_ptr() != part.data_ptr()
