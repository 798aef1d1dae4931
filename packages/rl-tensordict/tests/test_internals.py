"""What the fast ways need of tensordict: red here means slow elsewhere, never wrong."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rl_tensordict import build_flat, construction, internals


def test_this_version_has_a_constructor_without_checks():
    assert internals.new_unsafe is not None


def test_this_version_keeps_entries_in_a_dictionary():
    assert internals.HAS_STORE


def test_this_version_tells_whether_dimensions_have_names():
    assert internals.HAS_NAMES_FLAG


def test_this_version_has_the_attributes_that_are_set():
    assert build_flat is construction.assembled


def test_a_tensordict_of_other_attributes_is_not_the_same():
    made = construction.assembled({}, torch.Size([5]))
    assert internals.is_same(made, TensorDict({}, [5]))
    made._one_more = None
    assert not internals.is_same(made, TensorDict({}, [5]))
