import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
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


def batch(lengths, start=0, frame=False):
    rows = trajectories(lengths, first_id=start)
    count = len(rows)
    observation = torch.randn(count + 1, 3)
    rows["observation"], rows["next", "observation"] = observation[:-1], observation[1:]
    if frame:
        frames = torch.randint(255, (count + 1, 5, 67), dtype=torch.uint8)
        rows["frame"], rows["next", "frame"] = frames[:-1], frames[1:]
    return rows


def buffer(storage, sampler, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=6, generator=generator
    )


def write(found, start, frame=True):
    rows = batch([4, 3, 5], start, frame)
    rows = rows.reshape(4, 3) if found.storage.ndim == 2 else rows
    found.extend(rows)
    return rows


def in_order(found):
    """All rows, the oldest first; of columns, one column after another."""
    storage, window = found.storage, found.storage.ring.window()
    positions = storage.ring.positions(window.numbers(torch.arange(len(window))))
    return storage.read(positions.view(-1, *storage.columns).transpose(0, -1).reshape(-1))


def assert_same(one, two):
    keys = set(one.keys(True, True))
    assert set(two.keys(True, True)) == keys
    for key in keys:
        left, right = one[key].contiguous(), two[key].contiguous()
        assert left.dtype is right.dtype
        assert left.numpy().tobytes() == right.numpy().tobytes(), key


@pytest.mark.parametrize("extends", [1, 2, 5])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_loaded_buffer_samples_as_the_dumped_one(tmp_path, storage, sampler, extends):
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
def test_trajectory_continues_after_loads(tmp_path, storage):
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
def test_rows_without_ids_continue_loaded_ones(tmp_path, storage, marked, how):
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


def test_update_rows_after_loads_changes_no_next_observation(tmp_path):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    write(one, 0)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    before = two[:]["next", "observation"]
    rows = torch.tensor([1, 5, 6])
    two.update_rows(rows, TensorDict({"observation": torch.ones(3, 3)}, [3]))
    assert torch.equal(two[:]["next", "observation"], before)


def test_loaded_lossless_buffer_takes_no_more_memory(tmp_path):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    for turn in range(4):
        write(one, 10 * turn)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    slots = one.storage.store.explain(23)["side_slots"]
    assert 0 < slots < 8
    assert two.storage.store.explain(23)["side_slots"] == slots


def test_loads_replaces_all_rows(tmp_path):
    one, two = (buffer(STORAGES["lossless"](), RandomSampler()) for _ in range(2))
    write(one, 0)
    write(two, 50)
    write(two, 60)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one[:], two[:])


def test_dump_of_an_empty_buffer_is_loaded_empty(tmp_path):
    one, two = (buffer(STORAGES["memory"](), RandomSampler()) for _ in range(2))
    write(two, 0)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(two) == 0


def test_loads_keeps_row_ids(tmp_path):
    one, two = (buffer(STORAGES["memory"](), RandomSampler()) for _ in range(2))
    for turn in range(3):
        write(one, 10 * turn)
    rows = one.sample()["collector", "row"]
    one.dumps(tmp_path)
    two.loads(tmp_path)
    written = two.update_rows(rows, TensorDict({"observation": torch.ones(6, 3)}, [6]))
    assert written.all()


@pytest.mark.parametrize("storage", ["memory", "lossless"])
def test_dump_is_as_large_as_its_rows_not_as_the_capacity(tmp_path, storage):
    sizes = []
    for capacity in (50, 5000):
        lossless = storage == "lossless"
        one = buffer(LazyTensorStorage(capacity, lossless=lossless), RandomSampler())
        one.extend(batch([9, 8], frame=True))
        folder = tmp_path / str(capacity)
        one.dumps(folder)
        sizes.append(sum(file.stat().st_size for file in folder.glob("data-*")))
    assert sizes[0] == sizes[1]


def test_lossless_dump_holds_each_observation_once(tmp_path):
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
        (lambda: buffer(LazyTensorStorage(23, lossless=True), RandomSampler()), "lossless=False"),
        (lambda: buffer(LazyTensorStorage(23), SliceSampler(num_slices=2)), "with a RandomSampler"),
        (lambda: buffer(LazyTensorStorage(23, ndim=2), RandomSampler()), "dimensions"),
    ],
)
def test_loads_refuses_a_dump_of_another_buffer_and_loses_nothing(tmp_path, other, words):
    one, two = buffer(LazyTensorStorage(23), RandomSampler()), other()
    write(one, 0)
    write(two, 50)
    before = two[:]
    one.dumps(tmp_path)
    with pytest.raises(ValueError, match=words):
        two.loads(tmp_path)
    assert_same(two[:], before)


