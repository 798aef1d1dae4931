"""What the five founding documents promise of collectors with workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collect import (
    Collector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
)
from rl_envs import SerialEnv
from rl_layout import Segments, check_layout
from rl_replay import LazyTensorStorage, ReplayBuffer, SliceSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

IDS = ("collector", "traj_ids")


def forked(kind: type, makers: list[Any], **options: Any) -> Any:
    """A collector whose workers are forked."""
    return kind(makers, mp_start_method="fork", **options)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_ids_of_workers_never_collide(kind: type, of_batches, short) -> None:
    """Not across workers, resets and batches."""
    batches = of_batches(forked(kind, [short] * 3, frames_per_batch=12, total_frames=36))
    rows = torch.cat([batch.reshape(-1) for batch in batches])
    starts = rows["is_init"].sum()
    assert len(rows[IDS].unique()) == starts


def test_hooks_of_workers_run_in_the_workers(tmp_path: Path, of_batches, short) -> None:
    """Not on the training worker."""

    def note(*batch: TensorDictBase) -> None:
        (tmp_path / str(os.getpid())).touch()

    of_batches(
        forked(
            MultiSyncCollector,
            [short] * 2,
            frames_per_batch=4,
            total_frames=8,
            pre_collect_hook=note,
            post_collect_hook=note,
        )
    )
    found = {int(path.name) for path in tmp_path.iterdir()}
    assert len(found) == 2
    assert os.getpid() not in found


def test_a_worker_does_what_a_single_collector_does(of_batches, short) -> None:
    """Multi-process collectors delegate, so the flow of a worker is that of `Collector`."""
    alone = Collector(short, frames_per_batch=5, total_frames=10)
    worker = forked(MultiAsyncCollector, [short], frames_per_batch=5, total_frames=10)
    for one, other in zip(of_batches(alone), of_batches(worker), strict=True):
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key in ("observation", "is_init", ("next", "done"), ("collector", "traj_step")):
            assert torch.equal(one[key], other[key])


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector, MultiAsyncCollector])
def test_compact_batches_come_from_every_collector(kind: type, cart, of_batches, recurrent) -> None:
    """Observations and states under `"next"` are dropped, rewards and done flags stay."""
    options: dict[str, Any] = {"frames_per_batch": 8, "total_frames": 8, "compact_obs": True}
    if kind is Collector:
        collector = kind(cart, recurrent(), **options)
    else:
        collector = forked(kind, [cart], policy=recurrent(), **options)
    (batch,) = of_batches(collector)
    after = set(batch["next"].keys())
    assert after == {"reward", "done", "terminated", "truncated"}
    assert {"observation", "rs"} <= set(batch.keys())


@pytest.mark.parametrize("sync", [True, False])
def test_workers_write_whole_trajectories_themselves(sync: bool, of_batches, short) -> None:
    """Both ways each `extend` comes from a worker, and holds complete trajectories only."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(400),
        sampler=SliceSampler(slice_len=3),
        batch_size=12,
        shared=True,
    )
    collector = forked(
        MultiCollector,
        [short] * 2,
        policy=None,
        replay_buffer=buffer,
        frames_per_batch=20,
        total_frames=120,
        trajs_per_batch=2,
        sync=sync,
    )
    assert set(of_batches(collector)) == {None}
    rows = buffer[:]
    assert len(rows) == 120
    assert check_layout(rows).ok
    segments = Segments.of(rows)
    assert rows["next", "done"][segments.lasts].all()
    sample = buffer.sample()
    assert sample["next", "done"].sum() == 4


def test_batches_of_workers_are_stacked_at_once(of_batches, short) -> None:
    """`sync=True` with `cat_results="stack"` delivers `[num_workers, T]`."""
    two = lambda: SerialEnv(2, short)  # noqa: E731
    for maker, shape in ((short, (3, 4)), (two, (3, 2, 2))):
        (batch,) = of_batches(
            forked(
                MultiCollector,
                [maker] * 3,
                sync=True,
                cat_results="stack",
                frames_per_batch=12,
                total_frames=12,
            )
        )
        assert batch.shape == shape
        rows = ReplayBuffer(storage=LazyTensorStorage(24, ndim=len(shape)))
        rows.extend(batch)
        assert torch.equal(rows[:]["observation"].flatten().sort().values, flat(batch))


def flat(batch: TensorDictBase) -> Tensor:
    """All observations, in order of their size."""
    return batch["observation"].flatten().sort().values
