"""Tests of the fit of specs to the composite that takes them in."""

import pytest
import torch

from rl_specs import Composite, NonTensor, Unbounded


def test_a_spec_of_objects_gets_the_leading_dimensions_of_the_tree():
    note = NonTensor((2,))
    assert Composite(note=note, shape=(2, 3))["note"].shape == (2, 3)
    assert note.shape == (2,)


def test_a_leaf_of_fewer_dimensions_is_refused():
    with pytest.raises(ValueError, match=r"'obs' must begin with \(2, 3\): got \(2,\)"):
        Composite(obs=Unbounded((2,)), shape=(2, 3))


def test_a_shape_that_one_entry_does_not_fit_leaves_the_whole_spec_unchanged():
    spec = Composite(next=Composite(shape=(2,)), obs=Unbounded((2, 5)), shape=(2,))
    with pytest.raises(ValueError, match="'obs' must begin with"):
        spec.shape = (2, 3)
    assert spec.shape == spec["next"].shape == (2,)


def test_a_spec_of_another_device_is_refused_with_the_way_to_move_it():
    with pytest.raises(ValueError, match=r"pass spec.to\('meta'\)"):
        Composite(obs=Unbounded((3,), device="cpu"), device="meta")
    assert Composite(next=Composite(), device="meta")["next"].device == torch.device("meta")