def test_loads_refuses_an_altered_dump_and_loses_nothing(tmp_path):
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


def test_loads_refuses_a_dump_of_something_else(tmp_path):
    dump(tmp_path, {"weights": np.zeros(3)})
    with pytest.raises(ValueError, match="has no"):
        buffer(STORAGES["memory"](), RandomSampler()).loads(tmp_path)


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
def test_larger_storage_continues_loaded_rows_in_order(tmp_path, storage, sampler, extends, how):
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
def test_a_smaller_storage_takes_rows_that_fit(tmp_path, kind, lossless, how):
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
def test_loads_takes_lanes_into_larger_ones(tmp_path, lossless):
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


def test_epoch_of_slices_begins_anew_in_a_larger_storage(tmp_path):
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
def test_lossless_rows_are_loaded_from_any_positions(tmp_path, frame):
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


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_only_loads_into_a_buffer_of_other_parts(tmp_path, storage):
    kept = ReplayBuffer(storage=STORAGES[storage]())
    rows = batch([4, 3, 5])
    kept.extend(rows.reshape(4, 3) if kept.storage.ndim == 2 else rows)
    kept.dumps(tmp_path / "rows")
    other = buffer(STORAGES[storage](), SliceSampler(num_slices=2))
    with pytest.raises(ValueError, match=r"loads\(path, rows_only=True\)"):
        other.loads(tmp_path / "rows")
    assert len(other) == 0
    seed = other.state_dict()["rng"]
    other.loads(tmp_path / "rows", rows_only=True)
    assert (other[:].exclude("index") == kept[:]).all()
    assert torch.equal(other.state_dict()["rng"], seed)
    sample = other.sample()  # of the batch size that this buffer was made with, in slices
    assert 0 < len(sample) <= 6
    assert len(sample["collector", "slice_ids"].unique()) == 2


def test_rows_only_begins_an_epoch(tmp_path):
    kept = ReplayBuffer(storage=LazyTensorStorage(23))
    kept.extend(batch([4, 3, 5]))
    kept.dumps(tmp_path / "rows")
    other = buffer(LazyTensorStorage(23), SamplerWithoutReplacement())
    other.extend(batch([9]))
    other.sample()
    other.loads(tmp_path / "rows", rows_only=True)
    seen = torch.cat([other.sample()["index"] for _ in range(2)])
    assert sorted(seen.tolist()) == list(range(12))
    other.loads(tmp_path / "rows", rows_only=True)
    other.extend(batch([5], 60))
    assert len(other) == 17


def test_rows_only_that_do_not_fit_change_nothing(tmp_path):
    kept = ReplayBuffer(storage=LazyTensorStorage(23))
    kept.extend(batch([4, 3, 5]))
    kept.dumps(tmp_path / "rows")
    small = buffer(LazyTensorStorage(7), SamplerWithoutReplacement())
    small.extend(batch([6]))
    before = small[:].clone()
    drawn = small.sample()["index"]
    assert len(drawn) == 6
    with pytest.raises(ValueError, match="7"):
        small.loads(tmp_path / "rows", rows_only=True)
    assert (small[:] == before).all()


@pytest.mark.parametrize("way", ["dump", "state"])
def test_loads_keeps_the_batch_size_where_the_dump_has_none(way, tmp_path):
    def made(batch_size):
        return TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=batch_size)

    for theirs, ours, expected in [(None, 4, 4), (3, 4, 3), (3, None, 3), (None, None, None)]:
        saved, loaded = made(theirs), made(ours)
        saved.extend(batch([4, 3]))
        if way == "dump":
            saved.dumps(tmp_path / f"{theirs} {ours}")
            loaded.loads(tmp_path / f"{theirs} {ours}")
        else:
            loaded.load_state_dict(saved.state_dict())
        assert loaded.batch_size == expected


def test_prefetching_buffer_loads_a_dump_without_batch_size(tmp_path):
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
