"""States and dumps: one that does not fit changes nothing, one that fits gives the same samples."""

import copy

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_transforms import RewardScaling


class Broken(RandomSampler):
    """Cannot continue any state."""

    fails = False

    def load_state_dict(self, state):
        if Broken.fails:
            raise KeyError("place")


def made(rows=(5, 7, 6), *, size=30, sampler=None, ndim=1, kind=LazyTensorStorage, **parts):
    buffer = TensorDictReplayBuffer(
        storage=kind(size, ndim=ndim),
        sampler=sampler,
        batch_size=4,
        generator=torch.Generator().manual_seed(len(rows)),
        **parts,
    )
    batch = trajectories(list(rows))
    buffer.extend(batch.reshape(2, -1) if ndim == 2 else batch)
    buffer.sample()
    return buffer


OTHERS = {
    "size": (lambda: made((20, 20), size=40), "40 rows do not fit this storage of 30"),
    "sampler": (lambda: made((9, 9), sampler=SamplerWithoutReplacement()), "make it with the same"),
    "transforms": (lambda: made((9, 9), transform=RewardScaling(0.0, 2.0)), "other transforms"),
    "dimensions": (lambda: made((9, 9), ndim=2), "make one of the same shape"),
}


def take_over(buffer, other, how, folder):
    if how == "state":
        buffer.load_state_dict(other.state_dict())
    else:
        other.dumps(folder)
        buffer.loads(folder)


def assert_stands(buffer, rows, state):
    assert (buffer[:] == rows).all()
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [5, 6, 7]
    assert torch.equal(buffer.sampler.generator.get_state(), state["rng"])
    assert buffer.batch_size == 4


@pytest.mark.parametrize("how", ["state", "dump"])
@pytest.mark.parametrize("which", OTHERS)
def test_state_or_dump_of_another_buffer_changes_nothing(which, how, tmp_path):
    make, message = OTHERS[which]
    buffer = made()
    rows, state = buffer[:], buffer.state_dict()
    with pytest.raises(ValueError, match=message):
        take_over(buffer, make(), how, tmp_path)
    assert_stands(buffer, rows, state)


@pytest.mark.parametrize("how", ["state", "dump"])
def test_transforms_of_another_buffer_leave_those_of_this_one(how, tmp_path):
    """The first of two transforms fits, the second one does not."""
    buffer = made(transform=RewardScaling(1.0, 3.0))
    buffer.append_transform(lambda batch: batch)
    other = made((9, 9), transform=RewardScaling(0.0, 2.0))
    other.append_transform(RewardScaling(0.0, 2.0))
    before = copy.deepcopy(buffer.transform.state_dict())
    with pytest.raises(ValueError, match="other transforms"):
        take_over(buffer, other, how, tmp_path)
    after = buffer.transform.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    take_over(other, other, how, tmp_path)


@pytest.mark.parametrize("how", ["state", "dump"])
def test_sampler_that_refuses_a_state_changes_nothing(how, tmp_path, monkeypatch):
    buffer, other = made(sampler=Broken()), made((9, 9), sampler=Broken())
    rows, state = buffer[:], buffer.state_dict()
    monkeypatch.setattr(Broken, "fails", True)
    with pytest.raises(KeyError):
        take_over(buffer, other, how, tmp_path)
    assert (buffer[:] == rows).all()
    assert torch.equal(buffer.sampler.generator.get_state(), state["rng"])


def test_failed_load_leaves_a_buffer_without_generator():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=RandomSampler())
    buffer.extend(torch.arange(5))
    other = ReplayBuffer(storage=LazyTensorStorage(20), generator=torch.Generator())
    other.extend(torch.arange(15))
    with pytest.raises(ValueError, match="15 rows do not fit this storage of 9"):
        buffer.load_state_dict(other.state_dict())
    assert buffer.sampler.generator is None


