"""Dumps and state dicts of shared buffers, restored lane by lane."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_layout.testing import EndKind, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

SAMPLERS = {
    "random": RandomSampler,
    "slices": lambda: SliceSampler(slice_len=4),
    "without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=4),
}


def shared(sampler: str = "slices", *, lanes: int = 3, lossless: bool = False) -> Any:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20 * lanes, lanes=lanes, lossless=lossless),
        sampler=SAMPLERS[sampler](),
        batch_size=12,
        shared=True,
        generator=torch.Generator().manual_seed(3),
    )


def filled(sampler: str, **options: Any) -> Any:
    """A buffer whose lanes are written to by copies of it, unequally, and over and over."""
    buffer = shared(sampler, **options)
    copies = [pickle.loads(pickle.dumps(buffer)) for _ in range(2)]
    for turn in range(11):
        copies[turn % 3 == 0].extend(trajectories([5, 2], EndKind.CUT, first_id=10 * turn))
    for copy in copies:
        copy.storage.ring.release_lane()
    return buffer


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("how", ["dump", "state"])
def test_a_restored_buffer_goes_on_with_the_same_samples(
    sampler: str, lossless: bool, how: str, tmp_path: Path
) -> None:
    buffer = filled(sampler, lossless=lossless)
    buffer.sample()
    other = shared(sampler, lossless=lossless)
    other.extend(trajectories([9], first_id=500))  # its own lane is let go of
    if how == "dump":
        buffer.dumps(tmp_path)
        other.loads(tmp_path)
    else:
        other.load_state_dict(buffer.state_dict())
    assert len(other) == len(buffer)
    for _ in range(5):
        assert (buffer.sample() == other.sample()).all()
    other.storage.trajectories().check(other.storage.back)
    for one in (buffer, other):  # the same lane is claimed, and continues in the same way
        one.extend(trajectories([6, 3], first_id=900))
    assert (buffer[:] == other[:]).all()
    for _ in range(3):
        assert (buffer.sample() == other.sample()).all()


def test_rows_that_own_more_slots_than_a_lane_has_are_kept_lane_by_lane(tmp_path: Path) -> None:
    def ends(buffer: Any, first: int) -> None:
        """Single steps, which all own a slot, in every lane."""
        copies = [pickle.loads(pickle.dumps(buffer)) for _ in range(3)]
        for turn in range(12):
            rows = trajectories([1] * (3 + turn % 3), EndKind.TRUNCATED, first_id=first + 10 * turn)
            copies[turn % 3].extend(rows)
        for copy in copies:
            copy.storage.ring.release_lane()

    buffer, other = shared("random", lossless=True), shared("random", lossless=True)
    ends(buffer, 1000)
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    for more in (2000, 3000, 4000):
        assert (buffer[:] == other[:]).all()
        store, told = other.storage.store, buffer.storage.store
        assert store.side.in_use() == told.side.in_use() > 20
        rows = (store.successor < 0).nonzero()[0]
        assert (rows // 20 == ~store.successor[rows] // 20).all()
        for one in (buffer, other):
            ends(one, more)


def test_nothing_is_loaded_while_others_write(tmp_path: Path) -> None:
    buffer = filled("slices")
    buffer.dumps(tmp_path)
    writer = pickle.loads(pickle.dumps(buffer))
    writer.extend(trajectories([4], first_id=800))
    rows = len(buffer)
    with pytest.raises(RuntimeError, match="1 of 3 lanes are held by writers"):
        buffer.loads(tmp_path)
    assert len(buffer) == rows
    writer.storage.ring.release_lane()
    buffer.loads(tmp_path)
    assert 800 not in writer[:]["collector", "traj_ids"]


@pytest.mark.parametrize("lossless", [False, True])
def test_rows_that_were_copied_while_others_were_loaded_are_not_those(
    lossless: bool, tmp_path: Path
) -> None:
    def written(first_id: int) -> Any:
        buffer = shared("random", lossless=lossless)
        buffer.extend(trajectories([9], first_id=first_id))
        buffer.storage.ring.release_lane()
        return buffer

    written(500).dumps(tmp_path)
    buffer = written(0)
    loader, storage = pickle.loads(pickle.dumps(buffer)), buffer.storage
    numbers = storage.ring.window().draw(7)
    store, reader = storage.store, storage.session.reader
    copy = "read_concurrent" if lossless else "gather"
    copied = getattr(store, copy)

    def meanwhile(*args: Any, **options: Any) -> Any:
        found = copied(*args, **options)
        loader.loads(tmp_path)
        return found

    setattr(store, copy, meanwhile)
    assert not storage.read_standing(numbers)[1].any()
    assert not reader.read_linked(numbers)[1].any()
    setattr(store, copy, copied)
    rows, good = storage.read_standing(numbers)
    assert good.all()
    assert (rows["collector", "traj_ids"] == 500).all()


@pytest.mark.parametrize("lanes", [None, 1, 2, 5])
def test_a_dump_goes_into_other_lanes(lanes: int | None, tmp_path: Path) -> None:
    buffer = filled("slices")
    buffer.dumps(tmp_path)
    other = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, lanes=lanes),
        sampler=SAMPLERS["slices"](),
        shared=lanes is not None,
        batch_size=12,
    )
    other.loads(tmp_path)
    assert len(other) == len(buffer)
    assert len(other.sample())
    small = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=SAMPLERS["slices"]())
    with pytest.raises(ValueError, match="do not fit this storage of 5 in 1 lanes"):
        small.loads(tmp_path)


@pytest.mark.parametrize("kind", ["lanes", "turns"])
def test_what_is_dumped_while_others_write_is_whole(kind: str, tmp_path: Path) -> None:
    def made() -> Any:
        if kind == "lanes":
            return shared(lanes=2)
        return TensorDictReplayBuffer(
            storage=LazyMemmapStorage(60), sampler=SAMPLERS["slices"](), batch_size=12
        )

    buffer = made()
    buffer.extend(trajectories([5] * 4))
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # those of OpenMP are not in a forked child
            name = 1000
            while True:
                name += 3
                buffer.extend(trajectories([3, 1, 4], first_id=name))
        finally:
            os._exit(1)
    try:
        buffer.wait_until(40 if kind == "lanes" else 60, timeout=60)
        for _ in range(10):
            buffer.dumps(tmp_path)
            other = made()
            other.loads(tmp_path)
            rows = other[:]
            names = rows["observation"].long()
            assert (names[:, 0] == rows["collector", "traj_ids"]).all()
            assert (rows["next", "reward"][:, 0] == names[:, 1] + 1).all()
            other.storage.trajectories().check(other.storage.back)
            sample = other.sample()
            names, ids = sample["observation"].long(), sample["collector", "slice_ids"]
            assert (names.diff(dim=0)[ids.diff() == 0] == torch.tensor([0, 1])).all()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lossless_rows_are_not_dumped_while_they_change(tmp_path: Path) -> None:
    buffer = filled("slices", lossless=True)
    buffer.dumps(tmp_path)
    window = buffer.storage.ring.window()
    buffer.extend(trajectories([2], first_id=700))
    with pytest.raises(RuntimeError, match="let its writers pause"):
        buffer.storage.session.floor_since(window)
