from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_replay.checkpoint import dump
from rl_transforms import RewardScaling

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


@pytest.mark.parametrize("extends", [1, 2, 5])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_loaded_buffer_samples_as_the_dumped_one(
    tmp_path, storage, sampler, extends, assert_same, buffer, write
):
    one, two = (buffer(STORAGES[storage](), SAMPLERS[sampler](), seed) for seed in (3, 4))
    for turn in range(extends):
        write(one, 10 * turn)
        one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(one) == len(two)
    assert_same(one[:], two[:])
    assert_same(one.sample(), two.sample())
    for turn in range(2):
        torch.manual_seed(turn)
        write(one, 100 + 10 * turn)
        torch.manual_seed(turn)
        write(two, 100 + 10 * turn)
        assert_same(one[:], two[:])
        assert_same(one.sample(), two.sample())


@pytest.mark.parametrize("storage", ["memory", "lossless"])
def test_trajectory_continues_after_loads(tmp_path, storage, batch, buffer):
    rows = batch([7])
    one, two = (buffer(STORAGES[storage](), SliceSampler(num_slices=1)) for _ in range(2))
    one.extend(rows[:4])
    one.dumps(tmp_path)
    two.loads(tmp_path)
    two.extend(rows[4:])
    assert two.storage.trajectories().lengths().tolist() == [7]


@pytest.mark.parametrize(
    ("marked", "how"),
    [(True, "dump"), (True, "state"), (True, "in place"), (False, "dump"), (False, "state")],
)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_rows_without_ids_continue_loaded_ones(tmp_path, storage, marked, how, batch, buffer):
    """By their observations, as they would have gone on in the buffer itself."""
    one, two = (buffer(STORAGES[storage](), RandomSampler()) for _ in range(2))
    batches = [batch([12]) for _ in range(1 + (one.storage.ndim == 2))]
    rows = torch.stack(batches) if one.storage.ndim == 2 else batches[0]
    done = ("next", "done")
    rows = rows.select("observation", ("next", "observation"), *([done] if marked else []))
    early, late = rows[..., :8], rows[..., 8:]
    one.extend(early)
    if how == "dump":
        one.dumps(tmp_path)
        two.loads(tmp_path)
    elif how == "state":
        two.load_state_dict(one.state_dict())
    else:
        two = one
        two[done] = two[done]
    two.extend(late)
    assert two.storage.trajectories().lengths().tolist() == [12] * len(batches)


def test_update_rows_after_loads_changes_no_next_observation(tmp_path, buffer, write):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    write(one, 0)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    before = two[:]["next", "observation"]
    rows = torch.tensor([1, 5, 6])
    two.update_rows(rows, TensorDict({"observation": torch.ones(3, 3)}, [3]))
    assert torch.equal(two[:]["next", "observation"], before)


def test_loaded_lossless_buffer_takes_no_more_memory(tmp_path, buffer, write):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    for turn in range(4):
        write(one, 10 * turn)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    slots = one.storage.store.explain(23)["side_slots"]
    assert 0 < slots < 8
    assert two.storage.store.explain(23)["side_slots"] == slots


def test_loads_replaces_all_rows(tmp_path, assert_same, buffer, write):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    write(one, 0)
    write(two, 50)
    write(two, 60)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one[:], two[:])


def test_dump_of_an_empty_buffer_is_loaded_empty(tmp_path, buffer, write):
    one, two = (buffer(STORAGES["memory"](), RandomSampler()) for _ in range(2))
    write(two, 0)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(two) == 0


def test_loads_keeps_row_ids(tmp_path, buffer, write):
    one, two = (buffer(STORAGES["memory"](), RandomSampler()) for _ in range(2))
    for turn in range(3):
        write(one, 10 * turn)
    rows = one.sample()["collector", "row"]
    one.dumps(tmp_path)
    two.loads(tmp_path)
    written = two.update_rows(rows, TensorDict({"observation": torch.ones(6, 3)}, [6]))
    assert written.all()


@pytest.mark.parametrize("storage", ["memory", "lossless"])
def test_dump_is_as_large_as_its_rows_not_as_the_capacity(tmp_path, storage, batch, buffer):
    sizes = []
    for capacity in (50, 5000):
        lossless = storage == "lossless"
        one = buffer(LazyTensorStorage(capacity, lossless=lossless), RandomSampler())
        one.extend(batch([9, 8], frame=True))
        folder = tmp_path / str(capacity)
        one.dumps(folder)
        sizes.append(sum(file.stat().st_size for file in folder.glob("data-*")))
    assert sizes[0] == sizes[1]


def test_lossless_dump_holds_each_observation_once(tmp_path, batch, buffer):
    one = buffer(LazyTensorStorage(200, lossless=True), RandomSampler())
    one.extend(batch([100, 50], frame=True))
    one.dumps(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("data-*"))
    assert size < 152 * 335 + 150 * 100


