"""Every storage holds what a list of rows would: any dtype, any structure, any order of writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    Storage,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl_slabs.dtypes import CARRIERS
from rl_transforms import NextStateReconstructor

LAZY = [
    LazyTensorStorage,
    LazyMemmapStorage,
    lambda size, **options: LazyTensorStorage(size, lossless=["observation"], **options),
    lambda size, **options: LazyMemmapStorage(size, lossless=["observation"], **options),
]


@pytest.fixture(params=LAZY, ids=["memory", "file", "lossless", "lossless file"])
def lazy(request):
    return request.param


def steps(count: int, first: int = 0) -> TensorDict:
    row = torch.arange(first, first + count)
    after = {"observation": torch.stack([row + 1, row], -1).float(), "reward": row.unsqueeze(-1)}
    leaves = {"observation": torch.stack([row, row], -1).float(), "next": after}
    return TensorDict(leaves, [count], names=["time"])


def test_any_order_of_writes_leaves_the_newest_rows_in_their_places(lazy) -> None:
    storage, model, first = lazy(7), [None] * 7, 0
    for count in (3, 1, 7, 2, 6, 1, 5):
        rows = steps(count, first)
        span = storage.extend(rows)
        for number, row in zip(span.numbers, rows.unbind(0), strict=True):
            model[number % 7] = row
        first += count
        stored = [place for place in range(7) if model[place] is not None]
        found = storage.read(torch.tensor(stored))
        assert (found == torch.stack([model[place] for place in stored])).all()
    assert len(storage) == 7


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", list(CARRIERS))
def test_dtypes_are_read_bit_for_bit(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (5, 3 * dtype.itemsize))
    leaf = bits.to(torch.uint8).view(dtype)
    for storage in (LazyTensorStorage(5), LazyMemmapStorage(5)):
        storage.extend({"a": leaf})
        found = storage.read(torch.arange(5))["a"]
        assert found.dtype is dtype
        assert torch.equal(found.contiguous().view(torch.uint8), leaf.view(torch.uint8))
        for row in leaf:
            storage.add({"a": row})
        assert torch.equal(
            storage.read(torch.arange(5))["a"].contiguous().view(torch.uint8),
            leaf.view(torch.uint8),
        )


@pytest.mark.parametrize("count", [200, 300])
def test_many_rows_are_written_to_tensors_whose_rows_have_gaps(count: int) -> None:
    room = torch.zeros(300, 8)
    buffer = ReplayBuffer(storage=TensorStorage(room[:, ::2]))
    batch = torch.rand(count, 4)
    buffer.extend(batch)
    assert torch.equal(room[:count, ::2], batch)
    assert not room[:, 1::2].any()
    assert torch.equal(buffer[:], batch)


@pytest.mark.parametrize(
    ("ndim", "dim_extend", "shape"),
    [(2, 1, (3, 5)), (2, 0, (3, 5)), (3, 2, (2, 3, 4)), (3, 1, (2, 3, 4)), (3, 0, (2, 3, 4))],
)
def test_dimensions_come_back_as_they_were_given(lazy, ndim, dim_extend, shape) -> None:
    buffer = ReplayBuffer(storage=lazy(200, ndim=ndim), dim_extend=dim_extend)
    row = torch.arange(torch.Size(shape).numel()).view(shape)
    data = TensorDict({"observation": row, "b": row + 0.5}, shape)
    index = buffer.extend(data)

    def stored(at):
        return buffer[at].select("observation", "b")

    assert (stored(slice(None)) == data).all()
    assert (stored(tuple(index.unbind(-1))) == data.reshape(-1)).all()
    assert (stored(index[3][0]) == data[index[3][0]]).all()
    again = buffer.extend(data)
    assert (stored(slice(None)) == torch.cat([data, data], dim_extend)).all()
    assert (stored(tuple(again.unbind(-1))) == data.reshape(-1)).all()


def test_tensors_of_the_caller_are_written_in_place() -> None:
    room = torch.zeros(10, 3, 4, dtype=torch.uint8)
    buffer = ReplayBuffer(storage=TensorStorage(room))
    image = torch.randint(255, (3, 4), dtype=torch.uint8)
    buffer.add(image)
    assert torch.equal(room[0], image)
    assert len(buffer) == 1
    assert torch.equal(buffer.sample(2)[1], image)
    buffer.empty()
    buffer.extend(torch.ones(4, 3, 4, dtype=torch.uint8))
    assert room.sum() == 48


def test_tensors_of_the_caller_have_the_dimensions_of_the_storage() -> None:
    room = TensorDict({"a": torch.zeros(4, 3, 2)}, [4, 3])
    buffer = ReplayBuffer(storage=TensorStorage(room, ndim=2))
    buffer.extend(TensorDict({"a": torch.arange(12.0).view(3, 2, 2)}, [3, 2]))
    assert room["a"][1].tolist() == [[2, 3], [6, 7], [10, 11]]


def test_an_immutable_dataset_is_full_from_the_start_and_has_trajectories() -> None:
    rows = trajectories([3, 2, 4])
    buffer = ReplayBuffer(storage=TensorStorage(rows), writer=ImmutableDatasetWriter())
    assert len(buffer) == 9
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [2, 3, 4]
    for write in (
        lambda: buffer.extend(rows[:2]),
        lambda: buffer.add(rows[0]),
        lambda: buffer.__setitem__(0, rows[1]),
        buffer.empty,
    ):
        with pytest.raises(RuntimeError, match="immutable dataset"):
            write()
    assert (buffer[:] == rows).all()


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        (lambda: TensorStorage(None), ValueError, "use LazyTensorStorage"),
        (lambda: TensorStorage(torch.ones(3), max_size=4), ValueError, "hold 3 rows"),
        (lambda: TensorStorage(torch.ones(3, 4).T, ndim=2), ValueError, "make it contiguous"),
        (lambda: LazyTensorStorage(0), ValueError, "at least 1, got 0"),
        (lambda: LazyTensorStorage(2.5), TypeError, "must be an integer"),
        (lambda: LazyTensorStorage(5, ndim=4), ValueError, "1, 2 or 3, got 4"),
        (lambda: LazyMemmapStorage(5, device="cuda"), ValueError, "files are on the CPU"),
        (lambda: LazyTensorStorage(5, device="cuda:99"), RuntimeError, "no device 'cuda:99'"),
        (lambda: LazyTensorStorage(5, device="nowhere"), ValueError, "device: expected a torch"),
    ],
)
def test_what_cannot_be_a_storage_is_refused(storage, error, message) -> None:
    with pytest.raises(error, match=message):
        storage()


def test_a_file_is_kept_in_its_folder_and_not_written_over(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(9, scratch_dir=tmp_path / "new")
    storage.extend(steps(4))
    storage.flush()
    assert sorted(os.listdir(tmp_path / "new")) == ["rows.slab", "tables.slab"]
    with pytest.raises(FileExistsError, match=r"Storage.open\(scratch_dir\) .* existsok=True repl"):
        LazyMemmapStorage(9, scratch_dir=tmp_path / "new").extend(steps(2))
    LazyMemmapStorage(9, scratch_dir=tmp_path / "new", existsok=True).extend(steps(2))
    assert storage.read(torch.tensor([3]))["next", "reward"].item() == 3


def test_emptied_rows_may_be_followed_by_others(tmp_path: Path, lazy) -> None:
    buffer = ReplayBuffer(storage=lazy(9))
    buffer.extend(steps(6))
    numbers = buffer.sample(20)["collector", "row"]
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.extend(steps(3)).tolist() == [0, 1, 2]
    assert not set(buffer.sample(20)["collector", "row"].tolist()) & set(numbers.tolist())
    buffer.empty()
    other = TensorDict({"observation": torch.ones(2, 5), "b": torch.ones(2)}, [2])
    buffer.extend(other)
    assert (buffer[:].exclude("next", "collector") == other).all()


def test_emptying_keeps_the_memory_for_rows_of_the_same_kind(lazy) -> None:
    buffer = ReplayBuffer(storage=lazy(9))
    buffer.extend(steps(6))
    store = buffer.storage.store
    buffer.empty()
    buffer.extend(steps(2))
    assert buffer.storage.store is store


def test_a_storage_of_ones_own() -> None:
    class Doubling(ListStorage):
        def read(self, positions):
            return [2 * item for item in super().read(positions)]

    buffer = ReplayBuffer(storage=Doubling(5))
    buffer.extend([1, 2])
    assert buffer[:].tolist() == [2, 4]
    assert issubclass(Doubling, Storage)


def test_lists_hold_any_object() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4))
    buffer.add("a string!")
    buffer.extend([30, None])
    assert buffer[1] == 30
    assert buffer[:] == ["a string!", 30, None]
    buffer.extend([1.5, "b"])
    assert buffer[0] == "b"
    assert buffer.stats()["size"] == 4
    with pytest.raises(TypeError, match="use add"):
        buffer.extend(5)
    for data in (range(2), {7, 8}, (1, 2), torch.arange(2), steps(2)):
        assert len(buffer.extend(data)) == 2


def test_a_list_of_tensordicts_is_stacked_when_it_is_sampled() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=3)
    buffer.extend(steps(2))
    assert buffer.sample()["observation"].shape == (3, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("lossless", [False, True])
def test_rows_live_on_a_device(lossless: bool) -> None:
    storage = LazyTensorStorage(20, device="cuda", lossless=lossless)
    buffer = ReplayBuffer(storage=storage, transform=NextStateReconstructor())
    rows = trajectories([3, 6])
    buffer.extend(rows)
    buffer.extend(rows.to("cuda"))
    sample = buffer.sample(7)
    assert sample["observation"].is_cuda
    assert sample["collector", "row"].is_cuda
    assert (buffer[:9].cpu().exclude(keys.ROW) == rows).all()
    sample["action"] = sample["action"] + 1
    assert buffer.update_rows(sample["collector", "row"], sample).all()
    buffer.set_sampler(SliceSampler(slice_len=3))
    slices = buffer.sample(9)
    assert slices["is_init"].sum() >= 3
    steps_of = slices["collector", "traj_step"].view(3, 3)
    assert (steps_of.diff(dim=1) == 1).all()


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize(
    "storage",
    [
        lambda **lanes: LazyTensorStorage(12, **lanes),
        lambda **lanes: LazyTensorStorage(12, **lanes, lossless=True),
        lambda **lanes: LazyMemmapStorage(12, **lanes),
    ],
    ids=["memory", "lossless", "file"],
)
def test_rows_without_data_are_refused_and_the_old_ones_stay(storage, shared):
    buffer = TensorDictReplayBuffer(
        storage=storage(**({"lanes": 1} if shared else {})), shared=shared
    )
    buffer.extend(trajectories([4, 8]))
    before = buffer[:]
    rows = trajectories([5])
    rows["action"] = rows["action"].to("meta")
    with pytest.raises(ValueError, match=r"a leaf \[5, 1\] of torch\.int64 .*'meta'") as caught:
        buffer.extend(rows)
    assert "['action'] on the device 'meta'" in caught.value.__notes__[0]
    after = buffer[:]
    assert len(before) == len(after) > 0
    assert all(torch.equal(after[key], before[key]) for key in ("observation", "action"))
    assert buffer.extend(trajectories([2])).shape == (2,)


def test_a_storage_that_lacks_methods_names_them():
    class Half(Storage):
        def read(self, positions):
            raise NotImplementedError

    with pytest.raises(TypeError, match="Storage has no extend, read, replace: derive from it"):
        Storage(3)
    with pytest.raises(TypeError, match="Half has no extend, replace: derive from it"):
        Half(max_size=3)
