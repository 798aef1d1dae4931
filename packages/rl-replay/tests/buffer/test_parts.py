"""Exchange of the parts of a buffer, and parts that exclude each other."""

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SliceSampler,
    TensorStorage,
    Writer,
)


def filled(**parts) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(30), batch_size=4, **parts)
    buffer.extend(trajectories([5, 7]))
    return buffer


class KeepsOld(RoundRobinWriter):
    overwrites_oldest = False


@pytest.mark.parametrize(
    ("exchange", "error", "message"),
    [
        (
            lambda b: b.set_sampler(SliceSampler(num_slices=2, traj_key="game")),
            KeyError,
            "no column 'game'",
        ),
        (
            lambda b: b.set_sampler(SliceSampler(num_slices=2, end_key=("next", "lost"))),
            KeyError,
            "no column",
        ),
        (lambda b: b.set_sampler(3), TypeError, "sampler must be a Sampler, got int"),
        (lambda b: b.set_writer(3), TypeError, "writer must be a Writer, got int"),
        (lambda b: b.set_storage(3), TypeError, "storage must be a Storage, got int"),
        (lambda b: b.set_storage(ListStorage(9), 3), TypeError, "collate_fn must be a function"),
        (lambda b: b.set_rng(3), TypeError, "generator must be a torch.Generator, got int"),
    ],
)
def test_exchange_of_an_unfit_part_leaves_the_former_one(exchange, error, message) -> None:
    buffer = filled()
    before, parts = repr(buffer), (buffer.storage, buffer.sampler, buffer.writer)
    rows = buffer[:]
    with pytest.raises(error, match=message):
        exchange(buffer)
    assert repr(buffer) == before
    assert (buffer.storage, buffer.sampler, buffer.writer) == parts
    assert (buffer[:] == rows).all()
    assert buffer.sample().shape == (4,)
    buffer.extend(trajectories([3]))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [3, 5, 7]


def test_set_storage_refuses_one_without_the_column_of_the_sampler() -> None:
    rows = TensorDict({"game": torch.tensor([1, 1, 2]), "a": torch.arange(3)}, [3])
    sampler = SliceSampler(num_slices=1, traj_key="game")
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=1)
    buffer.extend(rows)
    other = LazyTensorStorage(9)
    other.extend(rows.exclude("game"))
    with pytest.raises(KeyError, match="no column 'game'"):
        buffer.set_storage(other)
    assert len(buffer) == 3
    assert "game" in buffer.sample()


def test_set_writer_refuses_one_that_keeps_old_rows_of_lossless_storage() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9, lossless=True))
    buffer.extend(trajectories([5]))
    with pytest.raises(ValueError, match="does not overwrite the oldest row first"):
        buffer.set_writer(KeepsOld())
    buffer.extend(trajectories([2]))
    assert len(buffer) == 7


@pytest.mark.parametrize("dim", [1.0, True, "1"])
def test_dim_extend_is_an_integer(dim: object) -> None:
    with pytest.raises(TypeError, match="dim_extend must be an integer"):
        ReplayBuffer(storage=LazyTensorStorage(9, ndim=2), dim_extend=dim)


def test_set_storage_takes_the_last_dimension_of_the_storage() -> None:
    rows = torch.arange(12).view(3, 4)
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.set_storage(LazyTensorStorage(24, ndim=2))
    assert buffer.dim_extend == 1
    buffer.extend(rows)
    buffer.extend(rows + 12)
    assert torch.equal(buffer[:], torch.cat([rows, rows + 12], 1))
    buffer.set_storage(LazyTensorStorage(24, ndim=3))
    assert buffer.dim_extend == 2


def test_dim_extend_of_the_caller_outlives_set_storage() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(24, ndim=2), dim_extend=0)
    buffer.set_storage(LazyTensorStorage(24, ndim=3))
    assert buffer.dim_extend == 0
    old = buffer.storage
    other = ReplayBuffer(storage=LazyTensorStorage(24, ndim=2), dim_extend=1)
    with pytest.raises(ValueError, match=r"dim_extend must be in \[0, 1\)"):
        other.set_storage(LazyTensorStorage(9))
    assert other.storage.ndim == 2
    assert buffer.storage is old


def test_set_storage_refuses_rows_written_along_another_dimension() -> None:
    lying = LazyTensorStorage(24, ndim=2)
    lying.arrange(0)
    lying.extend(torch.arange(6).view(2, 3))
    buffer = ReplayBuffer(storage=LazyTensorStorage(24, ndim=2), dim_extend=1)
    buffer.extend(torch.arange(6).view(2, 3))
    with pytest.raises(RuntimeError, match="rows were written along dimension 0"):
        buffer.set_storage(lying)
    assert torch.equal(buffer[:], torch.arange(6).view(2, 3))
    free = ReplayBuffer()
    free.set_storage(lying)
    assert torch.equal(free[:], torch.arange(6).view(2, 3))