def test_plain_tensors_are_dumped_too(tmp_path):
    one, two = (ReplayBuffer(storage=TensorStorage(torch.zeros(9, 2))) for _ in range(2))
    one.extend(torch.rand(7, 2))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert (one[:] == two[:]).all()


def test_loads_keeps_the_form_of_trees(tmp_path):
    one, two = (ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2))
    one.extend(({"a": torch.rand(5, 2)}, torch.arange(5)))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert isinstance(two[:], tuple)
    assert (two[:][0]["a"] == one[:][0]["a"]).all()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            lambda buffer: buffer(LazyTensorStorage(23, lossless=True), RandomSampler()),
            "lossless=False",
        ),
        (
            lambda buffer: buffer(LazyTensorStorage(23), SliceSampler(num_slices=2)),
            "with a RandomSampler",
        ),
        (lambda buffer: buffer(LazyTensorStorage(23, ndim=2), RandomSampler()), "dimensions"),
    ],
)
def test_loads_refuses_a_dump_of_another_buffer_and_loses_nothing(
    tmp_path, other, words, assert_same, buffer, write
):
    one, two = buffer(LazyTensorStorage(23), RandomSampler()), other(buffer)
    write(one, 0)
    write(two, 50)
    before = two[:]
    one.dumps(tmp_path)
    with pytest.raises(ValueError, match=words):
        two.loads(tmp_path)
    assert_same(two[:], before)


def test_loads_refuses_an_altered_dump_and_loses_nothing(tmp_path, assert_same, buffer, write):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    write(one, 0)
    write(two, 50)
    before = two[:]
    one.dumps(tmp_path)
    name = next(tmp_path.glob("data-*"))
    raw = bytearray(name.read_bytes())
    raw[len(raw) // 2] ^= 4
    name.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{name.name} was altered"):
        two.loads(tmp_path)
    assert_same(two[:], before)


def test_dumps_of_a_list_of_objects_says_why_not(tmp_path):
    found = ReplayBuffer(storage=ListStorage(5))
    found.extend(["a"])
    with pytest.raises(NotImplementedError, match="only pickles could keep"):
        found.dumps(tmp_path)


def test_loads_refuses_a_dump_of_something_else(tmp_path, buffer):
    dump(tmp_path, {"weights": np.zeros(3)})
    with pytest.raises(ValueError, match=r"no dump of a buffer.*weights"):
        buffer(STORAGES["memory"](), RandomSampler()).loads(tmp_path)


@pytest.mark.parametrize("way", ["dump", "state"])
def test_loads_keeps_the_batch_size_where_the_dump_has_none(way, tmp_path, batch):
    def made(batch_size):
        return TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=batch_size)

    for theirs, ours, expected in [(None, 4, 4), (3, 4, 3), (3, None, 3), (None, None, None)]:
        saved, loaded = made(theirs), made(ours)
        saved.extend(batch([4, 3]))
        replaced = "batch_size 4 of this buffer was replaced by 3, that of the saved one"
        with pytest.warns(UserWarning, match=replaced) if theirs and ours else nullcontext():
            if way == "dump":
                saved.dumps(tmp_path / f"{theirs} {ours}")
                loaded.loads(tmp_path / f"{theirs} {ours}")
            else:
                loaded.load_state_dict(saved.state_dict())
        assert loaded.batch_size == expected
        if way == "dump":
            loaded.batch_size = ours
            loaded.loads(tmp_path / f"{theirs} {ours}", rows_only=True)
            assert loaded.batch_size == ours


@pytest.mark.parametrize("way", ["dump", "state"])
def test_transforms_that_differ_are_named_with_the_cure(way, tmp_path, batch):
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=2)
    saved.extend(batch([4, 3]))
    saved.dumps(tmp_path)
    loaded = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), transform=RewardScaling(0.0, 2.0), batch_size=2
    )
    said = r"this buffer has \['RewardScaling'\].*loads\(path, rows_only=True\)"
    with pytest.raises(ValueError, match=said):
        loaded.loads(tmp_path) if way == "dump" else loaded.load_state_dict(saved.state_dict())
    assert len(loaded) == 0
    loaded.loads(tmp_path, rows_only=True)
    assert torch.equal(loaded[:]["next", "reward"], 2 * saved[:]["next", "reward"])


def test_prefetching_buffer_loads_a_dump_without_batch_size(tmp_path, batch):
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    saved.extend(batch([4, 3]))
    saved.dumps(tmp_path)
    loaded = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=2, prefetch=1)
    loaded.loads(tmp_path)
    assert len(loaded.sample()) == 2


def test_rows_without_columns_are_refused_by_a_storage_of_two_dimensions(tmp_path):
    source = ReplayBuffer(storage=LazyTensorStorage(9))
    source.extend(torch.arange(6))
    source.dumps(tmp_path)
    # both grow along dimension 0
    target = ReplayBuffer(storage=LazyTensorStorage(9, ndim=2), dim_extend=0)
    with pytest.raises(ValueError, match=r"of 1 dimensions .* this one has 2"):
        target.loads(tmp_path)
