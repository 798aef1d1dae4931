"""Transforms of a buffer: both directions, neighbouring rows, valid positions."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout import RowSource, keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_transforms import (
    Compose,
    DTypeCastTransform,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    RandomCropTensorDict,
    RenameTransform,
    RewardSum,
    Transform,
)

NEXT_SEEN = ("next", "observation")


def plain(count: int) -> TensorDict:
    return TensorDict({"a": torch.arange(count)}, [count])


def test_functions_transform_samples_in_order_and_leave_stored_data() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), transform=lambda t: t.set("b", t["a"] + 1))
    buffer.append_transform(lambda t: t.set("c", t["b"] * 2))
    buffer.insert_transform(0, lambda t: t.set("a", t["a"] + 10))
    buffer.extend(plain(3))
    assert buffer[:]["c"].tolist() == [22, 24, 26]
    assert buffer[1]["c"] == 24
    assert (buffer.sample(4)["c"] >= 22).all()
    assert buffer.storage.read(torch.arange(3))["a"].tolist() == [0, 1, 2]


def test_stored_data_pass_the_inverses_in_reverse() -> None:
    narrow = DTypeCastTransform(torch.float16, torch.float32, ["x"], in_keys_inv=["x"])
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), transform=narrow)
    buffer.extend(TensorDict({"x": torch.ones(3)}, [3]))
    buffer.add(TensorDict({"x": torch.ones(())}))
    buffer[0] = TensorDict({"x": torch.full((), 2.0)})
    assert buffer.storage.store.schema["x"].dtype is torch.float16
    assert buffer[:]["x"].dtype is torch.float32
    assert buffer[:]["x"].tolist() == [2, 1, 1, 1]


def test_inverted_transform_changes_stored_data() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.append_transform(RenameTransform(["a"], ["z"]), invert=True)
    buffer.extend(plain(3))
    assert list(buffer.storage.store.schema) == ["z"]


def test_rows_that_a_transform_holds_back_are_not_stored_yet() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(50), transform=MultiStepTransform(n_steps=3, gamma=0.9)
    )
    rows = trajectories([6, 4], EndKind.CUT)
    assert buffer.extend(rows[:2]).shape == (0,)
    assert len(buffer) == 0
    assert buffer.add(rows[2]) == 0
    buffer.extend(rows[3:])
    assert len(buffer) == 6
    assert (buffer[:][keys.STEPS_TO_NEXT_OBS] == 3).all()
    assert buffer[:][NEXT_SEEN][0].tolist() == rows[NEXT_SEEN][2].tolist()


class Failing(LazyTensorStorage):
    """Fails before or after the rows of a call are stored."""

    moment: str | None = None

    def extend(self, data):
        if self.moment == "before":
            raise OSError("the disk is full")
        span = super().extend(data)
        if self.moment == "after":
            raise KeyboardInterrupt
        return span


@pytest.mark.parametrize(("moment", "again"), [("before", 3), ("after", 6)])
def test_failed_extend_leaves_held_rows_to_be_stored_once(moment: str, again: int) -> None:
    rows = trajectories([12], EndKind.CUT)
    storage = Failing(50)
    buffer = ReplayBuffer(storage=storage, transform=MultiStepTransform(n_steps=3, gamma=0.9))
    buffer.extend(rows[:3])  # the last two rows are held back
    storage.moment = moment
    with pytest.raises((OSError, KeyboardInterrupt)):
        buffer.extend(rows[3:6])
    storage.moment = None
    buffer.extend(rows[again:])  # a call that stored nothing is made again
    whole = ReplayBuffer(
        storage=LazyTensorStorage(50), transform=MultiStepTransform(n_steps=3, gamma=0.9)
    )
    whole.extend(rows)
    assert torch.equal(buffer[:][keys.TRAJ_STEP], whole[:][keys.TRAJ_STEP])
    assert torch.equal(buffer[:]["next", "reward"], whole[:]["next", "reward"])


def test_n_step_rows_are_trajectories_too() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(50), transform=MultiStepTransform(n_steps=3, gamma=0.9)
    )
    buffer.extend(trajectories([6, 4]))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [4, 6]


@pytest.mark.parametrize("lossless", [False, True])
def test_columns_take_n_step_rows_as_columns_alone(lossless) -> None:
    batch = environments(3, 8, [9], [EndKind.CUT]).exclude("collector", "is_init")
    batch.names = None

    def made(**options):
        ahead = MultiStepTransform(3, 0.9, **options)
        storage = LazyTensorStorage(60, ndim=2, lossless=lossless)
        return TensorDictReplayBuffer(storage=storage, transform=ahead, batch_size=9)

    flat, columns = made(), made(columns=True)
    flat.add(batch[:, 0])
    flat.add(batch[:, 1])  # held back
    with pytest.raises(ValueError, match=r"rows of batch size \[3\] of \[3, 1\].*columns=True"):
        flat.add(batch[:, 2])
    for step in range(8):
        columns.add(batch[:, step])
    assert columns[:].batch_size == (3, 6)
    assert (columns[:]["next", "steps_to_next_obs"] == 3).all()
    assert columns.storage.trajectories().lengths().tolist() == [6, 6, 6]


@pytest.mark.parametrize("sampler", [None, SliceSampler(slice_len=3)])
def test_next_observations_are_rebuilt_from_rows_outside_the_sample(sampler) -> None:
    rows = trajectories([7, 9, 5], EndKind.TERMINATED)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(50), sampler=sampler, transform=NextStateReconstructor()
    )
    for start in range(0, 21, 4):
        buffer.extend(rows.exclude(NEXT_SEEN)[start : start + 4])
    sample = buffer.sample(30)
    whole = rows[sample["index"]]
    missing = sample[keys.NEXT_MISSING]
    assert torch.equal(missing, whole[keys.NEXT_DONE].squeeze(-1))
    assert torch.equal(sample[NEXT_SEEN][~missing], whole[NEXT_SEEN][~missing])


@pytest.mark.parametrize("index", [slice(None), slice(2, 12), torch.tensor([13, 3, 6])])
def test_indexed_rows_are_rebuilt_like_a_sample(index) -> None:
    rows = trajectories([7, 9, 5], EndKind.TERMINATED)
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), transform=NextStateReconstructor())
    buffer.extend(rows.exclude(NEXT_SEEN))
    found, whole = buffer[index], rows[index]
    missing = found[keys.NEXT_MISSING]
    assert torch.equal(missing, whole[keys.NEXT_DONE].squeeze(-1))
    assert torch.equal(found[NEXT_SEEN][~missing], whole[NEXT_SEEN][~missing])


def test_single_row_is_transformed_like_several() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), transform=NextStateReconstructor()
    )
    buffer.extend(trajectories([5, 4]).exclude(("next", "observation")))
    several = buffer[torch.arange(9)]
    for row in range(9):
        one = buffer[row]
        assert one.batch_size == ()
        assert one["index"] == row
        assert one["collector", "next_missing"] == several["collector", "next_missing"][row]
        found, wanted = one["next", "observation"], several["next", "observation"][row]
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_indexed_columns_are_rebuilt() -> None:
    rows = trajectories([7, 9, 5], EndKind.TERMINATED).reshape(3, 7)
    buffer = ReplayBuffer(storage=LazyTensorStorage(21, ndim=2), transform=NextStateReconstructor())
    buffer.extend(rows.exclude(NEXT_SEEN))
    found, last = buffer[:], torch.arange(7) == 6
    missing = found[keys.NEXT_MISSING]
    assert torch.equal(missing, rows[keys.NEXT_DONE].squeeze(-1) | last)
    assert torch.equal(found[NEXT_SEEN][~missing], rows[NEXT_SEEN][~missing])


def test_overwritten_rows_are_no_neighbours() -> None:
    rows = trajectories([20], EndKind.CUT).exclude(NEXT_SEEN)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=NextStateReconstructor())
    buffer.extend(rows[:8])
    buffer.extend(rows[8:13])
    sample = buffer.sample(60)
    newest = sample["collector", "traj_step"] == 12
    assert torch.equal(sample[keys.NEXT_MISSING], newest)
    expected = sample["observation"] + torch.tensor([0.0, 1.0])
    assert torch.equal(sample[NEXT_SEEN][~newest], expected[~newest])


def test_transform_that_needs_rows_gets_those_of_the_buffer() -> None:
    class Ahead(Transform):
        needs_rows = True

        def forward(self, batch, source):
            assert isinstance(source, RowSource)
            numbers, proved = source.after(batch[keys.ROW], 2)
            rows, had = source.read(numbers, ["action"])
            before, known = source.before(batch[keys.ROW], 1)
            batch["ahead"], batch["had"] = rows["action"], proved & had
            batch["before"], batch["known"] = before, known
            return batch

    rows = trajectories([5, 4])
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), transform=Compose(Ahead()))
    buffer.extend(rows)
    sample = buffer.sample(40)
    at, step = sample["index"], sample["collector", "traj_step"]
    assert torch.equal(sample["had"], step + 2 < torch.where(at < 5, 5, 4))
    had = sample["had"]
    assert torch.equal(sample["ahead"][had], rows["action"][at[had] + 2])
    assert torch.equal(sample["known"], step > 0)
    assert torch.equal(sample["before"][step > 0], at[step > 0] - 1)


def test_deltas_are_stored_and_whole_observations_sampled() -> None:
    rows = trajectories([7, 5])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(50),
        transform=NextObservationDelta(in_keys=["observation"], side="write"),
    )
    buffer.extend(rows)
    assert NEXT_SEEN not in buffer.storage.store.schema


def test_whole_trajectories_are_cropped() -> None:
    rows = trajectories([6, 6, 6]).reshape(3, 6)
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), transform=RandomCropTensorDict(4))
    for row in rows:
        buffer.add(row)
    sample = buffer.sample(7)
    assert sample.batch_size == (7, 4)
    step = sample["collector", "traj_step"]
    assert torch.equal(step - step[:, :1], torch.arange(4).expand(7, 4))


def test_append_transform_refuses_one_that_cannot_work_in_a_buffer() -> None:
    class Outside(RewardSum):
        places = frozenset({"environment"})

    with pytest.raises(ValueError, match="cannot sit in a buffer"):
        ReplayBuffer(transform=Outside())
    with pytest.raises(TypeError, match="expected a transform or a callable"):
        ReplayBuffer(transform=3)


def test_functions_take_any_data_and_collation_comes_first() -> None:
    buffer = ReplayBuffer(storage=ListStorage(9), transform=lambda items: [i * 2 for i in items])
    buffer.extend(["a", "b"])
    assert buffer[:] == ["aa", "bb"]
    joined = ReplayBuffer(storage=ListStorage(9), collate_fn="-".join, transform=str.upper)
    joined.extend(["a", "b"])
    assert joined[:] == "A-B"


def test_batches_of_environments_pass_transforms_as_they_came() -> None:
    shapes = []

    class Look(Transform):
        def inv(self, batch):
            shapes.append(batch.batch_size)
            return batch

    buffer = ReplayBuffer(storage=LazyTensorStorage(60, ndim=2), transform=Look())
    buffer.extend(environments(3, 5, [9], [EndKind.CUT]))
    buffer.add(environments(3, 1, [9], [EndKind.CUT])[:, 0])
    assert shapes == [(3, 5), (3, 1)]
    assert len(buffer) == 18


@pytest.mark.parametrize(
    "sampler", [None, PrioritizedSampler(9, 0.6, 0.4), SliceSampler(slice_len=2)]
)
def test_empty_buffer_says_which_transform_holds_its_rows_back(sampler) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), sampler=sampler, transform=MultiStepTransform(3, 0.9)
    )
    empty = pytest.raises((ValueError, RuntimeError), match=r"no row|nothing is stored")
    with empty as nothing:
        buffer.sample(2)
    assert not any("holds" in note for note in getattr(nothing.value, "__notes__", []))
    buffer.extend(trajectories([5], EndKind.CUT)[:2])
    with empty as waiting:
        buffer.sample(2)
    assert waiting.value.__notes__[-1] == (
        "MultiStepTransform holds 2 rows back until those that they wait for have come."
    )
