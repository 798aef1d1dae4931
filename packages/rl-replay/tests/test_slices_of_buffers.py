"""Slices out of whole buffers: every class, storage and sampler gives clean samples."""

from __future__ import annotations

import pytest
import torch

from rl_layout import EndKind, Segments, check_layout
from rl_layout.testing import environments
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

STORAGES = {
    "memory": lambda: LazyTensorStorage(60),
    "lossless": lambda: LazyTensorStorage(60, lossless=True),
    "file": lambda: LazyMemmapStorage(60),
    "columns": lambda: LazyTensorStorage(60, ndim=2),
}
SAMPLERS = {
    "by trajectory": lambda: SliceSampler(slice_len=5),
    "by step": lambda: SliceSampler(slice_len=5, by="step"),
    "padded": lambda: SliceSampler(slice_len=5, pad_output=True),
    "each once": lambda: SliceSamplerWithoutReplacement(slice_len=5),
}


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sample_is_marked_before_transforms_run(kind, storage, sampler):
    seen = []
    buffer = kind(
        storage=STORAGES[storage](),
        sampler=SAMPLERS[sampler](),
        batch_size=20,
        generator=torch.Generator().manual_seed(0),
        transform=lambda batch: seen.append(batch.clone()) or batch,
    )
    batch = environments(3, 30, [7, 4], [EndKind.TERMINATED, EndKind.TRUNCATED])
    for part in batch.split(10, dim=1):  # the ring is gone around once
        buffer.extend(part)
    for _ in range(6):
        sample, info = buffer.sample(return_info=True)
        report = check_layout(sample)
        assert report.ok, str(report)
        slices, segments = info["slices"], Segments.of(sample)
        assert segments.starts.tolist() == slices.starts.tolist()
        assert segments.lengths.tolist() == slices.lengths.tolist()
        assert EndKind.CUT not in segments.kinds.tolist()
        # synthetic observations are (id, step), so a row of another trajectory would be seen
        real = torch.from_numpy(slices.mask)
        step = sample["collector", "traj_step"][real].unsqueeze(-1)
        assert torch.equal(sample["observation"][real][:, 1:], step.float())
        assert torch.equal(sample["next", "observation"][real][:, 1:], step.float() + 1)
        assert torch.equal(
            sample["observation"][real][:, 0], sample["collector", "traj_ids"][real].float()
        )
        for key in ("is_init", ("next", "done"), ("collector", "slice_ids")):
            assert torch.equal(seen[-1][key], sample[key])


def test_padding_cannot_be_written_back():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(60), sampler=SAMPLERS["padded"](), batch_size=20
    )
    buffer.extend(environments(1, 9, [3], [EndKind.TERMINATED])[0])
    sample = buffer.sample()
    good = buffer.update_rows(
        sample["collector", "row"], sample.select("observation").apply(torch.zeros_like)
    )
    assert good.tolist() == sample["collector", "mask"].tolist()
    assert not good.all()
