from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from rl_layout import Segments, compiled, keys
from rl_layout.boundaries import _cut_in_pieces
from rl_layout.loops import mark_cuts
from rl_layout.markers import FIELDS
from rl_layout.testing import EndKind, environments

ENDS = ("done", "terminated", "truncated")
PRESENT = [
    tuple(FIELDS),
    ("is_init",),
    ("traj_ids", "traj_step"),
    ENDS,
    ("done", "steps_to_next_obs"),
    ("traj_step", "mask"),
]


def drawn(names, size, seed):
    """Markers of which each is different at some places."""
    rng = np.random.default_rng(seed)
    have = {name: rng.random(size) < 0.05 for name in FIELDS}
    have["mask"] = ~have["mask"]
    have["steps_to_next_obs"] = 1 + (rng.random(size) < 0.3)
    have["traj_ids"] = have["traj_ids"].cumsum()
    have["traj_step"] = np.arange(size) + have["traj_step"].cumsum()
    return {name: have[name] for name in names}


@pytest.mark.parametrize("names", PRESENT)
@pytest.mark.parametrize("size", [1, 2, 70_001])
def test_cuts_are_those_that_numpy_finds(names, size):
    have, cut = drawn(names, size, len(names)), np.empty(size, bool)
    mark_cuts(*map(have.get, FIELDS), cut)
    np.testing.assert_array_equal(cut, _cut_in_pieces(have, size))
    assert size < 3 or 0 < cut.sum() < size


@pytest.mark.parametrize("missing", [True, False])
def test_segments_are_the_same_without_numba(missing, monkeypatch):
    if missing:
        monkeypatch.setitem(sys.modules, "numba", None)
        monkeypatch.delitem(sys.modules, "rl_layout.loops", raising=False)
    compiled._imported.cache_clear()
    try:
        batch = environments(3, 1_000, [40, 13, 90], [EndKind.TERMINATED, EndKind.TRUNCATED])
        rows = batch.numel()
        assert (compiled.compiled("rl_layout.loops", rows) is None) == missing
        lengths = Segments.of(batch).lengths
        done = batch[keys.NEXT_DONE][..., 0].clone()
        done[:, -1] = True
        ends = done.flatten().nonzero()[:, 0]
        assert lengths.equal(torch.diff(ends, prepend=torch.tensor([-1])))
    finally:
        compiled._imported.cache_clear()


def test_few_rows_are_not_worth_a_loop():
    assert compiled.compiled("rl_layout.loops", compiled.LEAST_ROWS - 1) is None
