"""Rows of several steps, and whether two are the same."""

from __future__ import annotations

import pytest
import torch


def _same(one, other):
    names = set(one.keys(True, True))
    assert names == set(other.keys(True, True))
    for name in names:
        torch.testing.assert_close(one[name], other[name], msg=str(name))


@pytest.fixture(scope="session")
def same():
    return _same
