"""Tests of values with named entries."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rl_specs import Categorical, Composite, Unbounded


@pytest.mark.parametrize("val", [NonTensorData("a"), torch.zeros(3), [1]])
@pytest.mark.parametrize("act", ["cast", "encode", "to_numpy", "rand_update"])
def test_values_without_entries_are_refused(act, val):
    with pytest.raises(TypeError, match="expected a dictionary or a tensordict: got"):
        getattr(Composite(), act)(val)


@pytest.mark.parametrize("val", [{}, TensorDict({})])
def test_a_missing_entry_is_named(val):
    with pytest.raises(KeyError, match="the entry 'obs' is missing"):
        Composite(obs=Unbounded((3,))).type_check(val)


def test_an_entry_that_cannot_be_encoded_is_named():
    with pytest.raises(ValueError, match="entry 'action': "):
        Composite(action=Categorical(3)).encode({"action": 1.5})


def test_an_entry_without_a_spec_is_written_as_an_array():
    val = Composite(note=None).to_numpy(TensorDict({"note": torch.arange(3)}))
    assert val["note"].tolist() == [0, 1, 2]
