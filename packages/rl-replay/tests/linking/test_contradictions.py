"""Rows without ids or steps: observations that contradict a place in a batch cut it."""

import warnings

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tensordict import TensorDict

from rl_layout import EndKind, keys
from rl_layout.testing import environments, trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)

STORAGES = {
    "memory": lambda size, lanes=None: LazyTensorStorage(size, lanes=lanes),
    "lossless": lambda size, lanes=None: LazyTensorStorage(size, lanes=lanes, lossless=True),
    "file": lambda size, lanes=None: LazyMemmapStorage(size, lanes=lanes),
    "lossless file": lambda size, lanes=None: LazyMemmapStorage(size, lanes=lanes, lossless=True),
}


class Vector:
    """Environments that reset themselves; every step is one batch `[num_envs]` without ids."""

    def __init__(self, lengths, marked=True):
        self.lengths, self.marked = lengths, marked
        self.step = torch.zeros(len(lengths), dtype=torch.int64)
        self.episode = torch.arange(len(lengths)) * 1000
        self.now = torch.randn(len(lengths), 3)

    def play(self):
        after = torch.randn_like(self.now)
        end = self.step + 1 == torch.tensor(self.lengths)
        rows = TensorDict(
            {
                "observation": self.now,
                "truth": torch.stack([self.episode, self.step], -1),
                "next": {"observation": after, "reward": torch.zeros(len(end), 1)},
            },
            [len(end)],
        )
        if self.marked:
            rows["next", "done"] = end.unsqueeze(-1)
        self.now = torch.where(end.unsqueeze(-1), torch.randn_like(after), after)
        self.step = torch.where(end, 0, self.step + 1)
        self.episode = self.episode + end
        return rows


def filled(storage, vector, steps, **parts):
    sampler = SliceSampler(slice_len=3)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=30, **parts)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(steps):
            buffer.extend(vector.play())
    return buffer, [str(one.message) for one in said if "neighbours" in str(one.message)]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_slices_of_a_vector_laid_along_the_batch_hold_one_episode_each(storage, shared, marked):
    vector = Vector([4, 7, 5, 9], marked)
    made = STORAGES[storage](60, 1 if shared else None)
    buffer, said = filled(made, vector, 20, shared=shared)  # the ring is gone around
    for _ in range(5):
        sample = buffer.sample()
        same = sample[keys.SLICE_IDS][1:] == sample[keys.SLICE_IDS][:-1]
        truth = sample["truth"]
        assert torch.equal(truth[1:][same], truth[:-1][same] + torch.tensor([0, 1]))
    lengths = buffer.storage.trajectories().lengths()
    # every step of an episode is one again, except the ones that the ring has cut into
    whole = buffer[:]["truth"][:, 0].unique(return_counts=True)[1]
    assert sorted(lengths.tolist()) == sorted(whole.tolist())
    assert len(said) == 1
    assert all(cure in said[0] for cure in ("names=['time']", "ndim=2", "'traj_ids'", "'mask'"))
    assert "neighbours inside one extend are not joined" in buffer.explain()
    assert buffer.stats()["contradicted"] > 20


def test_reward_sums_along_a_vector_are_those_of_one_environment():
    buffer, _ = filled(LazyTensorStorage(60), Vector([50, 50, 50]), 12)
    index = buffer.storage.trajectories()
    assert index.lengths().tolist() == [12, 12, 12]
    index.check(buffer.storage.back)


def test_rows_along_time_that_are_named_so_are_never_compared():
    rows = trajectories([6]).exclude("collector", "is_init")
    rows["next", "observation"] = torch.randn_like(rows["observation"])  # as after a normaliser
    assert rows.names == ["time"]
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(rows)
    assert buffer.storage.trajectories().lengths().tolist() == [6]
    rows.names = None
    buffer.extend(rows)
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1] * 6 + [6]


def test_rows_with_ids_and_steps_are_never_compared():
    rows = trajectories([9])
    rows["next", "observation"] = torch.randn_like(rows["observation"])
    rows.names = None
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(rows)
    assert buffer.storage.trajectories().lengths().tolist() == [9]
    assert buffer.stats()["contradicted"] == 0


