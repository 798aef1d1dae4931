"""Several buffers as one: batches, writes, indexing, transforms and priorities."""

import threading

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    SliceSampler,
    StorageEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    WriterEnsemble,
)
from rl_transforms import Compose, RenameTransform, Resize, ToTensorImage

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


def test_priorities_go_back_to_the_buffer_of_each_row():
    def make():
        return TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=LazyTensorStorage(20), priority_key="td_error"
        )

    made = ReplayBufferEnsemble(make(), make(), sample_from_all=True, batch_size=40)
    for number in range(2):
        made[number].extend(TensorDict({"a": torch.arange(10) + 100 * number}, [10]))
    sample = made.sample()
    assert sample["priority_weight"].shape == (2, 20)
    # nothing but row 3 of buffer 0 and row 7 of buffer 1 keeps a chance
    wanted = (sample["a"] == 3) | (sample["a"] == 107)
    sample["td_error"] = torch.where(wanted, 5.0, 0.0)
    for number in range(2):
        made[number].sampler.eps = 0.0
        made[number].update_priority(torch.arange(10), torch.zeros(10))
        made[number].update_priority(torch.tensor([3 + 4 * number]), 1e-6)
    made.update_tensordict_priority(sample)
    again = made.sample()["a"]
    assert set(again[0].tolist()) == {3}
    assert set(again[1].tolist()) == {107}


def test_priorities_of_another_ensemble_are_refused():
    sample = ensemble(3, batch_size=6, sample_from_all=True).sample()
    sample["td_error"] = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"buffers \[0, 1, 2\], and there are 2"):
        ensemble(2).update_tensordict_priority(sample)


def test_renamed_keys_and_resized_images_of_two_datasets_become_one_batch():
    def member(first):
        images = ["pixels", ("next", "pixels")]
        return TensorDictReplayBuffer(
            storage=LazyMemmapStorage(10),
            transform=Compose(
                ToTensorImage(in_keys=images),
                Resize(32, in_keys=images),
                RenameTransform([first], ["renamed"]),
            ),
        )

    made = ReplayBufferEnsemble(
        member(("some", "key")),
        member("another_key"),
        p=[0.5, 0.5],
        transform=Resize(33, in_keys=["pixels"], out_keys=["pixels33"]),
    )
    for number, (key, size) in enumerate(((("some", "key"), 244), ("another_key", 64))):
        image = torch.randint(255, (10, size, size, 3))
        rows = {"pixels": image, ("next", "pixels"): image, key: torch.randn(10)}
        made[number].extend(TensorDict(rows, [10], names=["time"]))
    for _ in range(2):
        sample = made.sample(10)
        assert sample["next", "pixels"].shape == torch.Size([2, 5, 3, 32, 32])
        assert sample["pixels"].shape == torch.Size([2, 5, 3, 32, 32])
        assert sample["pixels33"].shape == torch.Size([2, 5, 3, 33, 33])
        assert sample["renamed"].shape == torch.Size([2, 5])


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


def test_an_ensemble_is_made_of_ensembles_of_parts():
    made = ReplayBufferEnsemble(
        storages=StorageEnsemble(
            LazyTensorStorage(9), LazyTensorStorage(9), transforms=[None, lambda batch: batch]
        ),
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), p=[0.0, 1.0]),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        batch_size=4,
    )
    for number in range(2):
        made[number].extend(TensorDict({"a": torch.full((3,), number)}, [3]))
    assert made.sample()["a"].eq(1).all()
    assert [len(part) for part in (made, made.storage, made.sampler, made.writer)] == [2] * 4
    made.sampler.p = [1.0, 0.0]
    assert made.sample()["a"].eq(0).all()


def test_storages_are_read_by_the_ids_of_a_sample():
    made = ensemble(2, batch_size=6, sample_from_all=True)
    sample = made.sample()
    for number, rows in made.storage[sample]:
        assert (rows["observation"] == sample["observation"][number]).all()


