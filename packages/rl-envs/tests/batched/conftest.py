"""Environments in processes, and whether two batches are the same."""

import pytest
import torch


def _assert_same(one, other):
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


@pytest.fixture(scope="session")
def assert_same():
    return _assert_same
