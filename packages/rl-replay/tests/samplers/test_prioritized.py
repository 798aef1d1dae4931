from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)


def rows(count, first=0):
    number = torch.arange(first, first + count)
    return TensorDict({"number": number, "observation": number.float()[:, None] / 3}, [count])


def prioritized(capacity=100, *, seed=0, batch_size=32, ndim=1, **options):
    parts = {"alpha": 0.6, "beta": 0.4} | options
    return TensorDictPrioritizedReplayBuffer(
        storage=LazyTensorStorage(capacity, ndim=ndim),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(seed),
        **parts,
    )


def with_errors(sample, errors):
    return sample.set("td_error", torch.as_tensor(errors))


def numbers_of(buffer, samples=4):
    return torch.cat([buffer.sample()["number"] for _ in range(samples)]).tolist()


def test_weights_are_those_of_the_paper():
    buffer = prioritized(4, alpha=0.5, beta=0.7, batch_size=200)
    index = buffer.extend(rows(4))
    buffer.update_priority(index, torch.tensor([1.0, 4.0, 9.0, 16.0]))
    sample = buffer.sample()
    probability = (sample["number"] + 1) / 10
    weight = (4 * probability) ** -0.7
    torch.testing.assert_close(sample["priority_weight"], weight / weight.max())
    assert sample["priority_weight"].dtype is torch.float32


@pytest.mark.parametrize("normalize", ["batch", "buffer", None])
def test_weights_are_normalised_as_asked(normalize):
    sampler = PrioritizedSampler(5, alpha=1.0, beta=1.0, eps=0.0, normalize=normalize)
    sampler.generator = torch.Generator().manual_seed(0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler, batch_size=20)
    index = buffer.extend(rows(5))
    # a row of so low a priority that the sample does not have it
    buffer.update_priority(index, torch.tensor([1e-6, 1.0, 1.0, 2.0, 4.0]))
    sample = buffer.sample()
    assert 0 not in sample["number"]
    weight = sample["priority_weight"].double()
    share = (
        torch.tensor([1e-6, 1.0, 1.0, 2.0, 4.0], dtype=torch.float64)[sample["number"]] / 8.000001
    )
    largest = {"batch": (1 / (5 * share)).max(), "buffer": 8.000001 / (5e-6), None: 1.0}[normalize]
    torch.testing.assert_close(weight, 1 / (5 * share) / largest, rtol=1e-5, atol=0)


