"""Both implementations of every loop: numpy's, and numba's."""

from __future__ import annotations

import sys

import pytest

from rl_layout import compiled

LOOPS = [
    "rl_trees.hashing.numba_rounds",
    "rl_trees.search.numba_search",
    "rl_trees.table.numba_probe",
]


@pytest.fixture(params=["numpy", "numba"])
def loops(request, monkeypatch):
    """What runs the loops: as without numba, or with it."""
    if request.param == "numba":
        pytest.importorskip("numba")
    else:
        for module in LOOPS:
            monkeypatch.setitem(sys.modules, module, None)  # its import fails from here on
    compiled.forget_imports()
    yield request.param
    monkeypatch.undo()
    compiled.forget_imports()
