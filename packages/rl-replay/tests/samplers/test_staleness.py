"""Draws by the age of the policy that acted, against weights of each row by hand."""

import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_layout import keys
from rl_replay import LazyTensorStorage, ListStorage, ReplayBuffer, StalenessAwareSampler

DRAWS = 20_000


def rows(versions, start=0):
    number = torch.arange(start, start + len(versions))
    held = {"a": number, "collector": {"policy_version": torch.as_tensor(versions)}}
    return TensorDict(held, [len(versions)])


def made(capacity=100, **options):
    sampler = StalenessAwareSampler(**options)
    torch.manual_seed(0)
    return sampler, ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler)


def shares(buffer, count):
    drawn = buffer.sample(DRAWS)["a"]
    return torch.bincount(drawn, minlength=count).double() / DRAWS


def test_rows_are_drawn_in_proportion_to_the_weight_of_each():
    sampler, buffer = made()
    versions = [0, 0, 3, 1, 1, 1, 0, 4]
    buffer.extend(rows(versions))
    sampler.consumer_version = 4
    weights = torch.tensor([1 / (4 - version + 1) for version in versions], dtype=torch.float64)
    torch.testing.assert_close(shares(buffer, 8), weights / weights.sum(), atol=0.01, rtol=0)


def test_a_weight_of_ones_own_and_rows_of_the_future():
    sampler, buffer = made(staleness_weight_fn=lambda staleness: (staleness < 2).double())
    buffer.extend(rows([0, 1, 2, 5]))
    sampler.consumer_version = 2
    expected = torch.tensor([0, 1, 1, 1], dtype=torch.float64) / 3
    torch.testing.assert_close(shares(buffer, 4), expected, atol=0.02, rtol=0)


def test_stale_rows_are_left_out_and_come_back_when_the_limit_is_raised():
    sampler, buffer = made(max_staleness=1)
    buffer.extend(rows([0, 1, 2]))
    for _ in range(2):
        sampler.increment_consumer_version()
    assert set(buffer.sample(200)["a"].tolist()) == {1, 2}
    sampler.max_staleness = -1
    assert set(buffer.sample(200)["a"].tolist()) == {0, 1, 2}
    sampler.consumer_version, sampler.max_staleness = 9, 3
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=r"drawn by .*=3, .*=9\): 3 rows are .* version 2"):
            buffer.sample(2)


