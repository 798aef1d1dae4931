"""What the checks of a layout find."""

from __future__ import annotations

import pytest

from rl_layout import check_layout, keys


def _errors(batch, **arguments):
    return [(finding.key, finding.row) for finding in check_layout(batch, **arguments).errors]


def _bare(batch):
    """The batch without ids, start markers and names."""
    batch = batch.exclude(keys.COLLECTOR, keys.IS_INIT)
    batch.names = None
    return batch


@pytest.fixture(scope="session")
def bare():
    """The batch without ids, start markers and names."""
    return _bare


@pytest.fixture(scope="session")
def errors():
    return _errors
