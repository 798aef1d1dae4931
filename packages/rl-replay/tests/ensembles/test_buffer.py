"""Several buffers as one: writes, indexing, transforms and priorities."""

import threading

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    StorageEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    WriterEnsemble,
)
from rl_transforms import Compose, RenameTransform, Resize, ToTensorImage


def member():
    return TensorDictReplayBuffer(storage=LazyTensorStorage(50))


def ensemble(count=2, **options):
    made = ReplayBufferEnsemble(*(member() for _ in range(count)), **options)
    for number in range(count):
        made.extend(trajectories([4, 7], first_id=100 * number), buffer=number)
    return made


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


def test_storages_of_columns_are_read_by_the_index_of_a_sample():
    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2)) for _ in range(2)]
    for number, buffer in enumerate(buffers):  # [B, T] of numbers that all differ
        buffer.extend(TensorDict({"a": torch.arange(15).view(3, 5) + 100 * number}, [3, 5]))
    made = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=14)
    sample = made.sample()
    for number, rows in made.storage[sample]:
        assert rows["a"].tolist() == sample["a"][number].tolist()


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
    made = ReplayBufferEnsemble(immutable, member())
    with pytest.raises(RuntimeError, match="immutable dataset"):
        made.extend(rows, buffer=0)
    assert len(made.extend(rows, buffer=1)) == 5


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
    buffer = member()
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
    made = ReplayBufferEnsemble(*(member() for _ in range(2)), sample_from_all=True)
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
