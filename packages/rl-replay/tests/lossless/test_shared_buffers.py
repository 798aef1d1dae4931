"""Shared buffers that keep each observation once."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

KINDS = {"memory": LazyTensorStorage, "file": LazyMemmapStorage}


def extend(buffer: TensorDictReplayBuffer, rows: TensorDict) -> None:
    torch.set_num_threads(1)  # those of OpenMP are not in a forked child
    buffer.extend(rows)


def test_lossless_rows_keep_their_observations_fixed_where_they_are_shared() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(12, lanes=2, lossless=True), shared=True
    )
    buffer.extend(trajectories([5]))
    sample = buffer.sample(4)
    with pytest.raises(ValueError, match="observations that are stored once, are fixed"):
        buffer.update_rows(sample["collector", "row"], sample.select("observation"))
    assert buffer.update_rows(sample["collector", "row"], sample.select("action")).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_changed_in_place_are_looked_at_twice(kind: str) -> None:
    storage = KINDS[kind](96, lanes=1, lossless=True)
    buffer = TensorDictReplayBuffer(storage=storage, shared=True)
    rows = trajectories([6], EndKind.CUT)
    buffer.extend(rows)
    ring = storage.ring
    moment = ring.version_snapshot()
    assert ring.unchanged_since(moment)
    with storage.exclusive():  # as a process holds them that changes rows
        during = ring.version_snapshot()
        assert not ring.unchanged_since(moment)
        assert not ring.unchanged_since(during)
    assert not ring.unchanged_since(during)
    # what row 1 names is read, then row 2 is changed, before that is read
    gather, index = storage.store.reader, torch.arange(6)
    look = gather.addresses_of

    def changed(*args: Any) -> Any:
        named = look(*args).copy()
        gather.addresses_of = look
        buffer[2:3] = TensorDict({"observation": torch.full((1, 2), 70.0)}, [1])
        return named

    assert storage.store.joined
    gather.addresses_of = changed
    sample, good = storage.read_standing(index)
    assert good.tolist() == [True, False, True, True, True, True]
    sample, good = storage.read_standing(index)
    assert good.all()
    assert (sample["next", "observation"] == rows["next", "observation"]).all()
    assert (sample["observation"][2] == 70).all()


def test_a_missing_next_observation_is_seen_by_all() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40, lanes=2, lossless=True), shared=True
    )
    rows = trajectories([4], EndKind.CUT)
    buffer.extend(rows[:1])
    reader = pickle.loads(pickle.dumps(buffer))
    assert len(reader.sample(2)) == 2
    write = multiprocessing.get_context("fork").Process(
        target=extend, args=(buffer, rows[1:].exclude(("next", "observation")))
    )
    write.start()
    write.join(120)
    assert write.exitcode == 0
    write.close()
    missing = reader[:]["collector", "next_missing"]
    assert missing.sum() == 1


def test_n_step_rows_are_kept_once_in_shared_memory_too() -> None:
    rows = trajectories([9, 12], EndKind.CUT)
    far = torch.where(torch.arange(21) % 9 == 7, 1, 2)[:, None]
    far[[8, 20]] = 1
    rows["next", "steps_to_next_obs"] = far
    rows["next", "observation"] = rows["observation"] + torch.cat([0 * far, far], -1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(80, lanes=2, lossless=True), shared=True
    )
    for part in rows.split(4):
        buffer.extend(part)
    assert buffer.storage.store.explain(21)["linked_share"] > 0.8
    reader = pickle.loads(pickle.dumps(buffer))
    assert (reader[:].select(*rows.keys(True, True)) == rows).all()
