"""Every storage holds what a list of rows would: any dtype, any structure, any order of writes."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest
import torch
from tensordict import MemoryMappedTensor, TensorDict

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
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
from rl_replay.data.dicts import DictReader
from rl_replay.data.staged_row import Readers, copy_each, copy_one_by_one
from rl_replay.data.structure import Structure
from rl_replay.storages.row_store import PlainOneRow
from rl_slabs import Rows, RowSchema
from rl_slabs.dtypes import CARRIERS
from rl_slabs.rows.tensordict_leaves import TensordictReader
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


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", list(CARRIERS))
def test_one_row_of_any_dtype_is_written_as_a_batch_of_one_is(dtype: torch.dtype) -> None:
    leaf = torch.arange(6, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)[:3]
    if dtype is torch.bool:
        leaf = torch.tensor([True, False, True])
    row = TensorDict({"a": leaf, "b": {"c": leaf[0]}})
    storage = LazyTensorStorage(4)
    storage.add(row)
    storage.add(row)
    found = storage.read(torch.tensor([0, 1]))
    for key in ("a", ("b", "c")):
        both = found[key].reshape(2, -1).contiguous().view(torch.uint8)
        assert torch.equal(both[0], both[1])
        assert torch.equal(both[1].reshape(-1), row[key].reshape(-1).view(torch.uint8))


def test_rows_with_leaves_of_every_size_are_written_one_by_one() -> None:
    frames = torch.randint(255, (3, 5, 7, 11), dtype=torch.uint8)
    rows = TensorDict({"frame": frames, "action": torch.rand(3, 2)}, [3])
    storage = LazyTensorStorage(4)
    storage.extend(rows[:1])
    storage.add(rows[1])
    storage.add(rows[2])
    assert (storage.read(torch.arange(3)) == rows).all()


def test_a_row_with_a_gradient_is_stored_and_then_let_go() -> None:
    storage = LazyTensorStorage(4)
    storage.extend(TensorDict({"a": torch.zeros(1, 3)}, [1]))
    leaf = torch.ones(3, requires_grad=True)
    storage.add(TensorDict({"a": leaf}))
    gone = weakref.ref(leaf)
    del leaf
    assert gone() is None
    assert torch.equal(storage.read(torch.tensor([1]))["a"], torch.ones(1, 3))


@pytest.mark.parametrize("first", [True, False])
def test_rows_come_in_and_out_of_inference_mode(first: bool) -> None:
    row = TensorDict({"a": torch.ones(3)})
    schema = RowSchema({"a": (torch.float32, (3,))})
    dicts = DictReader(schema, Structure("tensordict"))
    readers = Readers(TensordictReader(schema), dicts)
    with torch.inference_mode(first):
        one_row = PlainOneRow(Rows.zeros(schema, 2), readers)
    with torch.inference_mode(not first):
        found = one_row.take(row)
    assert found is not None
    assert found["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("leaf", "error"),
    [
        (torch.ones(3).to_sparse(), TypeError),
        (torch.ones(3, dtype=torch.float64), TypeError),
        (torch.ones(4), ValueError),
    ],
)
def test_a_row_that_does_not_fit_changes_nothing(leaf: torch.Tensor, error: type) -> None:
    storage = LazyTensorStorage(2)
    rows = TensorDict({"a": torch.rand(2, 3), "b": torch.rand(2, 1)}, [2])
    storage.extend(rows)
    with pytest.raises(error):
        storage.add(TensorDict({"b": torch.zeros(1), "a": leaf}))
    assert (storage.read(torch.arange(2)) == rows).all()
    storage.add(rows[1])
    assert (storage.read(torch.tensor([0])) == rows[1:]).all()


def test_leaves_are_copied_alike_with_and_without_one_call_for_all() -> None:
    sources = [torch.rand(3), torch.tensor(7), torch.ones(2, dtype=torch.bool)]
    once, each = ([torch.zeros_like(leaf) for leaf in sources] for _ in range(2))
    copy_each(once, sources)
    copy_one_by_one(each, sources)
    for one, other, source in zip(once, each, sources, strict=True):
        assert torch.equal(one, source)
        assert torch.equal(other, source)


@pytest.mark.parametrize("gone", [None, "traj_step", "traj_ids"])
@pytest.mark.parametrize("sizes", [(5, 1, 9, 3), (300, 700, 40, 650)])
def test_rows_that_are_taken_apart_at_once_are_stored_as_others_are(gone, sizes) -> None:
    batch = trajectories([3, 1, 8] * (sum(sizes) // 12 + 1), first_id=7)
    if gone is not None:
        batch = batch.exclude(("collector", gone))
    quick, slow = (LazyTensorStorage(1000) for _ in range(2))
    for part in batch[: sum(sizes)].split(list(sizes)):
        first, second = quick.extend(part), slow.extend(part)
        assert first.numbers == second.numbers
        assert quick.session.table.readers is not None
        slow.session.table.readers = None  # from here on it takes the long way
    rows = torch.arange(len(quick))
    assert len(quick) == len(slow) == min(1000, sum(sizes))
    assert (quick.read(rows) == slow.read(rows)).all()
    assert quick.back.tolist() == slow.back.tolist()
    assert quick.trajectories().lengths().tolist() == slow.trajectories().lengths().tolist()


@pytest.mark.parametrize("count", [200, 300])
def test_many_rows_are_written_to_tensors_whose_rows_have_gaps(count: int) -> None:
    room = torch.zeros(300, 8)
    buffer = ReplayBuffer(storage=TensorStorage(room[:, ::2]))
    batch = torch.rand(count, 4)
    buffer.extend(batch)
    assert torch.equal(room[:count, ::2], batch)
    assert not room[:, 1::2].any()
    assert torch.equal(buffer[:], batch)


def test_a_row_with_a_gradient_or_of_a_subclass_is_stored_too(tmp_path: Path) -> None:
    storage = LazyTensorStorage(4)
    plain = torch.ones(3)
    mapped = MemoryMappedTensor.from_tensor(plain, filename=str(tmp_path / "leaf"))
    for leaf in (plain, torch.ones(3, requires_grad=True), mapped):
        storage.add(TensorDict({"a": leaf}))
    assert storage.read(torch.arange(3))["a"].sum() == 9


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


def test_sizes_are_rounded_up_to_whole_columns() -> None:
    storage = LazyTensorStorage(100, ndim=2)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(environments(3, 22, [9], [EndKind.CUT]))
    assert buffer.storage.max_size == 102
    assert storage.shape == (34, 3)


def test_a_wrapped_storage_of_two_dimensions_keeps_its_columns_apart() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    for step in range(0, 10, 2):
        data = torch.tensor([[0, 1], [100, 101], [200, 201]]) + step
        buffer.extend(TensorDict({"a": data}, [3, 2]))
    assert (buffer[:]["a"] // 100).tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert sorted(buffer[0]["a"].tolist()) == [6, 7, 8, 9]


def test_adding_to_two_dimensions_adds_one_step_of_every_column() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    for step in range(3):
        index = buffer.add(TensorDict({"a": torch.arange(4) * 10 + step}, [4]))
    assert index.tolist() == [[0, 2], [1, 2], [2, 2], [3, 2]]
    assert buffer[:]["a"].tolist() == [[c * 10 + step for step in range(3)] for c in range(4)]


def test_other_columns_are_refused() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    buffer.extend(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"columns \[3\] .* got batch size \[2, 3\]"):
        buffer.extend(torch.zeros(2, 3))
    assert len(buffer) == 6


def test_whole_trajectories_may_be_elements() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    rows = trajectories([4, 4, 4]).reshape(3, 4)
    for row in rows[:2]:
        buffer.add(row)
    buffer.extend(rows[2:])
    assert len(buffer) == 3
    assert buffer.sample(7).batch_size == (7, 4)
    assert (buffer[:] == rows).all()
    assert buffer[1].batch_size == (4,)


@pytest.mark.parametrize("transform", [None, lambda rows: rows])
def test_a_list_of_elements_is_stored_as_they_are_one_by_one(transform) -> None:
    listed, added = (
        ReplayBuffer(storage=LazyTensorStorage(5), transform=transform) for _ in range(2)
    )
    rows = trajectories([4, 4, 4, 4]).reshape(4, 4)
    assert listed.extend([rows[0], rows[1]]).tolist() == [0, 1]
    listed.extend([rows[2]])
    listed.add(rows[3])
    for row in rows:
        added.add(row)
    assert len(listed) == len(added) == 4
    assert listed[:].batch_size == added[:].batch_size == (4, 4)
    assert (listed[:] == added[:]).all()


def test_a_list_of_several_rows_each_is_refused_as_one_of_them_is() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(trajectories([3]))
    for write in (lambda rows: buffer.extend([rows]), buffer.add):
        with pytest.raises(ValueError, match=r"one element of 0 batch dimension\(s\), got"):
            write(trajectories([2]))
    assert len(buffer) == 3


@pytest.mark.parametrize("form", ["tensordict", "tensor"])
def test_a_list_of_steps_of_all_columns_grows_along_time(form) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    steps = [torch.arange(4) * 10 + step for step in range(3)]
    if form == "tensordict":
        steps = [TensorDict({"a": step}, [4]) for step in steps]
    index = buffer.extend(steps[:2])
    assert index[:3].tolist() == [[0, 0], [0, 1], [1, 0]]
    buffer.add(steps[2])
    rows = buffer[:]["a"] if form == "tensordict" else buffer[:]
    assert rows.tolist() == [[c * 10 + step for step in range(3)] for c in range(4)]
    with pytest.raises(ValueError, match=r"at least 1 batch dimension\(s\) here, got 0"):
        buffer.extend([step[0] for step in steps])


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
    with pytest.raises(FileExistsError, match="is there already"):
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