def test_largest_weight_of_the_buffer_is_known_among_rows_that_are_never_drawn():
    sampler = PrioritizedSampler(5, alpha=1.0, beta=1.0, eps=0.0, normalize="buffer")
    sampler.generator = torch.Generator().manual_seed(0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler, batch_size=2)
    index = buffer.extend(rows(5))
    buffer.sample()
    buffer.update_priority(index, torch.tensor([0.0, 1e-6, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(buffer.sample()["priority_weight"], torch.full((2,), 1e-6))


@pytest.mark.parametrize("stratified", [True, False])
def test_rows_are_drawn_as_often_as_their_priority_says(stratified):
    count, draws = 300, 200_000
    sampler = PrioritizedSampler(count, alpha=1.0, beta=0.0, stratified=stratified)
    sampler.generator = torch.Generator().manual_seed(1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(count), sampler=sampler)
    index = buffer.extend(rows(count))
    priority = torch.rand(count, generator=torch.Generator().manual_seed(2)) ** 3 + 0.01
    buffer.update_priority(index, priority)
    drawn = torch.cat([buffer.sample(1_000)["number"] for _ in range(draws // 1_000)])
    wanted = priority / priority.sum() * draws
    square = ((drawn.bincount(minlength=count) - wanted) ** 2 / wanted).sum() / (count - 1)
    # independent draws: 1 +- 4 standard deviations of sqrt(2 / 299); strata only lower it
    assert square < 1.33
    assert stratified or square > 0.67


def test_mean_with_weights_of_beta_1_is_that_of_all_rows():
    count = 500
    generator = torch.Generator().manual_seed(5)
    value = torch.rand(count, generator=generator)
    sampler = PrioritizedSampler(count, alpha=0.8, beta=1.0, normalize=None, stratified=False)
    sampler.generator = generator
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(count), sampler=sampler)
    index = buffer.extend(rows(count))
    buffer.update_priority(index, torch.rand(count, generator=generator) + 0.05)
    sample = buffer.sample(100_000)
    terms = sample["priority_weight"] * value[sample["number"]]
    assert abs(terms.mean() - value.mean()) < 4 * terms.std() / 100_000**0.5


def test_alpha_0_draws_uniformly_and_can_be_taken_back():
    buffer = prioritized(10, alpha=0.6, batch_size=64)
    index = buffer.extend(rows(10))
    buffer.update_priority(index, torch.arange(10.0))
    before = numbers_of(buffer, 1)
    buffer.sampler.alpha = 0.0
    assert (buffer.sample()["priority_weight"] == 1).all()
    buffer.sampler.alpha = 0.6
    buffer.generator = None
    buffer.set_rng(torch.Generator().manual_seed(0))
    assert numbers_of(buffer, 1) == before


def test_new_rows_have_the_highest_priority_so_far():
    buffer = prioritized(6, alpha=1.0, eps=0.0)
    index = buffer.extend(rows(3))
    buffer.update_priority(index, torch.tensor([0.5, 7.0, 0.5]))
    buffer.extend(rows(1, 3))
    sample = buffer.sample(150)
    assert sample["number"].bincount().tolist() == [5, 70, 5, 70]


def test_highest_priority_can_be_that_of_the_rows_that_are_stored():
    sampler = PrioritizedSampler(4, alpha=1.0, beta=1.0, max_priority_within_buffer=True)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=4)
    buffer.update_priority(buffer.extend(rows(4)), torch.tensor([9.0, 7.0, 0.5, 0.25]))
    buffer.extend(rows(1, 4))  # in place of the row of 9
    buffer.sample()
    assert sampler.state_dict()["priorities"].tolist() == [7.0, 0.5, 0.25, 7.0]
    buffer.update_priority(torch.tensor([0, 1]), 0.125)
    buffer.extend(rows(1, 5))
    buffer.sample()
    assert sampler.state_dict()["priorities"].tolist() == [0.5, 0.25, 0.125, 0.5]


def test_rows_begin_with_the_priority_they_are_stored_with():
    buffer = prioritized(6, alpha=1.0, eps=0.0)
    buffer.extend(rows(3).set("td_error", torch.tensor([[1.0, 5.0], [0.0, 2.0], [3.0, 1.0]])))
    assert buffer.sample(100)["number"].bincount().tolist() == [50, 20, 30]


def test_stored_priorities_out_of_range_are_the_highest_with_a_warning():
    buffer = prioritized(6, alpha=1.0, eps=0.0)
    buffer.extend(rows(4).set("td_error", torch.tensor([3.0, -1.0, float("nan"), 1.0])))
    with pytest.warns(UserWarning, match="2 rows are stored with a 'td_error'"):
        sample = buffer.sample(80)
    assert sample["number"].bincount().tolist() == [24, 24, 24, 8]


def test_priorities_stay_with_the_buffer_that_a_sampler_leaves():
    first, second = (prioritized(6, alpha=1.0, eps=0.0) for _ in range(2))
    first.update_priority(first.extend(rows(3)), torch.tensor([0.0, 0.0, 5.0]))
    second.extend(rows(3, 50))
    second.set_sampler(first.sampler)
    assert set(second.sample(60)["number"].tolist()) == {50, 51, 52}


def test_priorities_of_overwritten_rows_are_dropped_and_counted():
    buffer = prioritized(8, alpha=1.0, eps=0.0)
    buffer.extend(rows(8))
    sample = buffer.sample(8)
    buffer.extend(rows(5, 8))
    gone = int((sample["number"] < 5).sum())
    assert 0 < gone < 8
    buffer.update_tensordict_priority(with_errors(sample, torch.full((8,), 40.0)))
    assert buffer.stats()["stale_priorities"] == gone
    found = buffer.sample(2_000)["number"].bincount(minlength=13)
    # newcomers have the highest priority there was when they were taken in, not that of others
    assert (found[8:] < found[sample["number"][sample["number"] >= 5]].min()).all()


def test_same_rows_are_drawn_in_and_out_of_inference_mode():
    buffer, other = prioritized(20), prioritized(20)
    for one in (buffer, other):
        one.extend(rows(20))
    with torch.inference_mode():
        found = numbers_of(buffer, 1)
    assert found + numbers_of(buffer, 1) == numbers_of(other, 2)


def test_same_rows_come_with_prefetching():
    def sampled(prefetch):
        buffer = prioritized(50, prefetch=prefetch, batch_size=8)
        found = []
        for first in (0, 30):
            buffer.extend(rows(30, first))
            found += numbers_of(buffer, 5)
        return found

    assert sampled(None) == sampled(3)


@pytest.mark.parametrize("larger", [0, 30])
def test_priorities_are_kept_by_dumps(tmp_path, larger):
    buffer = prioritized(20)
    buffer.extend(rows(20))
    buffer.update_tensordict_priority(with_errors(buffer.sample(), torch.rand(32)))
    buffer.extend(rows(7, 20))
    buffer.dumps(tmp_path / "dump")
    other = prioritized(20 + larger, seed=9, alpha=0.1, beta=0.9)
    other.loads(tmp_path / "dump")
    if not larger:  # rows are drawn in the order of their places, which are others there
        assert numbers_of(other) == numbers_of(buffer)
    for one in (buffer, other):
        one.sample()
    states = [one.sampler.state_dict()["priorities"].tolist() for one in (buffer, other)]
    assert states[0] == states[1]
    assert (other.sampler.alpha, other.sampler.beta) == (0.6, 0.4)
    for one in (buffer, other):
        one.extend(rows(3, 60))
    assert other.stats()["highest_priority"] == buffer.stats()["highest_priority"]


def test_state_dict_restores_priorities():
    buffer, other = prioritized(20), prioritized(20, seed=3)
    buffer.extend(rows(20))
    other.extend(rows(4))
    buffer.update_tensordict_priority(with_errors(buffer.sample(), torch.rand(32)))
    other.load_state_dict(buffer.state_dict())
    assert numbers_of(other) == numbers_of(buffer)


def test_stored_priorities_are_read_by_a_handle_that_samples_first():
    storage = LazyTensorStorage(8, lanes=1)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=storage, batch_size=32, shared=True
    )
    buffer.extend(with_errors(rows(4), torch.tensor([0.0, 0.0, 0.0, 5.0])))
    handle = pickle.loads(pickle.dumps(buffer))
    assert handle.sample()["number"].tolist() == [3] * 32


def test_priorities_of_columns_are_set_by_index():
    buffer = prioritized(21, ndim=2, alpha=1.0, eps=0.0, batch_size=8)
    grid = torch.stack([rows(5), rows(5, 10)])
    index = buffer.extend(grid)
    priority = torch.zeros(10)
    priority[7] = 1.0
    buffer.update_priority(index, priority)
    assert buffer.sample()["number"].tolist() == [12] * 8
    buffer.update_priority(tuple(index[:2].unbind(-1)), 1.0)
    assert set(buffer.sample(30)["number"].tolist()) == {0, 1, 12}


def test_priorities_of_columns_are_set_by_an_index_of_few_bits():
    buffer = prioritized(600, ndim=2, alpha=1.0, eps=0.0, batch_size=8)
    grid = torch.stack([rows(200), rows(200, 200), rows(200, 400)])
    buffer.update_priority(buffer.extend(grid), 0.0)
    buffer.update_priority(torch.tensor([[1, 150]], dtype=torch.uint8), 1.0)
    assert buffer.sample()["number"].tolist() == [350] * 8


def test_objects_are_drawn_by_priority():
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=ListStorage(10), batch_size=3)
    index = buffer.extend(["a", "b"])
    buffer.update_priority(index, torch.tensor([0.0, 2.0]))
    assert buffer.sample() == ["b"] * 3


def test_priorities_mean_nothing_to_uniform_samplers():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=3)
    index = buffer.extend(rows(5))
    buffer.update_priority(index, 3.0)
    buffer.update_tensordict_priority(with_errors(buffer.sample(), torch.rand(3)))
