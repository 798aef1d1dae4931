"""The conformance checks pass on every class of the package and fail on broken ones."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    Storage,
    TensorDictRoundRobinWriter,
    Writer,
)
from rl_replay.storages.private_session import PrivateRing
from rl_replay.testing import (
    BufferMachine,
    LinkedRing,
    LinksMachine,
    ListModel,
    LosslessRing,
    LosslessRowsMachine,
    RingMachine,
    SharedBufferMachine,
    StorageTrajectoryMachine,
    TrajectoryIndexMachine,
    check_sampler,
    check_storage,
    check_writer,
)
from rl_replay.trajectories.index import TrajectoryIndex

ONCE = settings(
    max_examples=100, deadline=None, database=None, phases=[Phase.generate], print_blob=False
)


@pytest.mark.parametrize(
    "make",
    [
        RandomSampler,
        SamplerWithoutReplacement,
        pytest.param(lambda: SliceSampler(slice_len=4), id="slices"),
        pytest.param(lambda: SliceSampler(slice_len=4, by="step", span=True), id="span"),
        pytest.param(lambda: SliceSamplerWithoutReplacement(slice_len=4), id="epochs of slices"),
    ],
)
def test_sampler_of_the_package_conforms(make):
    check_sampler(make)


@pytest.mark.parametrize(
    "make",
    [
        LazyTensorStorage,
        LazyMemmapStorage,
        ListStorage,
        pytest.param(lambda size: LazyTensorStorage(size, lossless=True), id="lossless"),
    ],
)
def test_storage_of_the_package_conforms(make):
    check_storage(make)


@pytest.mark.parametrize(
    "make", [RoundRobinWriter, TensorDictRoundRobinWriter, ImmutableDatasetWriter]
)
def test_writer_of_the_package_conforms(make):
    check_writer(make)


class OverwrittenRows(Sampler):
    """Chooses row ids from 0 on, which the ring has overwritten."""

    def sample(self, storage, batch_size):
        return torch.arange(batch_size), {}


class GlobalRandomness(Sampler):
    """Ignores the generator that it is given."""

    def sample(self, storage, batch_size):
        window = storage.ring.window()
        return window.numbers(torch.randint(len(window), (batch_size,))), {}


class TooManyRows(Sampler):
    """Chooses one row more than it was asked for."""

    def sample(self, storage, batch_size):
        return storage.ring.window().draw(batch_size + 1, generator=self.generator), {}


class Forgetful(Sampler):
    """Counts its calls, and does not save the count."""

    calls = 0

    def sample(self, storage, batch_size):
        self.calls += 1
        window = storage.ring.window()
        return window.numbers((torch.arange(batch_size) + self.calls) % len(window)), {}


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (OverwrittenRows, "only rows that can be read"),
        (GlobalRandomness, "equal generators"),
        (TooManyRows, "1 to batch_size rows"),
        (Forgetful, "a loaded state"),
    ],
)
def test_broken_sampler_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_sampler(broken)


class ShiftedReads(ListStorage):
    """Reads the row after the one that was asked for."""

    def read(self, positions):
        return super().read((positions + 1) % len(self))


class DroppedReplacement(ListStorage):
    """Replaces nothing."""

    def replace(self, positions, data):
        del positions, data


class SilentTruncation(ListStorage):
    """Stores the last rows of too many."""

    def extend(self, data):
        return super().extend(data[-self.max_size :])


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ShiftedReads, "reads back what was written"),
        (DroppedReplacement, "replace"),
        (SilentTruncation, "more rows than max_size"),
    ],
)
def test_broken_storage_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_storage(broken)


@pytest.mark.parametrize("broken", [ShiftedReads, DroppedReplacement, SilentTruncation])
def test_buffer_machine_fails_on_a_broken_storage(broken):
    class Broken(BufferMachine):
        storages: ClassVar[dict[str, type[Storage]]] = {"broken": broken}

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=ONCE)


class MiscountedRows(LazyTensorStorage):
    """Counts a row that it does not hold."""

    def __len__(self):
        return super().__len__() + (super().__len__() > 2)


def test_shared_buffer_machine_fails_on_a_broken_storage():
    class Broken(SharedBufferMachine):
        storages: ClassVar[dict[str, object]] = {
            "broken": lambda size, lanes, _: MiscountedRows(size, lanes=lanes)
        }

    with pytest.raises(AssertionError, match="number of rows of all lanes"):
        run_state_machine_as_test(Broken, settings=ONCE)


class JoinedRows(LazyTensorStorage):
    """Returns rows whose first steps are marked nowhere and whose steps are all of one id."""

    def read(self, *args, **kwargs):
        rows = super().read(*args, **kwargs).clone()
        rows["collector", "traj_step"] = torch.arange(len(rows))
        rows["collector", "traj_ids"] = torch.zeros(len(rows), dtype=torch.int64)
        rows["is_init"] = torch.zeros(len(rows), 1, dtype=torch.bool)
        return rows


def test_storage_trajectory_machine_fails_on_a_broken_storage():
    class Broken(StorageTrajectoryMachine):
        storages: ClassVar[dict[str, object]] = {
            "broken": lambda size, ndim: JoinedRows(size, ndim=ndim)
        }

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=ONCE)


class LeakyRing(PrivateRing):
    """Forgets that rows were given back."""

    def cancel(self):
        self.publish(0)


class ForgottenRows(LinkedRing):
    """Links nothing across calls."""

    def extend(self, batch, dim_extend=0):
        self.links.forget()
        return super().extend(batch, dim_extend)


class LateIndex(TrajectoryIndex):
    """Keeps one row too many."""

    def drop_before(self, number):
        super().drop_before(number - 1)


class SwappedNexts(LosslessRing):
    """Marks the wrong rows as continued."""

    def extend(self, cells, *, drop_next=False):
        super().extend(cells, drop_next=drop_next)
        self.rows.addresses.values[:] = self.rows.addresses.values[::-1].copy()


class BrokenRings(RingMachine):
    def make_ring(self, capacity):
        return LeakyRing(capacity)


class BrokenLinks(LinksMachine):
    def make(self, capacity, example):
        return ForgottenRows(capacity, example)


class BrokenIndex(TrajectoryIndexMachine):
    def make(self, capacity):
        return LateIndex(capacity)


class BrokenRows(LosslessRowsMachine):
    def make(self, capacity, seed, **kind):
        return SwappedNexts(capacity, seed, **kind)


@pytest.mark.parametrize("broken", [BrokenRings, BrokenLinks, BrokenIndex, BrokenRows])
def test_machines_of_parts_fail_on_broken_ones(broken):
    with pytest.raises((AssertionError, IndexError, ValueError)):
        run_state_machine_as_test(broken, settings=ONCE)


def test_list_model_holds_the_newest_rows_at_their_positions():
    model = ListModel(3)
    assert model.extend("abcde") == [0, 1, 2, 0, 1]
    assert model.contents() == ["d", "e", "c"]
    assert model.row_ids == {0: 3, 1: 4, 2: 2}
    model.replace(2, "f")
    assert model.contents() == ["d", "e", "f"]


def test_list_model_begins_at_its_first_position_after_it_was_emptied():
    model = ListModel(3)
    model.extend("abcd")
    model.empty()
    assert len(model) == 0
    assert model.extend("x") == [0]
    assert model.row_ids == {0: 6}


def test_list_model_refuses_to_replace_a_row_that_it_does_not_hold():
    with pytest.raises(KeyError, match=r"no row at 1: there are rows at \[0\]"):
        model_of("a").replace(1, "b")


def model_of(rows):
    model = ListModel(3)
    model.extend(rows)
    return model


class RandomState(Writer):
    """Saves another state each time."""

    def state_dict(self):
        return {"state": float(torch.rand(()))}


class CheckedOnce(Writer):
    """Refuses the first time only."""

    asked = False

    def check(self, count):
        if not self.asked:
            self.asked = True
            raise ValueError("not the first one: write again.")


@pytest.mark.parametrize(
    ("broken", "promise"),
    [(RandomState, "a loaded state"), (CheckedOnce, "refused by extend")],
)
def test_broken_writer_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_writer(broken)
