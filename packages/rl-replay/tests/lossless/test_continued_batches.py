"""Batches that continue the one before are linked without gathers, and all others as well."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_replay.lossless.writer import LEAST_ROWS


def calls_of(act: Callable[[], object]) -> set[str]:
    """The functions that are called."""
    with cProfile.Profile() as profile:
        act()
    codes = (entry.code for entry in profile.getstats())
    return {code.co_qualname for code in codes if not isinstance(code, str)}


@pytest.mark.parametrize("gone", [None, "traj_ids"])
def test_a_batch_that_continues_the_one_before_is_linked_without_a_gather(gone: str | None) -> None:
    rows = trajectories([90, 40, 70], EndKind.CUT)
    if gone is not None:
        rows = rows.exclude(("collector", gone))
    storage = LazyTensorStorage(300, lossless=True)
    storage.extend(rows[:50])
    found = calls_of(lambda: storage.extend(rows[50:150]))
    assert "BatchLinker._linked_neighbours" in found
    assert "BatchLinker._within" not in found
    storage.extend(rows[150:])
    assert storage.back[[50, 150]].tolist() == [1, 1]
    assert (storage.read(torch.arange(200)) == rows).all()


def test_rows_of_a_batch_that_are_linked_over_other_distances_are_found() -> None:
    # two environments in turn, then one alone: inside of the batch distances are 2 and 1
    one, two = trajectories([9], EndKind.CUT), trajectories([4], EndKind.CUT, first_id=50)
    mixed = torch.stack([one[:4], two], 1).flatten(0, 1)
    rows = torch.cat([mixed, one[4:]])
    storage = LazyTensorStorage(60, lossless=True)
    storage.extend(rows[:3])
    storage.extend(rows[3:])
    assert (storage.read(torch.arange(13)) == rows).all()
    assert storage.back[:13].tolist() == [0, 0, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    assert storage.store.explain(13)["linked_share"] == 11 / 13  # all but the last of each


@pytest.mark.parametrize("numbered", [True, False])
def test_after_a_million_rows_large_batches_are_linked_by_a_compiled_loop(numbered: bool) -> None:
    pytest.importorskip("numba")
    count = 1 << 18
    seen = torch.arange(count + 1.0).unsqueeze(-1)
    following = {"observation": seen[1:], "done": torch.zeros(count, 1, dtype=torch.bool)}
    rows = TensorDict({"observation": seen[:-1], "next": following}, batch_size=[count])
    if numbered:
        rows["collector", "traj_ids"] = torch.zeros(count, dtype=torch.int64)
        rows["collector", "traj_step"] = torch.arange(count)
    storage = LazyTensorStorage(count, lossless=True)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
    by_arrays = []
    # the last batch goes over the ring's end
    for batch in (*[rows] * 5, rows[: LEAST_ROWS - 1], rows):
        found = calls_of(lambda batch=batch: buffer.extend(batch))
        by_arrays.append("BatchLinker._by_arrays" in found)
    assert by_arrays == [True] * 4 + [False, True, False]
    assert storage.store.side.in_use() == 1
    places = torch.arange(count).roll(1 - LEAST_ROWS)
    assert (storage.read(places) == rows).all()
