"""One buffer for each worker, as the page on data layout has it, from collector to sample."""

from __future__ import annotations

import functools

import pytest
import torch

from rl_collect import MultiCollector
from rl_envs import SerialEnv
from rl_envs.testing import CountingEnv
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def vector(length: int) -> SerialEnv:
    """Two environments of one length."""
    return SerialEnv(2, functools.partial(CountingEnv, length))


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("kind", ["here", "shared", "file"])
def test_each_worker_of_a_vector_fills_a_buffer_of_two_dimensions(
    kind: str, sync: bool, tmp_path
) -> None:
    """Slices never leave a worker, a column or a trajectory."""
    storages = {
        "here": lambda number: LazyTensorStorage(200, ndim=2),
        "shared": lambda number: LazyTensorStorage(200, ndim=2, lanes=1),
        "file": lambda number: LazyMemmapStorage(200, ndim=2, scratch_dir=tmp_path / str(number)),
    }
    ensemble = ReplayBufferEnsemble(
        *(
            TensorDictReplayBuffer(
                storage=storages[kind](number),
                sampler=SliceSampler(slice_len=3, strict_length=True),
                shared=kind == "shared",
            )
            for number in range(3)
        ),
        sample_from_all=True,
        batch_size=36,
    )
    makers = [functools.partial(vector, length) for length in (5, 7, 11)]
    options = {"frames_per_batch": 60, "total_frames": 720}
    with MultiCollector(makers, replay_buffer=ensemble, sync=sync, **options, **FORK) as collector:
        list(collector)
    assert [len(buffer) > 0 for buffer in ensemble] == [True] * 3
    for length, buffer in zip((5, 7, 11), ensemble, strict=True):
        rows = buffer[:]
        done = rows["next", "done"].squeeze(-1)
        assert ((rows["collector", "traj_step"] == length - 1) == done).all()
    for _ in range(10):
        sample = ensemble.sample()
        steps = sample["collector", "traj_step"].reshape(-1, 3)
        assert (steps.diff(dim=1) == 1).all()
        ids = sample["collector", "traj_ids"].reshape(-1, 3)
        assert (ids == ids[:, :1]).all()


def test_a_collector_in_the_background_lets_samples_wait_for_every_buffer() -> None:
    """The first sample comes when each worker has written."""
    ensemble = ReplayBufferEnsemble(
        *(TensorDictReplayBuffer(storage=LazyTensorStorage(500)) for _ in range(2)),
        sample_from_all=True,
        batch_size=8,
    )
    options = {"frames_per_batch": 20, "total_frames": 200}
    collector = MultiCollector(
        [functools.partial(CountingEnv, 9)] * 2, replay_buffer=ensemble, **options, **FORK
    )
    collector.start()
    sample = ensemble.sample()
    assert sample["collector", "buffer_ids"][:, 0].tolist() == [0, 1]
    collector.wait()
    collector.shutdown()
    assert torch.tensor([len(buffer) for buffer in ensemble]).sum() == 200