@pytest.mark.parametrize("storage", STORAGES)
def test_episodes_without_flags_are_cut_where_observations_say_so(storage):
    rows = trajectories([9, 7, 8], EndKind.CUT).select("observation", ("next", "observation"))
    rows.names = None
    buffer = ReplayBuffer(storage=STORAGES[storage](30))
    for part in rows.split(5):
        buffer.extend(part)
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [7, 8, 9]


def test_columns_are_compared_where_time_is_not_named():
    batch = environments(3, 12, [5, 4], [EndKind.TERMINATED]).exclude("collector", "is_init")
    batch.names = None
    right, wrong = (ReplayBuffer(storage=LazyTensorStorage(60, ndim=2)) for _ in range(2))
    right.extend(batch)
    assert right.stats()["contradicted"] == 0
    assert max(right.storage.trajectories().lengths()) == 5
    with pytest.warns(UserWarning, match="neighbours inside one extend are not joined"):
        wrong.extend(batch.transpose(0, 1).contiguous())
    assert max(wrong.storage.trajectories().lengths()) == 1


@pytest.mark.parametrize(
    ("pairs", "wrong", "count"), [(7, 7, 0), (8, 8, 1), (8, 4, 0), (8, 5, 1), (30, 16, 1)]
)
def test_contradictions_are_warned_of_where_most_of_at_least_eight_contradict(pairs, wrong, count):
    seen = torch.randn(pairs + 2, 3)
    rows = TensorDict({"observation": seen[:-1], "next": {"observation": seen[1:].clone()}})
    rows.batch_size = [pairs + 1]
    rows["next", "observation"][:wrong] += 1
    buffer = ReplayBuffer(storage=LazyTensorStorage(40))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        buffer.extend(rows)
    assert (buffer.stats()["contradicted"], len(said)) == (wrong, count)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_of_a_vector_with_ids_and_no_steps_continue_those_of_their_id_alone(storage):
    buffer = ReplayBuffer(storage=STORAGES[storage](30))
    seen = torch.arange(12.0).view(3, 4, 1)  # 3 calls of 4 environments
    for turn, ids in enumerate([[5, 6, 7, 8], [5, 9, 7, 8], [5, 9, 7, 8]]):
        rows = TensorDict({"observation": seen[turn], "next": {"observation": seen[turn] + 4}}, [4])
        rows["collector", "traj_ids"] = torch.tensor(ids)
        rows["next", "done"] = torch.tensor([[False], [False], [turn == 1], [False]])
        buffer.extend(rows)
    # the second environment has another id in the second call, the third one is done there
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1, 1, 2, 2, 3, 3]