def test_state_of_lists_is_refused_by_a_storage_of_tensors():
    lists, tensors = ReplayBuffer(), ReplayBuffer(storage=LazyTensorStorage(9))
    lists.extend([1, 2])
    tensors.extend(torch.arange(5))
    with pytest.raises(ValueError, match="the state is not of a TensorStorage"):
        tensors.load_state_dict(lists.state_dict())
    with pytest.raises(ValueError, match="the state is not of a ListStorage"):
        lists.load_state_dict(tensors.state_dict())
    with pytest.raises(ValueError, match="no state of a buffer: it lacks"):
        tensors.load_state_dict({"storage": {}})
    assert (tensors[:] == torch.arange(5)).all()
    assert lists[:].tolist() == [1, 2]


def test_state_of_a_list_of_tensordicts_is_read_without_pickle(tmp_path):
    buffer, other = ReplayBuffer(storage=ListStorage(20)), ReplayBuffer(storage=ListStorage(20))
    steps = trajectories([3])
    nested = TensorDict(
        {
            "a": TensorDict({"b": torch.zeros(2, 3)}, [2, 3]),
            "text": "go",
            "level": NonTensorData(3),
        },
        [2],
    )
    nested.names = ["time"]
    items = [steps, steps[0], nested, torch.arange(2), 3, "four", None, {"five": 5}, (6, [7.0])]
    items.append([{"step": steps}])
    buffer.extend(items)
    state = buffer.state_dict()
    assert buffer.storage.items[0] is items[0] or (buffer.storage.items[0] == items[0]).all()
    torch.save(state, tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, wanted in zip(other.storage.items, items, strict=True):
        assert type(one) is type(wanted)
        if isinstance(wanted, TensorDict):
            assert (one == wanted).all()
            assert (one.batch_size, one.names, one.device) == (
                wanted.batch_size, wanted.names, wanted.device,
            )  # fmt: skip
            assert set(one.keys(True, True)) == set(wanted.keys(True, True))
    assert other.storage.items[2]["a"].batch_size == (2, 3)
    assert other.storage.items[2]["text"] == "go"
    assert other.storage.items[2]["level"] == 3
    assert other.storage.items[4:-1] == items[4:-1]
    assert (other.storage.items[-1][0]["step"] == steps).all()


@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler,
        SamplerWithoutReplacement,
        lambda: SliceSampler(slice_len=2),
        lambda: SliceSamplerWithoutReplacement(slice_len=2),
    ],
    ids=["rows", "rows once each", "slices", "slices once each"],
)
def test_state_gives_the_same_samples_in_a_storage_of_another_kind(sampler, prefetch):
    one = made(sampler=sampler(), prefetch=prefetch)
    other = made((9, 9), sampler=sampler(), prefetch=prefetch, kind=LazyMemmapStorage)
    other.load_state_dict(one.state_dict())
    for _ in range(5):
        first, second = one.sample(), other.sample()
        assert (first == second).all()


def test_sampler_of_the_caller_is_asked_for_its_state():
    class Newest(Sampler):
        def sample(self, storage, batch_size):
            return storage.ring.window().numbers(torch.arange(batch_size)), {}

    one, other = made(sampler=Newest()), made((9, 9), sampler=Newest())
    other.load_state_dict(one.state_dict())
    assert (one[:] == other[:]).all()


@pytest.mark.parametrize("sampler", [RandomSampler, SliceSampler, SliceSamplerWithoutReplacement])
@pytest.mark.parametrize("lossless", [False, True])
def test_saved_state_is_loaded_without_running_code(tmp_path, sampler, lossless):
    def buffer():
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(20, lossless=lossless),
            sampler=sampler() if sampler is RandomSampler else sampler(num_slices=2),
            batch_size=4,
            generator=torch.Generator().manual_seed(3),
        )

    one, two = buffer(), buffer()
    one.extend(trajectories([5, 3, 6]))
    one.sample()
    torch.save(one.state_dict(), tmp_path / "state.pt")
    two.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (one[:] == two[:]).all()
    assert (one.sample() == two.sample()).all()


def test_hooks_that_make_too_many_rows_change_nothing(tmp_path):
    other, buffer = made((20, 20), size=50), made()
    other.register_save_hook(lambda rows: rows)
    other.dumps(tmp_path)
    buffer.register_load_hook(lambda rows: rows)
    rows = buffer[:]
    with pytest.raises(ValueError, match="holds 40 rows and this buffer takes 1 to 30"):
        buffer.loads(tmp_path)
    assert (buffer[:] == rows).all()
