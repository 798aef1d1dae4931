"""Slices out of whole buffers: every class, storage and sampler gives clean samples."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorClass, TensorDict

from rl_layout import EndKind, Segments, check_layout
from rl_layout.testing import environments, trajectories
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
def test_slices_of_a_buffer_are_marked_before_its_transforms(kind, storage, sampler):
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


class Flagged(TensorClass):
    """Rows of a class with some of the marked leaves."""

    observation: torch.Tensor
    is_init: torch.Tensor
    next: TensorDict


def as_tree(rows):
    after = {"done": rows["next", "done"], "truncated": rows["next", "truncated"]}
    return {"seen": (rows["observation"],), "is_init": rows["is_init"], "next": after}


def as_class(rows):
    after = rows["next"].select("done", "truncated")
    return Flagged(rows["observation"], rows["is_init"], after, batch_size=rows.batch_size)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("form", [as_tree, as_class])
def test_slices_of_trees_and_classes_are_marked_where_they_have_the_leaves(form, sampler, shared):
    rows = trajectories([9, 6, 3], EndKind.CUT)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(60, lanes=1),
        sampler=SAMPLERS[sampler](),
        batch_size=20,
        shared=shared,
    )
    buffer.extend(form(rows))
    sample, info = buffer.sample(return_info=True)
    slices = info["slices"]
    after, stored = sample["next"] if form is as_tree else sample.next, form(rows)
    first = sample["is_init"] if form is as_tree else sample.is_init
    assert first.flatten().nonzero().flatten().tolist() == slices.starts.tolist()
    lasts = torch.zeros(len(first), dtype=torch.bool)
    lasts[slices.lasts] = True
    real = torch.from_numpy(slices.mask)
    for flag in (after["done"], after["truncated"]):
        assert torch.equal(flag.flatten()[real], lasts[real])
    assert set(after.keys()) == {"done", "truncated"}
    kept = buffer[:]
    if form is as_tree:
        assert torch.equal(kept["is_init"], stored["is_init"])
        assert not kept["next"]["done"].any()
        assert sample.keys() == kept.keys()
    else:
        assert isinstance(sample, Flagged)
        assert torch.equal(kept.is_init, stored.is_init)
        assert not kept.next["done"].any()


def test_slices_of_plain_tensors_are_not_marked():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2))
    buffer.extend(torch.arange(5))
    sample, info = buffer.sample(4, return_info=True)
    assert torch.equal(sample, info["index"])
    assert (sample.diff()[::2] == 1).all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["done", "dones", "terminated"])
@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
def test_slice_sampler_refuses_flags_that_are_no_known_markers(sampler, name, shared):
    rows = TensorDict({"observation": torch.arange(10.0), name: torch.arange(10) % 5 == 4}, [10])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(80), sampler=sampler(slice_len=4), batch_size=8, shared=shared
    )
    buffer.extend(rows)
    with pytest.raises(KeyError, match=rf"end_key='{name}'"):
        buffer.sample()
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(80),
        sampler=sampler(slice_len=4, end_key=name),
        batch_size=8,
        shared=shared,
    )
    buffer.extend(rows)
    ends = buffer.sample()[name].flatten()
    assert ends.sum() <= 2  # the last row of a slice at most


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_numeric_flags_are_known_by_their_names(dtype):
    rows = TensorDict({"dones": torch.zeros(10, 1, dtype=dtype)}, [10])
    buffer = ReplayBuffer(storage=LazyTensorStorage(9 + 1), sampler=SliceSampler(slice_len=2))
    buffer.extend(rows)
    with pytest.raises(KeyError, match=r"end_key='dones'"):
        buffer.sample(4)


def test_rows_without_flags_are_drawn_as_consecutive():
    rows = TensorDict({"observation": torch.arange(10.0), "mask": torch.ones(10, 3).bool()}, [10])
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=2))
    buffer.extend(rows)
    with pytest.warns(UserWarning, match="says where trajectories end"):
        first = buffer.sample(8)
    for sample in (first, buffer.sample(8)):  # it is said once
        assert (sample["observation"].view(4, 2).diff() == 1).all()


def test_explicit_boundaries_need_no_column():
    rows = TensorDict({"done": torch.zeros(6).bool()}, [6])
    sampler = SliceSampler(slice_len=2, trajectories=torch.tensor([0, 0, 0, 1, 1, 1]))
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), sampler=sampler)
    buffer.extend(rows)
    assert len(buffer.sample(4)) == 4


def test_terminal_row_of_a_dataset_is_terminated_in_every_slice():
    ends, rows = torch.tensor([9, 19, 29]), torch.arange(30)
    data = TensorDict({"observation": rows[:, None].float()}, [30])
    data["terminals"] = torch.isin(rows, ends[:2])
    data["timeouts"] = torch.isin(rows, ends[2:])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(30),
        sampler=SliceSampler(slice_len=6, end_keys=["terminals", "timeouts"]),
        batch_size=120,
    )
    buffer.extend(data)
    sample = buffer.sample()
    terminated, truncated = sample["next", "terminated"], sample["next", "truncated"]
    assert terminated.flatten().tolist() == sample["terminals"].flatten().tolist()
    assert not (truncated & terminated).any()
    assert bool(truncated.flatten()[sample["timeouts"].flatten()].all())