def test_rows_of_n_steps_are_not_compared_with_their_neighbours():
    rows = trajectories([8], EndKind.CUT).exclude("collector", "is_init")
    rows.names = None
    observed = torch.randn(10, 2)
    rows["observation"], rows["next", "observation"] = observed[:8], observed[2:]
    rows[keys.STEPS_TO_NEXT_OBS] = torch.full((8, 1), 2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(rows)
    assert buffer.storage.trajectories().lengths().tolist() == [8]


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("num_envs", [2, 3, 5])
def test_rows_of_n_steps_of_a_vector_are_joined_with_none_of_another_environment(
    num_envs, lossless
):
    seen = torch.randn(num_envs, 9, 2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(60, lossless=lossless))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of neighbours that contradict each other
        for t in range(6):
            rows = {"observation": seen[:, t], "next": {"observation": seen[:, t + 3]}}
            rows["next"]["steps_to_next_obs"] = torch.full((num_envs, 1), 3)
            buffer.extend(TensorDict(rows, [num_envs]))
    assert set(buffer.storage.trajectories().lengths().tolist()) == {1}


def test_rows_of_n_steps_that_reach_the_same_end_are_joined():
    seen = torch.randn(4, 2)
    rows = {"observation": seen[:3], "next": {"observation": seen[3:].expand(3, 2)}}
    rows["next"]["steps_to_next_obs"] = torch.tensor([[3], [2], [1]])
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(TensorDict(rows, [3]))
    assert buffer.storage.trajectories().lengths().tolist() == [3]
    rows["next"]["steps_to_next_obs"] = torch.tensor([[3], [3], [1]])
    buffer.extend(TensorDict(rows, [3]))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [1, 1, 1, 3]


def ending(changed, done=False, **marks):
    """Eight rows of three steps, and the observation that a last one says comes at the end."""
    seen, rows = torch.randn(9, 2), torch.arange(8)
    far = (8 - rows).clamp(max=3)
    after = seen[rows + far]
    after[changed] += 1
    below = {"observation": after, "steps_to_next_obs": far.unsqueeze(-1)}
    below["done"] = torch.full((8, 1), done) & (rows + far == 8).unsqueeze(-1)
    return TensorDict({"observation": seen[:8], "next": below, **marks}, [8])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(("changed", "lengths"), [([5], [6, 2]), ([6, 7], [6, 2]), ([7], [7, 1])])
def test_rows_of_n_steps_that_say_other_ends_are_cut(storage, done, changed, lengths, tmp_path):
    buffer = ReplayBuffer(storage=STORAGES[storage](20))
    buffer.extend(ending(changed, done))
    assert buffer.storage.trajectories().lengths().tolist() == lengths
    assert "1 of 7 neighbours" in str(buffer.explain())
    buffer.dumps(tmp_path)
    again = ReplayBuffer(storage=STORAGES[storage](20))
    again.loads(tmp_path)
    assert again.storage.trajectories().lengths().tolist() == lengths


def test_rows_of_n_steps_of_a_dataset_that_say_other_ends_are_cut():
    given = TensorStorage(ending([5]))
    buffer = ReplayBuffer(storage=given, writer=ImmutableDatasetWriter())
    assert buffer.storage.trajectories().lengths().tolist() == [6, 2]


@pytest.mark.parametrize("far", [2**40, 2**63 - 1])
def test_rows_with_a_corrupt_number_of_steps_prove_no_neighbours(far):
    seen = torch.tensor([2.0, 2, 2, 2, 0]).view(5, 1)
    steps = torch.tensor([1, far, far - 1, 1, 1]).unsqueeze(-1)
    below = {"observation": torch.tensor([2.0, 0, 0, 2, 0]).view(5, 1), "steps_to_next_obs": steps}
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(TensorDict({"observation": seen, "next": below}, [5]))
    # the third and the fourth row have nothing in common
    assert buffer.storage.trajectories().lengths().tolist() == [3, 1, 1]


@pytest.mark.parametrize("far", [1, 2])
def test_rows_of_n_steps_are_not_continued_by_the_row_that_they_reach(far):
    # an environment that is back at the same observation after two steps
    rows = TensorDict({"observation": torch.zeros(1, 2)}, [1])
    rows["next", "observation"] = torch.ones(1, 2)
    rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[far]])
    later = rows.clone().set("observation", torch.ones(1, 2))
    for write in (ReplayBuffer.extend, lambda buffer, rows: buffer.add(rows[0])):
        buffer = ReplayBuffer(storage=LazyTensorStorage(20))
        write(buffer, rows)
        write(buffer, later)
        assert buffer.storage.trajectories().lengths().tolist() == ([2] if far == 1 else [1, 1])


def test_next_observations_that_could_not_be_had_contradict_nothing():
    rows = trajectories([8], EndKind.CUT).exclude("collector", "is_init")
    rows.names = None
    rows["next", "observation"][3] = 0
    rows[keys.NEXT_MISSING] = torch.arange(8) == 3
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(rows)
    assert buffer.storage.trajectories().lengths().tolist() == [8]


def test_a_dataset_of_given_tensors_is_compared_too():
    rows = trajectories([9, 7, 8], EndKind.CUT).select("observation", ("next", "observation"))
    for names, lengths in ((None, [7, 8, 9]), (["time"], [24])):
        rows.names = names
        buffer = ReplayBuffer(storage=TensorStorage(rows), writer=ImmutableDatasetWriter())
        assert sorted(buffer.storage.trajectories().lengths().tolist()) == lengths


