from __future__ import annotations

import pytest

from rl_tensordict import as_key, as_tuple, is_key, sibling


@pytest.mark.parametrize("key", [3, (), ("a", 1), ("a", ("b", 1)), ["a", "b"]])
def test_a_key_that_is_no_string_or_tuple_of_strings_is_refused(key):
    with pytest.raises(TypeError, match="must be a string or a non-empty tuple"):
        as_tuple(key)


def test_sibling_keeps_the_group():
    assert sibling(("next", "agents", "done"), "truncated") == ("next", "agents", "truncated")
    assert sibling("done", "truncated") == "truncated"


def test_a_key_is_a_string_or_a_tuple_of_keys():
    assert is_key("a")
    assert is_key(("a", ("b", "c")))
    assert not any(is_key(index) for index in (0, (), ("a", 0), None, ...))


def test_as_tuple_flattens_nested_tuples():
    assert as_tuple(("a", ("b", "c"))) == ("a", "b", "c")


@pytest.mark.parametrize("parts", [3, {"a"}, {"a": 1}])
def test_as_key_refuses_what_is_no_sequence_of_parts(parts):
    with pytest.raises(TypeError, match="parts: expected the parts of a key"):
        as_key(parts)