@pytest.mark.parametrize("capacity", [7, 16])
def test_overwritten_rows_and_rows_that_come_one_by_one(capacity):
    sampler, buffer = made(capacity)
    for start in range(0, 40, 2):
        buffer.extend(rows([start // 8] * 2, start))
        sampler.consumer_version = start // 8
        live = set(buffer[:]["a"].tolist())
        assert set(buffer.sample(500)["a"].tolist()) == live
        assert sampler.stats()["version_runs"] <= capacity // 8 + 2  # not one for each write


def test_several_lanes():
    sampler = StalenessAwareSampler()
    storage = LazyTensorStorage(40, lanes=2)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, shared=True)
    torch.manual_seed(0)
    buffer.extend(rows([0, 1, 1]))
    sampler.consumer_version = 1
    assert set(buffer.sample(100)["a"].tolist()) == {0, 1, 2}


def test_an_emptied_buffer_begins_again():
    _, buffer = made()
    buffer.extend(rows([5, 5]))
    buffer.sample(2)
    buffer.empty()
    buffer.extend(rows([1], 7))
    assert buffer.sample(4)["a"].tolist() == [7] * 4


def test_a_buffer_without_rows_is_refused_with_what_to_write():
    _, buffer = made()
    with pytest.raises(ValueError, match=r": 0 rows are stored\. Write fresh rows"):
        buffer.sample(2)


def test_the_version_of_the_consumer_is_saved():
    sampler, buffer = made()
    sampler.consumer_version = 3
    buffer.extend(rows([3]))
    other, loaded = made()
    loaded.load_state_dict(buffer.state_dict())
    assert other.consumer_version == 3
    assert loaded.sample(2)[keys.POLICY_VERSION].tolist() == [3, 3]


def test_versions_are_those_of_the_rows_that_were_loaded():
    sampler, buffer = made(max_staleness=0)
    buffer.extend(rows([2, 2, 0]))
    sampler.consumer_version = 2
    assert set(buffer.sample(50)["a"].tolist()) == {0, 1}
    _, other = made(max_staleness=0)
    other.extend(rows([0, 0, 2]))  # rows of the same ids
    other.sampler.consumer_version = 2
    buffer.load_state_dict(other.state_dict())
    assert set(buffer.sample(50)["a"].tolist()) == {2}


def test_versions_are_those_of_the_buffer_that_has_the_sampler_now():
    sampler, buffer = made(max_staleness=0)
    buffer.extend(rows([0, 1]))
    sampler.consumer_version = 1
    assert set(buffer.sample(50)["a"].tolist()) == {1}
    _, other = made()
    other.extend(rows([1, 0]))
    other.set_sampler(sampler)
    assert set(other.sample(50)["a"].tolist()) == {0}


def test_versions_are_those_of_rows_that_another_handle_loaded():
    sampler = StalenessAwareSampler(max_staleness=0)
    storage = LazyTensorStorage(40, lanes=1)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, shared=True)
    buffer.extend(rows([0, 1]))
    sampler.consumer_version = 1
    assert set(buffer.sample(50)["a"].tolist()) == {1}
    _, other = made(40)
    other.extend(rows([1, 0]))
    handle = pickle.loads(pickle.dumps(buffer))
    handle.load_state_dict(other.state_dict())
    assert set(buffer.sample(50)["a"].tolist()) == {0}


def test_versions_are_read_by_a_handle_that_samples_first():
    sampler = StalenessAwareSampler(max_staleness=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(40, lanes=1), sampler=sampler, shared=True)
    buffer.extend(rows([0, 1]))
    sampler.consumer_version = 1
    handle = pickle.loads(pickle.dumps(buffer))
    assert set(handle.sample(50)["a"].tolist()) == {1}


def test_the_version_of_the_consumer_stays_where_prefetched_batches_become_stale():
    sampler = StalenessAwareSampler(max_staleness=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4, prefetch=2)
    buffer.extend(rows([0, 0]))
    buffer.sample()
    sampler.consumer_version = 1
    buffer.extend(rows([1, 1], 2))
    assert set(buffer.sample()["a"].tolist()) <= {2, 3}
    assert sampler.consumer_version == 1


def test_bad_arguments_and_rows():
    with pytest.raises(ValueError, match="max_staleness: expected at least -1"):
        StalenessAwareSampler(-2)
    _, buffer = made()
    buffer.extend(TensorDict({"a": torch.zeros(3)}, [3]))
    for _ in range(2):
        with pytest.raises(KeyError, match="which says what policy acted"):
            buffer.sample(2)
    of_objects = ReplayBuffer(storage=ListStorage(4), sampler=StalenessAwareSampler())
    of_objects.extend(rows([0, 1]))
    with pytest.raises(KeyError, match=r"a ListStorage.*has no leaf .* in a LazyTensorStorage"):
        of_objects.sample(2)
    _, buffer = made(staleness_weight_fn=lambda staleness: -staleness.double() - 1)
    buffer.extend(rows([0, 1]))
    with pytest.raises(ValueError, match="staleness_weight_fn: expected a number of 0 or more"):
        buffer.sample(2)


@pytest.mark.parametrize(
    "versions", [torch.tensor([0.5, 1.5]), torch.zeros(2, 3).long(), torch.tensor([True, False])]
)
def test_versions_that_are_no_whole_number_for_each_row_are_refused(versions):
    _, buffer = made()
    buffer.extend(rows(versions))
    for _ in range(2):
        with pytest.raises(TypeError, match=r"policy_version.*expected a whole number for each of"):
            buffer.sample(2)


def test_attributes_and_weights_that_are_wrong_are_refused_when_rows_are_drawn():
    sampler, buffer = made()
    buffer.extend(rows([0, 1]))
    sampler.max_staleness = -5
    with pytest.raises(ValueError, match="max_staleness: expected at least -1, got -5"):
        buffer.sample(2)
    sampler.max_staleness, sampler.consumer_version = -1, None
    with pytest.raises(TypeError, match="consumer_version: expected a whole number, got None"):
        buffer.sample(2)
    _, buffer = made(staleness_weight_fn=lambda staleness: staleness.tolist())
    buffer.extend(rows([0, 1]))
    with pytest.raises(TypeError, match=r"staleness_weight_fn: .* returns a tensor, got \[0, -1\]"):
        buffer.sample(2)
