"""Dumps that a storage of another size, or of other lanes, loads."""

import pytest
import torch

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

MARKED = [("next", "done"), ("next", "truncated"), "is_init", "collector"]

STORAGES = {
    "memory": lambda: LazyTensorStorage(23),
    "file": lambda: LazyMemmapStorage(23),
    "lossless": lambda: LazyTensorStorage(23, lossless=True),
    "lossless file": lambda: LazyMemmapStorage(23, lossless=True),
    "columns": lambda: LazyTensorStorage(24, ndim=2),
    "lossless columns": lambda: LazyTensorStorage(24, ndim=2, lossless=True),
}

SAMPLERS = {
    "random": RandomSampler,
    "once each": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(num_slices=2),
    "slices once each": lambda: SliceSamplerWithoutReplacement(num_slices=2, strict_length=False),
}


def in_order(found):
    """All rows, the oldest first; of columns, one column after another."""
    storage, window = found.storage, found.storage.ring.window()
    positions = storage.ring.positions(window.numbers(torch.arange(len(window))))
    return storage.read(positions.view(-1, *storage.columns).transpose(0, -1).reshape(-1))


LARGER = {
    "memory": lambda: LazyTensorStorage(40),
    "file": lambda: LazyMemmapStorage(40),
    "lossless": lambda: LazyTensorStorage(40, lossless=True),
    "lossless file": lambda: LazyMemmapStorage(40, lossless=True),
    "columns": lambda: LazyTensorStorage(42, ndim=2),
    "lossless columns": lambda: LazyTensorStorage(42, ndim=2, lossless=True),
}


@pytest.mark.parametrize("how", ["dump", "state"])
@pytest.mark.parametrize("extends", [1, 5])
@pytest.mark.parametrize("sampler", ["random", "slices"])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_larger_storage_continues_loaded_rows_in_order(
    tmp_path, storage, sampler, extends, how, assert_same, buffer, write
):
    """The oldest row comes first, and the next ones after the newest, until it is full."""
    one = buffer(STORAGES[storage](), SAMPLERS[sampler]())
    two = buffer(LARGER[storage](), SAMPLERS[sampler](), 4)
    batches = [write(one, 10 * turn, frame=False) for turn in range(extends)]
    one.sample()
    if how == "dump":
        one.dumps(tmp_path)
        two.loads(tmp_path)
    else:
        two.load_state_dict(one.state_dict())
    time = one.storage.ndim - 1  # the last dimension
    rows = torch.cat(batches, time)
    kept = len(one) // one.storage.columns.numel()
    rows = rows[..., rows.shape[-1] - kept :]
    assert_same(two[:].exclude("index"), rows)
    assert two.storage.ring.window().first[0] % two.storage.max_size == 0
    two.storage.trajectories().check(two.storage.back)
    sample = two.sample()
    index = sample["index"] if time == 0 else tuple(sample["index"].unbind(-1))
    assert_same(sample.exclude("index", *MARKED), two[index].exclude("index", *MARKED))
    for turn in range(3):
        rows = torch.cat([rows, write(two, 100 + 10 * turn, frame=False)], time)
        kept = min(rows.shape[-1], two.storage.max_size // two.storage.columns.numel())
        assert_same(in_order(two), rows[..., rows.shape[-1] - kept :].reshape(-1))
        two.sample()


@pytest.mark.parametrize("how", ["dump", "state"])
@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_a_smaller_storage_takes_rows_that_fit(
    tmp_path, kind, lossless, how, assert_same, batch, buffer
):
    # who reads a dataset need not know how much room its writer had
    def made(size):
        return buffer(kind(size, lossless=lossless), SliceSampler(num_slices=2), 4)

    one, two, short = made(40), made(15), made(14)
    short.extend(batch([2], 90))
    one.extend(batch([3, 7, 5]))
    one.sample()
    one.dumps(tmp_path)

    def load(into):
        into.loads(tmp_path) if how == "dump" else into.load_state_dict(one.state_dict())

    load(two)
    assert_same(two[:], one[:])
    two.storage.trajectories().check(two.storage.back)
    assert two.storage.trajectories().lengths().tolist() == [3, 7, 5]
    two.sample()
    two.extend(batch([4], 40))
    assert sorted(two.storage.trajectories().lengths().tolist()) == [4, 5, 6]
    with pytest.raises(ValueError, match="15 rows do not fit this storage of 14"):
        load(short)
    assert short[:]["collector", "traj_step"].tolist() == [0, 1]  # it lost nothing


@pytest.mark.parametrize("lossless", [False, True])
def test_loads_takes_lanes_into_larger_ones(tmp_path, lossless, batch):
    def made(size):
        storage = LazyTensorStorage(size, lossless=lossless, lanes=2)
        return TensorDictReplayBuffer(storage=storage, shared=True)

    one, two = made(20), made(40)
    for start in (0, 20):
        one.extend(batch([3, 5], start))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert two[:]["collector", "traj_ids"].unique().tolist() == sorted(
        one[:]["collector", "traj_ids"].unique().tolist()
    )
    two.extend(batch([4], 40))
    assert len(two) == len(one) + 4
    assert sum(two.storage.trajectories().lengths()) == len(two)


def test_epoch_of_slices_begins_anew_in_a_larger_storage(tmp_path, batch, buffer):
    one, two = (
        buffer(LazyTensorStorage(size), SliceSamplerWithoutReplacement(num_slices=1))
        for size in (12, 40)
    )
    one.extend(batch([3, 3, 3, 3]))
    one.extend(batch([3], 20))  # in place of the oldest one
    one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert sum(1 for _ in two) == 4


@pytest.mark.parametrize("frame", [False, True])
def test_lossless_rows_are_loaded_from_any_positions(tmp_path, frame, assert_same, batch):
    """Whether or not rows hold their links themselves, which those without frames do not."""
    rows = batch([4, 9, 5, 3], frame=frame)
    makes = [
        lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(16, lossless=True)),
        lambda: TensorDictReplayBuffer(storage=LazyMemmapStorage(16, lossless=True)),
        lambda: TensorDictReplayBuffer(
            storage=LazyTensorStorage(16, lossless=True, lanes=1), shared=True
        ),
    ]
    for number, one in enumerate(make() for make in makes):
        for start in range(0, len(rows), 7):  # round the ring, through trajectories
            one.extend(rows[start : start + 7])
        assert one.storage.store.layout.apart is not frame
        one.dumps(tmp_path / str(number))
        before = one[:]
        one.extend(rows[:5])
        for two in (make() for make in makes):
            two.loads(tmp_path / str(number))
            assert_same(two[:], before)
            two.extend(rows[:5])
            assert_same(two[:], one[:])
