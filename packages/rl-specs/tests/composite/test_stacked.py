import numpy as np
import pytest
import torch

from rl_specs import Bounded, Categorical, NonTensor, OneHot, Stacked, Unbounded


def ragged(dim=0):
    return Stacked(Bounded(0, 1, (5, 3)), Bounded(1, 2, (5, 7)), dim=dim)


def different():
    return Stacked(Bounded(0, 1, (5, 3)), Bounded(1, 2, (5, 3)), dim=1)


def test_sizes_that_differ_are_dynamic():
    assert ragged().shape == (2, 5, -1)
    assert ragged(-1).shape == (5, -1, 2)
    assert different().shape == (5, 2, 3)
    assert ragged().stack_dim == 0
    assert len(ragged()) == 2


def test_samples_of_one_shape_are_one_tensor():
    sample = different().rand((7,))
    assert sample.shape == (7, 5, 2, 3)
    assert sample[:, :, 0].max() <= 1 <= sample[:, :, 1].min()
    assert different().zero().shape == (5, 2, 3)


def test_ragged_samples_are_nested_tensors():
    parts = ragged().rand().unbind()
    assert [part.shape for part in parts] == [(5, 3), (5, 7)]
    assert ragged().one().is_nested
    for call in (ragged(1).rand, lambda: ragged().rand((2,))):
        with pytest.raises(ValueError, match=r"only along dimension 0.*take each of spec.unbind"):
            call()


def test_lists_and_nested_tensors_are_members():
    spec = ragged()
    parts = [torch.ones(5, 3), torch.ones(5, 7)]
    assert spec.is_in(parts)
    assert spec.is_in(tuple(parts))
    assert spec.is_in(spec.encode(parts))
    assert not spec.is_in(parts[::-1])
    assert not spec.is_in(parts[:1])
    assert not ragged(1).is_in(spec.rand())
    assert not spec.is_in(torch.ones(2, 5, 3).to_sparse())


def test_project_takes_parts():
    found = ragged().project([torch.full((5, 3), 9.0), torch.full((5, 7), 9.0)])
    assert [part.unique().tolist() for part in found] == [[1], [2]]
    assert different().project(torch.full((4, 5, 2, 3), 9.0))[0, 0, :, 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"expected 2 parts in dimension 0 .*got list of length 1"):
        ragged().project([1])
    with pytest.raises(ValueError, match="expected 2 parts"):
        ragged().project(3)


def test_assert_is_in_names_the_part():
    with pytest.raises(AssertionError, match=r"part 1: expected shape \(5, 7\)"):
        ragged().assert_is_in([torch.ones(5, 3), torch.ones(5, 3)])


def test_encode_takes_arrays_and_lists():
    value = np.ones((5, 2, 3))
    assert different().encode(value).shape == (5, 2, 3)
    assert np.array_equal(different().to_numpy(different().encode(value)), value)
    assert len(ragged().to_numpy(ragged().rand())) == 2
    with pytest.raises(ValueError, match="expected 2 values"):
        ragged().encode([1])


def test_type_check_reaches_the_parts():
    different().type_check(torch.zeros(5, 2, 3))
    with pytest.raises(TypeError):
        different().type_check(torch.zeros(5, 2, 3, dtype=torch.int64))


def test_indices_reach_the_stacked_specs():
    spec = different()
    assert spec[:, 1] == Bounded(1, 2, (5, 3))
    assert spec[0].shape == (2, 3)
    assert spec[:, [1, 0]][:, 0] == spec[:, 1]
    assert spec[..., 1:].shape == (5, 2, 2)
    assert spec[0, 1, 2] == Bounded(1, 2, ())
    assert spec[None].stack_dim == 2
    assert ragged()[1].shape == (5, 7)
    with pytest.raises(IndexError):
        spec[:, 2]


def test_views_keep_the_specs_apart():
    spec = different()
    views = [
        spec.expand(7, 5, 2, 3)[0],
        spec.unsqueeze(0).squeeze(0),
        spec.reshape(5, 1, 2, 3)[:, 0],
        spec.unflatten(0, (5, 1))[:, 0],
        torch.index_select(spec, 1, torch.arange(2)),
    ]
    assert all(view == spec for view in views)
    assert spec.unbind(1) == spec.specs
    assert spec.unbind(2)[0].shape == (5, 2)


def test_the_stacked_dimension_can_be_merged_where_it_stays_one():
    spec = different()
    assert spec.flatten(0, 1).specs == (spec[0, 0], spec[0, 1]) * 5
    with pytest.raises(NotImplementedError, match="unbind it along that dimension first"):
        spec.reshape(5, 3, 2)


def test_a_dimension_can_be_made_dynamic_on_a_copy():
    spec = different()
    first = spec.specs[0]
    assert spec.make_neg_dim(2).shape == (5, 2, -1)
    assert first.shape == (5, 3)
    with pytest.raises(ValueError, match="holds 2 stacked specs"):
        spec.make_neg_dim(1)


def test_moving_copying_and_comparing():
    spec = ragged()
    assert spec.to("meta").specs[1].device.type == "meta"
    assert spec.to("cpu") is spec
    assert spec == ragged() != ragged(1)
    assert spec.clear_device_().device == torch.device("cpu")


def test_enumerate_needs_lists_of_one_length():
    masks = torch.tensor([True, True, False]), torch.tensor([False, True, True])
    spec = Stacked(*(Categorical(3, mask=mask) for mask in masks), dim=0)
    assert spec.enumerate(use_mask=True).tolist() == [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match=r"have \[2, 3\] members"):
        Stacked(Categorical(2), Categorical(3), dim=0).enumerate()


def test_stacked_spec_refuses_calls_that_its_parts_do_not_share():
    for call in (ragged().cardinality, lambda: ragged().index(0, torch.zeros(3))):
        with pytest.raises(NotImplementedError, match=r"spec.unbind\(\)"):
            call()


def test_a_stack_needs_specs_of_one_number_of_dimensions():
    with pytest.raises(ValueError, match="at least one spec"):
        Stacked(dim=0)
    with pytest.raises(ValueError, match="same number of dimensions"):
        Stacked(Unbounded((3,)), Unbounded((5, 3)), dim=0)


def test_objects_can_be_stacked():
    spec = torch.stack([NonTensor((), example_data="a"), NonTensor((), example_data="b")])
    assert spec.rand().tolist() == ["a", "b"]
    assert spec.is_in(spec.rand())


def test_specs_of_different_classes_can_be_stacked_by_hand():
    spec = Stacked(Unbounded((5,)), Bounded(0, 1, (5,)), dim=0)
    assert spec.is_in(spec.rand())
    assert spec.expand(7, 2, 5)[3] == spec
    assert spec.to(torch.float64).specs[1].dtype == torch.float64


def test_masks_of_stacked_specs_are_obeyed():
    spec = torch.stack([OneHot(2, mask=[True, False]), OneHot(2, mask=[False, True])])
    assert spec.rand().tolist() == [[True, False], [False, True]]
