"""What a batch of several buffers holds, gathered into one block or stacked."""

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
)

MEMBERS = {
    "plain": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(50)),
    "prefetch": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), batch_size=6, prefetch=1
    ),
    "file": lambda: TensorDictReplayBuffer(storage=LazyMemmapStorage(50)),
    "lossless": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(50, lossless=True)),
    "untyped": lambda: ReplayBuffer(storage=LazyTensorStorage(50)),
    "transformed": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), transform=lambda batch: batch
    ),
    "collated": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), collate_fn=lambda batch: batch
    ),
}


def ensemble(count=3, make=MEMBERS["plain"], **options):
    made = ReplayBufferEnsemble(*(make() for _ in range(count)), **options)
    for number in range(count):
        made.extend(trajectories([4, 7], first_id=100 * number), buffer=number)
    return made


def rows_of(made, sample):
    """The stored rows that the markers of a sample name, one by one."""
    ids, index = sample["collector", "buffer_ids"].reshape(-1), sample["index"].reshape(-1)
    pairs = zip(ids.tolist(), index.tolist(), strict=True)
    return torch.stack([made[number][place].exclude("index") for number, place in pairs])


@pytest.mark.parametrize("kind", MEMBERS)
@pytest.mark.parametrize("flat", [False, True])
def test_every_row_is_the_one_that_its_ids_name(kind, flat):
    made = ensemble(3, MEMBERS[kind], flat=flat, batch_size=18)
    sample, info = made.sample(return_info=True)
    assert sample.batch_size == (torch.Size([18]) if flat else torch.Size([3, 6]))
    flat_sample = sample.reshape(-1)
    named = rows_of(made, flat_sample)
    assert (flat_sample.select(*named.keys(True, True)) == named).all()
    assert info["index"].reshape(-1).tolist() == flat_sample["index"].tolist()
    assert info["row"].reshape(-1).tolist() == flat_sample["collector", "row"].tolist()


def test_the_block_and_the_stack_give_the_same_batch_from_the_same_seed():
    def batches(kind):
        made = ensemble(3, MEMBERS[kind], batch_size=12, generator=torch.Generator().manual_seed(1))
        return [made.sample() for _ in range(4)]

    for one, two in zip(batches("plain"), batches("collated"), strict=True):
        assert set(one.keys(True, True)) == set(two.keys(True, True))
        assert (one == two).all()


def test_ordinary_members_are_gathered_into_one_block():
    made = ensemble(3, batch_size=12)
    leaf = made.sample()["observation"]
    shared = {sample.untyped_storage().data_ptr() for sample in leaf.unbind(0)}
    assert len(shared) == 1
    # the leaves of all parts lie among those of their rows, not in memory of their own
    assert not leaf.is_contiguous()


def test_large_leaves_are_gathered_into_the_block_too():
    made = ReplayBufferEnsemble(*(MEMBERS["plain"]() for _ in range(2)), sample_from_all=True)
    for number in range(2):
        frames = torch.arange(5).view(5, 1, 1).expand(5, 20, 20) + 10 * number
        made[number].extend(TensorDict({"frame": frames.to(torch.uint8).clone()}, [5]))
    sample = made.sample(8)
    expected = sample["index"] + torch.tensor([[0], [10]])
    assert (sample["frame"] == expected[..., None, None]).all()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["plain", "collated"])
