"""What the documents that this package answers to show, as far as it needs no environment."""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_transforms import NextObservationDelta, NextStateReconstructor

IDS = ("collector", "traj_ids")


def test_generic_buffer_of_the_example_runs() -> None:
    buffer = ReplayBuffer(storage=ListStorage(10))
    buffer.add("a string!")
    buffer.extend([30, None])
    assert buffer[:] == ["a string!", 30, None]


def test_storages_of_the_example_run() -> None:
    image = torch.randint(255, (3, 64, 64), dtype=torch.uint8)
    buffer = ReplayBuffer(storage=TensorStorage(torch.empty(10, 3, 64, 64, dtype=torch.uint8)))
    buffer.add(image)
    assert torch.equal(buffer[0], image)
    rows = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=1)
    rows.add(TensorDict({"img": image, "labels": torch.randint(100, ())}, batch_size=[]))
    tree = ReplayBuffer(storage=LazyMemmapStorage(10))
    tree.extend({"a": {"b": torch.randn(3), "c": [torch.zeros(3, 2), (torch.ones(3, 10),)]}})
    assert len(tree) == 3
    assert torch.equal(rows[0]["img"], image)
    assert rows[:].batch_size == rows.sample(1).batch_size == (1,)
    for count, data in enumerate(rows):
        assert data.batch_size == (1,)
        if count == 3:
            break


def test_buffer_of_one_environment_holds_its_newest_steps() -> None:
    tape = trajectories([30, 20, 40, 7, 60])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(num_slices=8, traj_key=IDS, truncated_key=None, strict_length=False),
        batch_size=64,
    )
    for start in range(0, 110, 10):
        buffer.extend(tape[start : start + 10])
    assert len(buffer) == 100
    sample = buffer.sample()
    assert len(sample) <= 64
    assert sample["next", "truncated"].sum() == 0


def test_environments_become_columns() -> None:
    batch = environments(2, 101, [19, 7], [EndKind.TERMINATED])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2),
        sampler=SliceSampler(num_slices=8, traj_key=IDS, truncated_key=None, strict_length=False),
        batch_size=64,
    )
    for step in range(101):
        buffer.extend(batch[:, step : step + 1])
    assert len(buffer) == 100
    held = buffer[:]
    assert held.batch_size == (2, 50)
    assert sorted(held["observation"].flatten(0, 1).tolist()) == sorted(
        batch[:, -50:]["observation"].flatten(0, 1).tolist()
    )


def test_slices_of_four_producers_in_one_flat_buffer_have_no_leaks() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100_000), sampler=SliceSampler(slice_len=32), batch_size=256
    )
    tapes = [trajectories([50, 70], first_id=100 * worker) for worker in range(4)]
    for start in range(0, 120, 10):
        for tape in tapes:
            buffer.extend(tape[start : start + 10])
    sample = buffer.sample()
    assert len(sample) == 256
    for ids, steps in zip(
        sample[IDS].split(32), sample["collector", "traj_step"].split(32), strict=True
    ):
        assert len(ids.unique()) == 1
        assert torch.equal(steps - steps[0], torch.arange(32))


def test_compact_rows_are_rebuilt_and_deltas_too(tmp_path: Path) -> None:
    rows = trajectories([60, 80, 60])
    compact = rows.exclude(("next", "observation"))
    for storage in (LazyTensorStorage(200), LazyMemmapStorage(1000, scratch_dir=tmp_path)):
        buffer = ReplayBuffer(
            storage=storage,
            sampler=SliceSampler(slice_len=20, traj_key=IDS),
            transform=NextStateReconstructor(),
            batch_size=40,
        )
        buffer.extend(compact)
        sample = buffer.sample()
        assert sample.shape == (40,)
        found, done = sample["next", "observation"], sample["next", "terminated"].squeeze(-1)
        assert torch.equal(torch.isnan(found).any(-1), done)
    delta = NextObservationDelta(in_keys=["observation"], side="write")
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), transform=delta, batch_size=40)
    buffer.extend(rows)
    assert len(buffer) == 200


def test_dumps_hold_the_newest_rows_of_columns(tmp_path: Path) -> None:
    first = ReplayBuffer(storage=LazyMemmapStorage(100, ndim=2))
    second = ReplayBuffer(storage=LazyMemmapStorage(100, ndim=2))
    batch = environments(3, 220, [31], [EndKind.TRUNCATED])
    for start in range(0, 220, 22):
        first.extend(batch[:, start : start + 22])
        assert first.storage.max_size == 102
        first.dumps(tmp_path)
        second.loads(tmp_path)
        assert (second[:] == first[:]).all()


def test_hooks_change_rows_on_their_way_to_the_disk_and_back(tmp_path: Path) -> None:
    first, second = (ReplayBuffer(storage=LazyTensorStorage(20)) for _ in range(2))
    rows = trajectories([4, 3])
    first.extend(rows)
    first.register_save_hook(lambda rows: rows.exclude("action"))
    first.dumps(tmp_path)
    second.register_load_hook(lambda rows: rows.set("action", torch.zeros(7, 1).long()))
    second.loads(tmp_path)
    assert (second[:].exclude("action") == rows.exclude("action")).all()
    assert second[:]["action"].sum() == 0
