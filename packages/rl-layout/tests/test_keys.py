from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys


@pytest.mark.parametrize("key", [3, (), ("a", 1), ["a", "b"]])
def test_a_key_that_is_no_string_or_tuple_of_strings_is_refused(key):
    with pytest.raises(TypeError, match="must be a string or a non-empty tuple"):
        keys.as_tuple(key)


def test_next_key_and_root_key_are_inverse():
    for key in ("observation", ("agents", "observation")):
        assert keys.root_key(keys.next_key(key)) == key


@pytest.mark.parametrize("key", ["observation", "next", ("agents", "next")])
def test_only_keys_under_next_have_a_root_key(key):
    with pytest.raises(ValueError, match="under 'next'"):
        keys.root_key(key)


def test_sibling_keeps_the_group():
    assert keys.sibling(("next", "agents", "done"), "truncated") == ("next", "agents", "truncated")
    assert keys.sibling("done", "truncated") == "truncated"


def test_leaves_lists_nested_leaves():
    batch = TensorDict({"a": {"b": torch.zeros(3)}, "c": torch.ones(3)}, [3])
    assert {key: value.sum().item() for key, value in keys.leaves(batch)} == {
        ("a", "b"): 0.0,
        ("c",): 3.0,
    }
