"""What is no priority is refused with every storage, and what was known before stays."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

NAN, INF = float("nan"), float("inf")


def named(buffer, row_ids):
    """Rows of a buffer, as its samples name them."""
    count = len(row_ids)
    named = {"row": torch.tensor(row_ids), "storage_id": buffer.storage.identity.leaf(count)}
    return TensorDict({"number": torch.arange(count), "collector": named}, [count])


def with_errors(sample, errors):
    return sample.set("td_error", torch.as_tensor(errors))


def one_bad(value, place, count=6):
    return torch.ones(count).index_fill(0, torch.tensor([place]), value)


CALLS = {
    "nan": (lambda b, i: b.update_priority(i, one_bad(NAN, 4)), ValueError, "priority 4 is nan"),
    "inf": (lambda b, i: b.update_priority(i, one_bad(INF, 2)), ValueError, "priority 2 is inf"),
    "negative": (
        lambda b, i: b.update_priority(i, one_bad(-0.5, 1)),
        ValueError,
        r"priority 1 is -0\.5: priorities are at least 0 and finite\. Take td_error\.abs\(\)",
    ),
    "two of them": (
        lambda b, i: b.update_priority(i, one_bad(NAN, 5) * one_bad(-1.0, 3)),
        ValueError,
        "priority 3 is -1",
    ),
    "in doubles": (
        lambda b, i: b.update_priority(i, one_bad(NAN, 4).double()),
        ValueError,
        "priority 4 is nan",
    ),
    "too large for a float32": (
        lambda b, i: b.update_priority(i, one_bad(1.0, 0).double() * 1e39),
        ValueError,
        "priority 0 is inf",
    ),
    "one for all": (lambda b, i: b.update_priority(i, -1), ValueError, r"priority 0 is -1\.0"),
    "complex": (
        lambda b, i: b.update_priority(i, torch.ones(6) * 1j),
        TypeError,
        "priorities are real numbers or a tensor of them",
    ),
    "no number": (lambda b, i: b.update_priority(i, "high"), TypeError, "real numbers .* 'high'"),
    "of a sample": (
        lambda b, _: b.update_tensordict_priority(with_errors(b.sample(), one_bad(NAN, 3, 4))),
        ValueError,
        "priority 3 is nan",
    ),
    "too few": (
        lambda b, i: b.update_priority(i, torch.ones(5)),
        ValueError,
        r"a priority for each of 6 rows, \[6\], or one for all: got \[5\]",
    ),
    "of another shape": (
        lambda b, i: b.update_priority(i, torch.ones(6, 2)),
        ValueError,
        r"got \[6, 2\]",
    ),
    "without": (
        lambda b, _: b.update_tensordict_priority(b.sample()),
        KeyError,
        "'td_error' is missing: there are number",
    ),
    "beyond what is stored": (
        lambda b, i: b.update_priority(i + 6, 1.0),
        IndexError,
        "no row is stored at",
    ),
    "beyond the storage": (
        lambda b, i: b.update_priority(i + 500, 1.0),
        IndexError,
        "no row is stored at",
    ),
    "before the first": (
        lambda b, i: b.update_priority(i - 1, 1.0),
        IndexError,
        "no row is stored at",
    ),
    "of a row that never was": (
        lambda b, _: b.update_tensordict_priority(with_errors(named(b, [0, 1, 77]), torch.ones(3))),
        ValueError,
        "row 77 was never written, the newest one is [25]: is this a sample of another buffer",
    ),
    "of rows that do not say whose they are": (
        lambda b, _: b.update_tensordict_priority(
            with_errors(b.sample(4), torch.ones(4)).exclude(("collector", "storage_id"))
        ),
        ValueError,
        "the rows do not say by .*storage_id.* which buffer they are of",
    ),
    "of padding": (
        lambda b, _: b.update_tensordict_priority(with_errors(named(b, [0, -1]), torch.ones(2))),
        ValueError,
        "row ids are at least 0, got -1: leave padding out",
    ),
    "alpha": (lambda b, _: setattr(b.sampler, "alpha", -1), ValueError, "alpha must be at least 0"),
    "alpha that is nan": (
        lambda b, _: setattr(b.sampler, "alpha", NAN),
        ValueError,
        "alpha must be",
    ),
    "beta": (lambda b, _: setattr(b.sampler, "beta", -0.5), ValueError, "beta must be at least 0"),
    "beta that is nan": (lambda b, _: setattr(b.sampler, "beta", NAN), ValueError, "beta must be"),
    "beta that is no number": (
        lambda b, _: setattr(b.sampler, "beta", "x"),
        TypeError,
        "beta must be a number",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_is_no_priority_is_refused_and_what_was_known_stays(case, kind, filled, knowledge):
    call, error, message = CALLS[case]
    buffer, index = filled(kind)
    before = knowledge(buffer)
    with pytest.raises(error, match=message):
        call(buffer, index)
    assert knowledge(buffer) == before
    same, _ = filled(kind)
    for one in (buffer, same):
        one.set_rng(torch.Generator().manual_seed(1))
    assert buffer.sample()["number"].tolist() == same.sample()["number"].tolist()


def test_rows_of_priority_0_are_drawn_only_with_eps(kind, filled):
    buffer, index = filled(kind, alpha=1.0, eps=0.0)
    buffer.update_priority(index, 0.0)
    with pytest.raises(ValueError, match="none of 6 rows has a priority above 0: update_priority"):
        buffer.sample()
    buffer.update_priority(index[3:4], 1.0)
    assert set(buffer.sample()["number"].tolist()) == {3}


def test_capacities_other_than_the_storages_are_refused_and_the_buffer_stays(
    kind, filled, knowledge
):
    buffer, _ = filled(kind)
    before, former = knowledge(buffer), buffer.sampler
    buffer.set_sampler(PrioritizedSampler(9, 1.0, 1.0))
    with pytest.raises(ValueError, match="room for 9 rows and the storage for 24: give both the"):
        buffer.sample()
    buffer.set_sampler(former)
    assert knowledge(buffer) == before


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler,
        SamplerWithoutReplacement,
        lambda: SliceSampler(slice_len=2),
        lambda: SliceSamplerWithoutReplacement(slice_len=2),
        lambda: PrioritizedSampler(5, 0.5, 0.5),
        lambda: PrioritizedSliceSampler(5, 0.5, 0.5, slice_len=2),
    ],
    ids=["rows", "epochs", "slices", "epochs of slices", "priorities", "priorities of slices"],
)
def test_a_buffer_without_rows_asks_for_some(sampler, rows):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler(), batch_size=4)
    wants = "write|extend the buffer first"
    with pytest.raises(ValueError, match=wants):
        buffer.sample()
    buffer.extend(rows(3))
    buffer.empty()
    with pytest.raises(ValueError, match=wants):
        buffer.sample()


def test_slices_that_are_longer_than_every_trajectory_are_named(rows):
    sampler = PrioritizedSliceSampler(5, 0.5, 0.5, slice_len=4)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), sampler=sampler, batch_size=4)
    buffer.extend(rows(3))
    with pytest.raises(ValueError, match="none of 3 rows begins a slice of 4 rows: ask"):
        buffer.sample()


def test_empty_buffers_are_refused(prioritized):
    with pytest.raises(ValueError, match="no rows to sample yet: extend the buffer first"):
        prioritized(LazyTensorStorage(5)).sample()


@pytest.mark.parametrize("place", [(0, 5), (1, -1), (9, 0)])
def test_index_of_a_column_or_step_that_is_not_there_is_refused(place, rows, prioritized):
    buffer = prioritized(LazyTensorStorage(15, ndim=2))
    buffer.extend(torch.stack([rows(5), rows(5, 10)]))
    with pytest.raises(IndexError, match="no row is stored"):
        buffer.update_priority(torch.tensor([place]), 1.0)


@pytest.mark.parametrize("kind", [PrioritizedSampler, PrioritizedSliceSampler])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, "alpha must be at least 0"),
        ({"beta": -0.1}, "beta must be at least 0"),
        ({"alpha": NAN}, "alpha must be"),
        ({"beta": INF}, "beta must be at least 0 and finite"),
        ({"eps": -1e-8}, "eps must be at least 0"),
        ({"max_capacity": 0}, "max_capacity"),
        ({"reduction": "sum"}, "reduction is one of"),
        ({"normalize": "sum"}, "normalize is"),
    ],
)
def test_arguments_out_of_range_are_refused(kind, options, message):
    given = {"max_capacity": 9, "alpha": 1.0, "beta": 1.0} | options
    slices = {"slice_len": 2} if kind is PrioritizedSliceSampler else {}
    with pytest.raises(ValueError, match=message):
        kind(**given, **slices)


@pytest.mark.parametrize("kind", [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer])
@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"beta": -0.1}, {"eps": -1.0}])
def test_buffers_refuse_arguments_out_of_range(kind, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least 0"):
        kind(**({"alpha": 1.0, "beta": 1.0} | options))


def test_rows_that_are_no_whole_numbers_are_refused():
    buffer = ReplayBuffer(storage=LazyTensorStorage(3), sampler=PrioritizedSampler(3, 1.0, 1.0))
    buffer.extend(torch.arange(3))
    with pytest.raises(TypeError, match=r"whole numbers, got torch\.float32"):
        buffer.update_priority(torch.tensor([1.5]), 1.0)
    buffer.update_priority(torch.tensor([2], dtype=torch.int32), 4.0)
    assert buffer.stats()["highest_priority"] == 4


def test_all_priorities_of_slices_at_0_are_refused():
    sampler = PrioritizedSliceSampler(20, alpha=1.0, beta=1.0, eps=0.0, slice_len=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=6)
    index = buffer.extend(trajectories([5, 4]))
    buffer.update_priority(index, 0.0)
    with pytest.raises(ValueError, match="none of 9 rows begins a slice of this length and has a"):
        buffer.sample()
