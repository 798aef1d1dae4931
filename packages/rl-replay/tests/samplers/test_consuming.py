"""Rows that are drawn a number of times: a list of counts says the same."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_replay import (
    ConsumingSampler,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
)

STEPS = st.lists(st.tuples(st.sampled_from(["write", "draw"]), st.integers(1, 6)), max_size=30)


def made(capacity=10, times=1, **options):
    sampler = ConsumingSampler(times)
    return sampler, ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, **options)


@settings(deadline=None)
@given(STEPS, st.integers(1, 3))
def test_each_live_row_is_drawn_so_many_times(steps, times):
    _, buffer = made(10, times)
    written, left = 0, Counter()
    for what, count in steps:
        if what == "write":
            buffer.extend(torch.arange(written, written + count))
            written += count
            left.update(dict.fromkeys(range(written - count, written), times))
            left = Counter({row: n for row, n in left.items() if row >= written - 10 and n})
        elif left:
            drawn = buffer.sample(count).tolist()
            assert len(drawn) == len(set(drawn)) == min(count, len(left))
            left.subtract(drawn)
            assert min(left.values()) >= 0
            left = +left
        elif written:
            with pytest.raises(RuntimeError, match=r"no row is left of"):
                buffer.sample(count)


def test_all_rows_are_equally_likely():
    torch.manual_seed(0)
    seen = Counter()
    for _ in range(400):
        _, buffer = made(20)
        buffer.extend(torch.arange(20))
        seen.update(buffer.sample(2).tolist())
    assert len(seen) == 20
    assert 15 < min(seen.values()) <= max(seen.values()) < 70


def test_iterating_ends_and_goes_on_with_new_rows():
    _, buffer = made(batch_size=4)
    buffer.extend(torch.arange(10))
    assert sorted(row for batch in buffer for row in batch.tolist()) == list(range(10))
    buffer.extend(torch.arange(10, 13))
    assert sorted(buffer.sample(4).tolist()) == [10, 11, 12]
    assert buffer[0] == 10  # still stored


def test_a_saved_sampler_draws_the_rest():
    _, buffer = made(times=2, batch_size=3)
    buffer.extend(torch.arange(5))
    first = Counter(buffer.sample().tolist())
    _, other = made(times=2, batch_size=3)
    other.load_state_dict(buffer.state_dict())
    rest = Counter(row for batch in other for row in batch.tolist())
    assert first + rest == Counter(dict.fromkeys(range(5), 2))


def test_memory_is_bounded_where_nothing_is_drawn():
    sampler, buffer = made(10)
    for start in range(0, 500, 5):
        buffer.extend(torch.arange(start, start + 5))
    buffer.sample(1)
    assert sampler.stats()["left"] < 10


def test_rows_that_are_left_are_drawn_where_too_few_are_there_to_prefetch():
    _, buffer = made(batch_size=2, prefetch=3)
    buffer.extend(torch.arange(5))
    batches = list(buffer)
    assert sorted(torch.cat(batches).tolist()) == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    with pytest.raises(ValueError, match=r"no row is left of .* each of which is drawn 1 times"):
        buffer.sample()
    buffer.extend(torch.arange(5, 7))
    assert sorted(buffer.sample().tolist()) == [5, 6]


def test_counts_go_through_dumps(tmp_path):
    (_, one), (_, two) = made(batch_size=4), made(batch_size=4)
    one.extend(torch.arange(7))
    drawn = one.sample().tolist()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    two.extend(torch.arange(7, 9))
    assert sorted(drawn + torch.cat(list(two)).tolist()) == list(range(9))


@pytest.mark.parametrize("prefetch", [None, 2])
def test_counts_are_those_of_the_buffer_that_has_the_sampler_now(prefetch):
    sampler, buffer = made(batch_size=2, prefetch=prefetch)
    buffer.extend(torch.arange(6))
    buffer.sample()
    _, other = made()
    other.extend(torch.arange(100, 108))  # rows of the same ids
    other.set_sampler(buffer.set_sampler(ConsumingSampler()))
    assert sorted(other.sample(9).tolist()) == list(range(100, 108))
    assert sampler.ran_out


def test_counts_of_another_buffer_are_in_no_dump(tmp_path):
    sampler, buffer = made()
    buffer.extend(torch.arange(4))
    buffer.sample(3)
    (_, other), (_, loaded) = made(), made()
    other.extend(torch.arange(4))
    other.set_sampler(sampler)
    other.dumps(tmp_path)
    loaded.loads(tmp_path)
    assert sorted(loaded.sample(4).tolist()) == [0, 1, 2, 3]


def test_overwritten_rows_are_none_that_are_left():
    torch.manual_seed(0)
    sampler, buffer = made(3, times=2)
    for start in range(0, 60, 3):
        buffer.extend(torch.arange(start, start + 3))
        for is_last in (False, True):
            buffer.sample(3)
            assert sampler.ran_out is is_last
        buffer.extend(torch.arange(start, start + 3))
        buffer.sample(3)


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match="max_sample_count: expected at least 1"):
        ConsumingSampler(0)


def test_a_buffer_makes_such_a_sampler():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), consume_after_n_samples=2, batch_size=3)
    buffer.extend(torch.arange(3))
    assert sum(len(batch) for batch in buffer) == 6
    with pytest.raises(ValueError, match=r"and SamplerWithoutReplacement.* was given too"):
        ReplayBuffer(sampler=SamplerWithoutReplacement(), consume_after_n_samples=1)
    with pytest.raises(ValueError, match="prefetched batches would count as drawn"):
        ReplayBuffer(prefetch=2, batch_size=2, consume_after_n_samples=1)
