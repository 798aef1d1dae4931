"""Rows that hooks change on their way to the disk and back: the ring continues in order."""

import tempfile
from collections import deque

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tensordict import TensorDict

from rl_layout import EndKind, Flat2TED, Nested2TED, TED2Flat, TED2Nested
from rl_layout.testing import environments, trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
)

STORAGES = {
    "memory": lambda: LazyTensorStorage(17),
    "file": lambda: LazyMemmapStorage(17),
    "lossless": lambda: LazyTensorStorage(17, lossless=True),
    "columns": lambda: LazyTensorStorage(18, ndim=2),
}


def same(rows):
    return rows


def made(storage, hooks=(same, same)):
    buffer = ReplayBuffer(storage=storage)
    buffer.register_save_hook(hooks[0])
    buffer.register_load_hook(hooks[1])
    return buffer


@pytest.mark.parametrize(
    "hooks", [(TED2Flat(), Flat2TED()), (TED2Nested(), Nested2TED())], ids=["flat", "nested"]
)
@pytest.mark.parametrize("storage", STORAGES)
def test_hooks_with_codecs_restore_every_row_bit_for_bit(tmp_path, storage, hooks):
    one, two = (made(STORAGES[storage](), hooks) for _ in range(2))
    batch = (
        environments(3, 10, [4, 3], [EndKind.TERMINATED])
        if storage == "columns"
        else trajectories([9, 4, 12])
    )
    for part in batch.split(5, dim=-1):  # the ring is gone around
        one.extend(part)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(two) == len(one)
    assert (two[:] == one[:]).all()  # in the same places
    after = trajectories([2], first_id=900) if storage != "columns" else batch[:, :1]
    assert (one.extend(after) == two.extend(after)).all()  # over the oldest
    assert (two[:] == one[:]).all()
    lengths = (sorted(b.storage.trajectories().lengths().tolist()) for b in (one, two))
    assert next(lengths) == next(lengths)


def test_hooks_may_make_groups_of_other_sizes(tmp_path):
    def apart(rows):
        return TensorDict({"a": TensorDict({"b": rows["a"].clone()}, [3]), "n": torch.tensor(3)})

    one, two = (
        made(LazyTensorStorage(9), (apart, lambda found: found["a"].rename_key_("b", "a")))
        for _ in range(2)
    )
    one.extend(TensorDict({"a": torch.arange(3)}, [3]))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert two["a"].tolist() == [0, 1, 2]


def test_rows_behind_hooks_keep_cursor_sampler_and_age(tmp_path):
    def full():
        sampler = SamplerWithoutReplacement()
        buffer = ReplayBuffer(storage=LazyTensorStorage(30), sampler=sampler, batch_size=4)
        buffer.register_save_hook(TED2Flat())
        buffer.register_load_hook(Flat2TED())
        buffer.set_rng(torch.Generator().manual_seed(3))
        return buffer

    one, two = full(), full()
    for first, length in ((0, 12), (50, 30)):
        one.extend(trajectories([length], first_id=first))
    one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    rows = [(one.sample(), two.sample()) for _ in range(3)]
    assert all((mine == other).all() for mine, other in rows)
    new = trajectories([10], first_id=99)
    newest = one[:]["collector", "traj_step"].max()
    assert (two.extend(new) == one.extend(new)).all()
    # the rows that were the newest are still there
    assert two[:]["collector", "traj_step"].max() == newest
    assert (two[:] == one[:]).all()


def test_rows_of_another_sampler_are_taken_alone(tmp_path):
    one, two = (
        made(LazyTensorStorage(9)),
        ReplayBuffer(storage=LazyTensorStorage(9), sampler=SamplerWithoutReplacement()),
    )
    two.register_load_hook(same)
    one.extend(trajectories([5]))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(two) == 5


class Hooked(RuleBasedStateMachine):
    """Buffers that are written, dumped and loaded after hooks, against a list of the newest."""

    capacity = 7

    def __init__(self):
        super().__init__()
        self.buffer = made(LazyTensorStorage(self.capacity))
        self.model = deque(maxlen=self.capacity)
        self.count = 0

    @rule(rows=st.integers(1, 7))
    def extend(self, rows):
        values = range(self.count, self.count + rows)
        self.count += rows
        self.model.extend(values)
        self.buffer.extend(TensorDict({"a": torch.tensor(list(values))}, [rows]))

    @rule(more=st.integers(0, 4))
    def dump_and_load(self, more):
        if not self.model:
            return
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.dumps(folder)
            if more:
                self.buffer = made(LazyTensorStorage(self.capacity + more))
                self.capacity += more
                self.model = deque(self.model, maxlen=self.capacity)
            self.buffer.loads(folder)

    @invariant()
    def the_newest_rows_stand_in_order(self):
        if not self.model:
            return
        storage, window = self.buffer.storage, self.buffer.storage.ring.window()
        numbers = window.numbers(torch.arange(len(window)))
        rows = storage.read(storage.ring.positions(numbers))["a"]
        assert rows.tolist() == list(self.model)
        assert sorted(self.buffer["a"].tolist()) == sorted(self.model)


Hooked.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHooked = Hooked.TestCase