def test_slices_of_all_parts_are_marked_and_numbered_apart(kind, flat):
    collate = {"collate_fn": lambda batch: batch} if kind == "collated" else {}

    def make():
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(50), sampler=SliceSampler(slice_len=3), **collate
        )

    sample = ensemble(2, make, flat=flat, sample_from_all=True).sample(12).reshape(-1)
    assert sample["collector", "slice_ids"].tolist() == [n // 3 for n in range(12)]
    assert sample["is_init"].flatten().tolist() == [True, False, False] * 4
    ends = sample["next", "done"].flatten()
    assert ends[2::3].all()
    steps = sample["collector", "traj_step"].view(4, 3)
    assert (steps.diff(dim=1) == 1).all()
    ids = sample["collector", "traj_ids"].view(4, 3)
    assert (ids == ids[:, :1]).all()
    assert (ids // 100 == sample["collector", "buffer_ids"].view(4, 3)).all()


def test_parts_of_different_lengths_want_flat():
    def make():
        sampler = SliceSampler(slice_len=6, strict_length=False)
        return TensorDictReplayBuffer(storage=LazyTensorStorage(50), sampler=sampler)

    def filled(**options):
        made = ReplayBufferEnsemble(make(), make(), sample_from_all=True, **options)
        made[0].extend(trajectories([2]))
        made[1].extend(trajectories([9]))
        return made

    with pytest.raises(ValueError, match="flat=True"):
        filled().sample(12)
    assert len(filled(flat=True).sample(12)) == 8


def test_columns_of_storages_with_several_dimensions_are_indexed_as_in_their_buffer():
    made = ReplayBufferEnsemble(
        *(TensorDictReplayBuffer(storage=LazyTensorStorage(60, ndim=2)) for _ in range(2)),
        sample_from_all=True,
    )
    for number in range(2):
        made[number].extend(environments(3, 7, [4], [EndKind.TERMINATED]))
    sample = made.sample(8)
    assert sample["index"].shape == (2, 4, 2)
    for number in range(2):
        named = made[number][tuple(sample["index"][number].unbind(-1))]
        assert (named["observation"] == sample["observation"][number]).all()


def test_members_with_other_keys_are_named():
    made = ReplayBufferEnsemble(*(MEMBERS["plain"]() for _ in range(2)), sample_from_all=True)
    made[0].extend(TensorDict({"a": torch.zeros(3), "b": torch.zeros(3)}, [3]))
    made[1].extend(TensorDict({"a": torch.zeros(3), "c": torch.zeros(3)}, [3]))
    with pytest.raises(ValueError, match=r"buffers 0 and 1.*\['b'\].*\['c'\].*transforms"):
        made.sample(4)


def test_members_with_other_shapes_are_refused_with_advice():
    made = ReplayBufferEnsemble(*(MEMBERS["plain"]() for _ in range(2)), sample_from_all=True)
    made[0].extend(TensorDict({"a": torch.zeros(3, 2)}, [3]))
    made[1].extend(TensorDict({"a": torch.zeros(3, 4)}, [3]))
    with pytest.raises(ValueError, match=r"leaf \('a',\) .*transforms that make it alike"):
        made.sample(4)


def test_collate_fn_takes_the_samples_as_a_list():
    made = ensemble(2, sample_from_all=True, collate_fn=lambda parts: [len(one) for one in parts])
    assert made.sample(8) == [4, 4]


def test_plain_tensors_are_stacked():
    made = ReplayBufferEnsemble(
        *(ReplayBuffer(storage=LazyTensorStorage(5)) for _ in range(2)), sample_from_all=True
    )
    for number in range(2):
        made[number].extend(torch.full((3,), number))
    assert made.sample(4).tolist() == [[0, 0], [1, 1]]


def test_objects_want_a_collate_fn():
    made = ReplayBufferEnsemble(
        ReplayBuffer(collate_fn=list), ReplayBuffer(collate_fn=list), sample_from_all=True
    )
    for buffer in made:
        buffer.extend(["a", "b"])
    with pytest.raises(TypeError, match=r"buffer 0 returned a list.*collate_fn"):
        made.sample(4)


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("flat", [False, True])
def test_a_block_holds_what_samples_put_together_hold(kind, flat):
    made = ReplayBufferEnsemble(
        *(
            kind(storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, 0.7, 0.5))
            for _ in range(2)
        ),
        sample_from_all=True,
        flat=flat,
    )
    for buffer in made:
        buffer.extend(trajectories([5]))
    block, of_block = made.sample(6, return_info=True)
    made[0].append_transform(lambda batch: batch)
    together, of_parts = made.sample(6, return_info=True)
    assert block.batch_size == together.batch_size
    held = set(block.keys(True, True))
    assert held == set(together.keys(True, True))
    assert ("priority_weight" in held) == (kind is TensorDictReplayBuffer)
    assert of_block.keys() == of_parts.keys()
    assert of_block["buffer_ids"].tolist() == of_parts["buffer_ids"].tolist()
    assert of_block["buffer_ids"].shape == block.batch_size


def test_different_samplers_and_prioritized_ones_are_put_together():
    made = ReplayBufferEnsemble(
        MEMBERS["plain"](),
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, 0.7, 0.5)
        ),
        sample_from_all=True,
        transform=lambda batch: batch,
    )
    for buffer in made:
        buffer.extend(trajectories([5]))
    with pytest.raises(ValueError, match="priority_weight"):
        made.sample(4)
