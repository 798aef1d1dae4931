from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

import rl_tensordict as keys


@pytest.mark.parametrize("key", [3, (), ("a", 1), ["a", "b"]])
def test_a_key_that_is_no_string_or_tuple_of_strings_is_refused(key):
    with pytest.raises(TypeError, match="must be a string or a non-empty tuple"):
        keys.as_tuple(key)


def test_sibling_keeps_the_group():
    assert keys.sibling(("next", "agents", "done"), "truncated") == ("next", "agents", "truncated")
    assert keys.sibling("done", "truncated") == "truncated"


def test_leaves_lists_nested_leaves():
    batch = TensorDict({"a": {"b": torch.zeros(3)}, "c": torch.ones(3)}, [3])
    assert {key: value.sum().item() for key, value in keys.leaves(batch)} == {
        ("a", "b"): 0.0,
        ("c",): 3.0,
    }