@pytest.mark.parametrize("dtype", [torch.complex128, torch.bfloat16, torch.float64, torch.bool])
def test_observations_are_compared_bit_for_bit(dtype):
    observed = (torch.randn(7, 40) > 0).to(dtype)
    rows = TensorDict({"a": observed[:6], "next": {"a": observed[1:].clone()}}, [6])
    other = rows["next", "a"][2]
    other[7] = ~other[7] if dtype is torch.bool else 3.0
    if dtype.is_floating_point:  # NaN is the same NaN, -0.0 is not 0.0
        observed[5, 1], rows["next", "a"][4, 1] = float("nan"), float("nan")
        observed[2, 0], rows["next", "a"][1, 0] = 0.0, 0.0
        observed[3], rows["next", "a"][2] = 0.0, -0.0
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rows)
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [3, 3]


class Calls(RuleBasedStateMachine):
    """Vectors and single environments, in calls of any kind: no link is ever between episodes."""

    @initialize(
        capacity=st.integers(4, 40),
        lengths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
        lossless=st.booleans(),
        marked=st.booleans(),
    )
    def make(self, capacity, lengths, lossless, marked):
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(capacity, lossless=lossless))
        self.vectors = [Vector(lengths, marked), Vector(lengths[:1], marked)]
        self.truth = torch.full((capacity, 2), -1)
        self.capacity = capacity

    def _extend(self, rows):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            positions = self.buffer.extend(rows)
        self.truth[positions] = rows["truth"]

    @rule(times=st.integers(1, 4))
    def step_all(self, times):
        for _ in range(times):
            self._extend(self.vectors[0].play())

    @rule(times=st.integers(1, 6))
    def play_one(self, times):
        rows = [self.vectors[1].play() for _ in range(min(times, self.capacity))]
        self._extend(torch.cat(rows))

    @rule()
    def add_one(self):
        row = self.vectors[1].play()[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            position = self.buffer.add(row)
        self.truth[position] = row["truth"]

    @invariant()
    def links_join_one_episode(self):
        if hasattr(self, "buffer") and len(self.buffer):
            index = self.buffer.storage.trajectories()
            index.check(self.buffer.storage.back)
            slots = index.slots()
            for slot, length in zip(slots, index.lengths_of(slots), strict=True):
                ones = slots[slots == slot]
                numbers = index.rows(ones, 0 * ones, 0 * ones + length)
                truth = self.truth[torch.from_numpy(numbers) % self.capacity]
                assert (truth.diff(dim=0) == torch.tensor([0, 1])).all()


Calls.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestCalls = Calls.TestCase


def test_dropped_rows_of_a_vector_are_warned_of_once_with_what_cures_it():
    buffer, vector = TensorDictReplayBuffer(storage=LazyTensorStorage(200)), Vector([9, 9, 9, 9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the neighbours
        for _ in range(3):
            buffer.extend(vector.play())
    told = r"a call of 3 rows follows one of 4 rows without ids, which cuts 4 .*SAME_STEP.*'mask'"
    with pytest.warns(UserWarning, match=told):
        buffer.extend(vector.play()[1:])
    buffer.extend(vector.play())  # said once
    assert "7 trajectories without ids were cut by 2 calls that have another" in buffer.explain()
    assert len(buffer.storage.trajectories()) == 4 + 3 + 4


def test_rows_of_a_vector_with_ids_or_all_of_its_rows_have_no_gaps():
    for drops in (True, False):
        buffer, vector = TensorDictReplayBuffer(storage=LazyTensorStorage(90)), Vector([3, 5, 9])
        with warnings.catch_warnings():
            if not drops:
                warnings.simplefilter("ignore")  # of the neighbours
            for number in range(9):
                rows = vector.play()
                if drops:
                    rows["collector"] = {"traj_ids": rows["truth"][:, 0] + 7 * torch.arange(3)}
                    rows["collector", "traj_step"] = rows["truth"][:, 1]
                    rows = rows[number % 2 :]
                buffer.extend(rows)
        assert "were cut by" not in buffer.explain()


def test_few_rows_of_other_numbers_are_no_vector_with_gaps():
    buffer, vector = TensorDictReplayBuffer(storage=LazyTensorStorage(90)), Vector([9, 9])
    buffer.extend(vector.play())
    buffer.extend(vector.play()[1:])  # without a warning
    assert "2 trajectories without ids were cut by 1 calls" in buffer.explain()
