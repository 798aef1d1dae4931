"""The rows with the highest ranks: the ones that a sorted list keeps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from rl_transforms import Transform

RANKS = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, 0.5]))


def rows(ranks, first=0):
    count = len(ranks)
    leaves = {"rank": torch.tensor(ranks, dtype=torch.float64), "name": torch.arange(count) + first}
    return TensorDict(leaves, [count])


def buffer(capacity=5, rank_key="rank", reduction="sum", **options):
    writer = TensorDictMaxValueWriter(rank_key, reduction)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), writer=writer, **options)


def best(every, capacity):
    """The names of the best of (rank, name), the older of equal ones."""
    return sorted(name for _, name in sorted(every, key=lambda one: (-one[0], one[1]))[:capacity])


def check(made, every, capacity):
    stored = made[:]
    assert sorted(stored["name"].tolist()) == best(every, capacity)
    ranks = {name: rank for rank, name in every}
    assert stored["rank"].tolist() == [ranks[name] for name in stored["name"].tolist()]


@settings(deadline=None)
@given(
    calls=st.lists(st.lists(RANKS, min_size=1, max_size=9), min_size=1, max_size=8),
    capacity=st.integers(1, 7),
)
def test_the_stored_rows_are_the_best_of_all_that_came(calls, capacity):
    made, every = buffer(capacity), []
    for ranks in calls:
        first = len(every)
        batch = rows(ranks, first)
        every += zip(ranks, range(first, first + len(ranks)), strict=True)
        # a call of one row is an add: the same rows stay
        index = made.extend(batch) if len(ranks) > 1 else made.add(batch[0])
        check(made, every, capacity)
        index = torch.tensor([-1 if index is None else index]) if len(ranks) == 1 else index
        names = made[:]["name"].tolist()
        for name, place in zip(batch["name"].tolist(), index.tolist(), strict=True):
            assert (name in names) == (place >= 0)
            assert place < 0 or made[place]["name"] == name


def test_many_rows_in_a_larger_buffer_are_those_of_a_sort():
    generator = torch.Generator().manual_seed(0)
    made, every = buffer(3000), []
    for count in (1000, 2500, 40, 1, 700, 5000, 1, 3):
        ranks = torch.randint(0, 4000, (count,), generator=generator).double().tolist()
        every += zip(ranks, range(len(every), len(every) + count), strict=True)
        made.extend(rows(ranks, len(every) - count))
        check(made, every, 3000)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "median"])
def test_several_values_of_a_row_are_reduced(reduction):
    values = torch.tensor([[1.0, 5.0, 0.0], [3.0, 3.0, -9.0], [2.0, 2.5, 2.0], [4.0, -4.0, 1.0]])
    expected = {"max": 0, "min": 2, "sum": 2, "mean": 2, "median": 1}[reduction]
    made = buffer(1, "rank", reduction)
    made.extend(TensorDict({"rank": values, "name": torch.arange(4)}, [4]))
    assert made[:]["name"].tolist() == [expected]


def test_a_whole_trajectory_that_is_one_element_is_ranked_by_all_its_steps():
    made = buffer(2, ("next", "reward"))
    for first, scale in enumerate((1.0, 3.0, 2.0)):
        element = trajectories([4], first_id=first)
        element["next", "reward"] *= scale
        assert (made.add(element) is None) is False
    assert sorted(made[:]["collector", "traj_ids"][:, 0].tolist()) == [1, 2]
    worse = trajectories([4], first_id=9)
    assert made.add(worse) is None


def test_the_default_key_is_the_reward_of_the_step():
    writer = TensorDictMaxValueWriter()
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=writer)
    made.extend(trajectories([5, 4]))  # rewards 1 to 5, 1 to 4
    assert sorted(made[:]["next", "reward"].flatten().tolist()) == [4.0, 4.0, 5.0]


def test_a_sample_from_before_writes_to_no_row_that_came_since():
    made = buffer(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    sample = made.sample(20)
    made.extend(rows([5.0], 3))
    sample["name"] = sample["name"] * 0 - 1
    assert not made.update_rows(sample["collector", "row"], sample.select("name")).any()
    assert sorted(made[:]["name"].tolist()) == [1, 2, 3]
    again = made.sample(20)
    assert made.update_rows(again["collector", "row"], again.select("name")).all()


def test_refused_rows_leave_row_ids_and_prefetched_rows_as_they_are():
    made = buffer(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    before = made.sample(20)
    assert made.extend(rows([0.5, 1.0], 3)).tolist() == [-1, -1]
    assert made.update_rows(before["collector", "row"], before.select("name")).all()


def test_an_epoch_begins_anew_when_rows_are_replaced():
    made = buffer(4, sampler=SamplerWithoutReplacement(), batch_size=2)
    made.extend(rows([1.0, 2.0, 3.0, 4.0]))
    made.sample()
    made.extend(rows([9.0], 4))
    found = torch.cat([made.sample()["name"] for _ in range(2)])
    assert sorted(found.tolist()) == [1, 2, 3, 4]


def test_ranks_that_are_changed_in_place_count():
    made = buffer(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    made[0] = rows([7.0], 0)[0]
    assert made.extend(rows([1.5, 2.5], 3)).tolist() == [-1, 1]
    sample = made[:]
    numbers = made.storage.ring.numbers_at(torch.arange(3))
    made.update_rows(numbers, TensorDict({"rank": -sample["rank"]}, [3]))
    assert made.extend(rows([0.0, 0.0, 0.0], 5)).tolist() != [-1, -1, -1]
    assert made[:]["rank"].tolist() == [0.0, 0.0, 0.0]


def test_ranks_and_ages_go_through_dumps_and_states(tmp_path):
    every = [2.0, 1.0, 1.0, 3.0, 1.0, 2.0]
    one = buffer(4)
    for first in range(0, 6, 2):
        one.extend(rows(every[first : first + 2], first))
    one.dumps(tmp_path)
    state = one.state_dict()
    others = [buffer(4), buffer(4), buffer(6)]
    others[0].loads(tmp_path)
    others[1].load_state_dict(state)
    others[2].loads(tmp_path)
    for other in (one, *others):
        other.extend(rows([2.0, 0.0, 5.0], 6))
    for other in (*others[:2],):
        assert (other[:] == one[:]).all()
    kept = list(zip([*every, 2.0, 0.0, 5.0], range(9), strict=True))
    check(one, kept, 4)
    check(others[2], [one for one in kept if one[1] not in (2, 4)], 6)


def test_rows_that_are_loaded_without_the_writer_are_ranked_anew(tmp_path):
    one, two = ReplayBuffer(storage=LazyTensorStorage(4)), buffer(4)
    one.extend(rows([3.0, 1.0, 2.0, 0.0, 5.0]).exclude()[:4])
    one.dumps(tmp_path)
    two.loads(tmp_path, rows_only=True)
    two.extend(rows([1.5, 4.0], 4))
    assert sorted(two[:]["rank"].tolist()) == [1.5, 2.0, 3.0, 4.0]


def test_other_rows_of_the_same_ids_are_ranked_anew(tmp_path):
    other = buffer(3)
    other.extend(rows([1.0, 3.0, 2.0]))
    other.dumps(tmp_path)
    loaded, exchanged = buffer(3), buffer(3)
    for one in (loaded, exchanged):
        one.extend(rows([9.0, 8.0, 7.0]))
    loaded.loads(tmp_path, rows_only=True)
    exchanged.set_storage(other.storage)
    for one in (loaded, exchanged):
        assert one.extend(rows([0.5, 2.5])).tolist() == [-1, 0]


def test_an_emptied_buffer_begins_anew():
    made = buffer(2)
    made.extend(rows([8.0, 9.0]))
    made.empty()
    assert made.extend(rows([1.0, 2.0], 2)).tolist() == [0, 1]


def test_an_interrupted_write_is_ranked_by_what_is_stored(monkeypatch):
    made = buffer(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    session = made.storage.session
    monkeypatch.setattr(session, "renumber", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        made.extend(rows([9.0], 3))
    monkeypatch.undo()
    made.extend(rows([2.5], 4))
    assert sorted(made[:]["rank"].tolist()) == [2.5, 3.0, 9.0]


@pytest.mark.parametrize("bad", [0, 3])
def test_a_rank_that_is_nan_is_refused_by_number_and_nothing_is_stored(bad):
    made = buffer(3)
    made.extend(rows([1.0, 2.0, 3.0]))
    ranks = [5.0] * 4
    ranks[bad] = math.nan
    with pytest.raises(ValueError, match=f"rank of element {bad} is NaN"):
        made.extend(rows(ranks, 3))
    assert made[:]["name"].tolist() == [0, 1, 2]


def test_a_missing_rank_key_is_refused_with_the_leaves_that_are_there():
    with pytest.raises(KeyError, match=r"ranked by 'score'.*\['rank', 'name'\]"):
        buffer(3, "score").extend(rows([1.0]))


def test_rows_of_another_kind_are_refused_and_nothing_changes():
    made = buffer(2)
    made.extend(rows([1.0, 2.0]))
    with pytest.raises((KeyError, ValueError)):
        made.extend(TensorDict({"rank": torch.tensor([9.0, 8.0]).double()}, [2]))
    assert made[:]["rank"].tolist() == [1.0, 2.0]
    plain = ReplayBuffer(storage=LazyTensorStorage(3), writer=TensorDictMaxValueWriter("rank"))
    with pytest.raises(TypeError, match="kept of tensordicts, got Tensor"):
        plain.extend(torch.zeros(3))


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ({"storage": ListStorage(3)}, TypeError, "not in a ListStorage"),
        ({"storage": LazyTensorStorage(4, ndim=2)}, ValueError, "ndim=2"),
        ({"storage": LazyTensorStorage(3), "shared": True}, ValueError, "out of order"),
        (
            {"storage": LazyTensorStorage(3), "sampler": SliceSampler(slice_len=2)},
            ValueError,
            'by="trajectory"',
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, error, message):
    with pytest.raises(error, match=message):
        TensorDictReplayBuffer(writer=TensorDictMaxValueWriter(), **parts)


@pytest.mark.parametrize("options", [{"reduction": "last"}, {"by": "step"}])
def test_other_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TensorDictMaxValueWriter("rank", **options)


def test_transforms_see_rows_on_their_way_in():
    made = buffer(2, sampler=RandomSampler())

    class Negated(Transform):
        def inv(self, batch):
            return batch.set("rank", -batch["rank"]) if batch is not None else None

    made.append_transform(Negated())
    made.extend(rows([1.0, 2.0, 3.0]))
    assert sorted(made[:]["name"].tolist()) == [0, 1]


def test_rows_that_are_kept_continue_no_other_row():
    writer = TensorDictMaxValueWriter()
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(6), writer=writer)
    made.extend(trajectories([4, 9]))
    assert made.storage.trajectories().lengths().tolist() == [1] * 6