def test_dataset_writer_refuses_writes_from_set_writer_on() -> None:
    buffer = filled()
    rows = buffer[:]
    assert isinstance(buffer.set_writer(ImmutableDatasetWriter()), RoundRobinWriter)
    with pytest.raises(RuntimeError, match="immutable dataset"):
        buffer.extend(rows)
    assert (buffer[:] == rows).all()


@pytest.mark.parametrize(
    "write",
    [
        lambda b, rows: b.add(rows[0]),
        lambda b, rows: b.extend(rows),
        lambda b, rows: b.__setitem__(0, rows[1]),
        lambda b, rows: b.__setitem__("observation", 0.0),
        lambda b, rows: b.update_rows(torch.tensor([0]), rows[1:2].select("observation")),
        lambda b, rows: b.empty(),
    ],
    ids=["add", "extend", "row", "column", "update_rows", "empty"],
)
def test_writer_is_asked_before_every_kind_of_write(write) -> None:
    buffer = filled(writer=None)
    rows = buffer[:].clone()
    buffer.set_writer(ImmutableDatasetWriter())
    with pytest.raises(RuntimeError, match="immutable dataset"):
        write(buffer, rows)
    assert (buffer[:] == rows).all()


def test_dataset_in_lazy_storage_is_empty_until_it_is_loaded(tmp_path) -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(9))
    made.extend(torch.arange(5))
    made.set_writer(ImmutableDatasetWriter())
    made.dumps(tmp_path)
    dataset = ReplayBuffer(storage=LazyTensorStorage(9), writer=ImmutableDatasetWriter())
    assert len(dataset) == 0
    dataset.loads(tmp_path)
    assert dataset[:].tolist() == [0, 1, 2, 3, 4]


def test_dataset_writer_does_not_restore_dropped_rows() -> None:
    buffer = filled()
    buffer.empty()
    buffer.set_writer(ImmutableDatasetWriter())
    assert len(buffer) == 0


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler(), SliceSampler(slice_len=2), SliceSampler(slice_len=2, by="step")],
    ids=repr,
)
def test_a_dataset_that_was_taken_for_room_is_told_its_writer(sampler):
    rows = trajectories([4, 5])
    buffer = ReplayBuffer(storage=TensorStorage(rows), sampler=sampler, batch_size=4)
    with pytest.raises(ValueError, match="write") as told:
        buffer.sample()
    assert "writer=ImmutableDatasetWriter()" in told.value.__notes__[0]
    buffer.set_writer(ImmutableDatasetWriter())
    assert buffer.sample().shape == (4,)


@pytest.mark.parametrize("part", ["storage", "sampler", "writer"])
def test_buffer_names_a_part_of_the_wrong_kind(part: str) -> None:
    with pytest.raises(TypeError, match=f"{part} must be a {part.capitalize()}, got int"):
        ReplayBuffer(**{part: 3})


def test_buffer_refuses_a_writer_that_keeps_old_rows_of_lossless_storage() -> None:
    class Best(Writer):
        overwrites_oldest = False

    with pytest.raises(ValueError, match="Best does not overwrite the oldest row first"):
        ReplayBuffer(storage=LazyTensorStorage(9, lossless=True), writer=Best())
    buffer = ReplayBuffer(storage=LazyTensorStorage(9, lossless=True))
    with pytest.raises(ValueError, match="Best does not overwrite"):
        buffer.set_writer(Best())
    assert isinstance(buffer.writer, RoundRobinWriter)


class CountedWriter(Writer):
    """Notes how many rows each call brings."""

    def __init__(self):
        self.counts = []

    def check(self, count):
        self.counts.append(count)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(trajectories([3, 4]), 7, id="flat"),
        pytest.param(environments(2, 5, [5], [EndKind.CUT]), 10, id="batch of trajectories"),
        pytest.param([1, 2, 3], 3, id="list"),
        pytest.param(torch.arange(6), 6, id="tensor"),
        pytest.param({"a": torch.zeros(4, 2)}, 4, id="dict"),
        pytest.param((torch.zeros(5), torch.zeros(5, 3)), 5, id="tuple"),
    ],
)
def test_writer_is_told_how_many_rows_a_call_brings(data, count):
    writer = CountedWriter()
    ReplayBuffer(storage=LazyTensorStorage(50), writer=writer).extend(data)
    assert writer.counts == [count]