def test_members_are_indexed_and_chosen():
    made = ensemble(3)
    first, second, third = made
    assert made[0] is first
    assert made[-1] is third
    for index in ([1, 2], slice(1, 3), torch.tensor([1, 2]), range(1, 3)):
        assert list(made[index]) == [second, third]
    assert list(made[torch.tensor([2])]) == [third]
    assert len(made) == 3


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        (1.0, TypeError),
        ("a", TypeError),
        (True, TypeError),
        (torch.tensor([0.5]), TypeError),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError),
        ([0, 7], IndexError),
        ([], ValueError),
    ],
)
def test_an_index_that_names_no_members_is_refused(index, error):
    with pytest.raises(error):
        ensemble(3)[index]


def test_writes_name_their_buffer():
    made = ensemble(2)
    assert made.extend(trajectories([2]), buffer=1).tolist() == [11, 12]
    assert made.add(trajectories([2])[0], buffer=0) == 11
    with pytest.raises(TypeError, match="which of the 2 buffers"):
        made.extend(trajectories([2]))
    with pytest.raises(IndexError, match="no number 2"):
        made.extend(trajectories([2]), buffer=2)
    with pytest.raises(TypeError, match="number of one buffer"):
        made.extend(trajectories([2]), buffer=[0, 1])
    assert made.write_count == 25


def test_a_read_only_member_refuses_writes_and_the_others_take_them():
    rows = trajectories([5])
    immutable = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), writer=ImmutableDatasetWriter()
    )
    made = ReplayBufferEnsemble(immutable, MEMBERS["plain"]())
    with pytest.raises(RuntimeError, match="immutable dataset"):
        made.extend(rows, buffer=0)
    assert len(made.extend(rows, buffer=1)) == 5


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
    with pytest.raises(ValueError, match="transforms that make them alike"):
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (ReplayBufferEnsemble, ValueError, "at least one member"),
        (lambda: ReplayBufferEnsemble(3), TypeError, "member 0 is a int"),
        (
            lambda: ReplayBufferEnsemble(storages=StorageEnsemble(LazyTensorStorage(3))),
            ValueError,
            "give all three",
        ),
        (lambda: StorageEnsemble(LazyTensorStorage(3), transforms=[]), ValueError, "0 transforms"),
        (lambda: StorageEnsemble(3), TypeError, "expected storages"),
        (lambda: SamplerEnsemble(3), TypeError, "expected samplers"),
        (lambda: WriterEnsemble(3), TypeError, "expected writers"),
        (lambda: ensemble(2).sample(), ValueError, "how many rows"),
        (lambda: ensemble(2, sample_from_all=True, p=[1, 1]), ValueError, "one of them"),
    ],
)
def test_bad_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_same_buffer_twice_is_refused():
    buffer = MEMBERS["plain"]()
    with pytest.raises(ValueError, match="member 1 is in the ensemble already"):
        ReplayBufferEnsemble(buffer, buffer)


def test_ensembles_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="2 storages, 1 samplers, 2 writers"):
        ReplayBufferEnsemble(
            storages=StorageEnsemble(LazyTensorStorage(3), LazyTensorStorage(3)),
            samplers=SamplerEnsemble(RandomSampler()),
            writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        )


def test_each_worker_has_a_buffer_and_too_few_are_refused():
    made = ensemble(2)
    assert made.for_worker(1, 2) is made[1]
    with pytest.raises(ValueError, match="3 workers write to 2 buffers"):
        made.for_worker(0, 3)


def test_a_sample_waits_for_the_first_rows_of_every_buffer():
    made = ReplayBufferEnsemble(*(MEMBERS["plain"]() for _ in range(2)), sample_from_all=True)
    made[0].extend(trajectories([3]))
    with pytest.raises(TimeoutError, match="buffer 1"):
        made.sample(4, timeout=0.01)
    writer = threading.Thread(target=lambda: made[1].extend(trajectories([3])))
    writer.start()
    assert len(made.sample(4, timeout=60.0)) == 2
    writer.join()


def test_a_transform_that_reads_rows_belongs_to_the_buffers():
    from rl_transforms import NextStateReconstructor

    with pytest.raises(ValueError, match=r"give it\s+to the buffers"):
        ensemble(2, transform=NextStateReconstructor(["observation"]))


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
