"""What is no priority is refused with every storage, and what was known before stays."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

NAN, INF = float("nan"), float("inf")
STORAGES = {
    "memory": lambda: LazyTensorStorage(24),
    "file": lambda: LazyMemmapStorage(24),
    "columns": lambda: LazyTensorStorage(24, ndim=2),
    "columns in a file": lambda: LazyMemmapStorage(24, ndim=2),
    "lossless": lambda: LazyTensorStorage(24, lossless=True),
    "objects": lambda: ListStorage(24),
}


def rows(count, first=0):
    number = torch.arange(first, first + count + 1)
    seen = number.float()[:, None] / 3
    leaves = {"number": number[:-1], "observation": seen[:-1], "next": {"observation": seen[1:]}}
    return TensorDict(leaves, [count])


def prioritized(storage, *, batch_size=4, shared=False, **options):
    parts = {"alpha": 0.6, "beta": 0.4} | options
    return TensorDictPrioritizedReplayBuffer(
        storage=storage,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        shared=shared,
        **parts,
    )


def filled(kind, **options):
    buffer = prioritized(STORAGES[kind](), **options)
    data = rows(6)
    index = buffer.extend(data.view(2, 3) if "columns" in kind else data)
    buffer.update_priority(index, torch.arange(1.0, 7.0))
    return buffer, index


def named(buffer, row_ids):
    """Rows of a buffer, as its samples name them."""
    named = {"row": torch.tensor(row_ids), "storage_id": buffer.storage.identity.leaf(len(row_ids))}
    return rows(len(row_ids)).set("collector", named)


def with_errors(sample, errors):
    return sample.set("td_error", torch.as_tensor(errors))


def knowledge(buffer):
    """Everything that draws depend on."""
    sampler = buffer.sampler
    state = sampler.state_dict()
    return (state["priorities"].tolist(), sampler.alpha, sampler.beta, buffer.stats())


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


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("case", CALLS)
def test_what_is_no_priority_is_refused_and_what_was_known_stays(case, kind):
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


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("count", [6, 40])  # as many rows as this one has, and more
@pytest.mark.parametrize(
    "form",
    [lambda s: s, lambda s: s.clone()[3:9], lambda s: s.view(4, 8)],
    ids=["as drawn", "some rows", "folded"],
)
def test_samples_of_other_buffers_are_refused(kind, form, count):
    buffer, _ = filled(kind)
    other = prioritized(LazyTensorStorage(50), batch_size=32)
    other.extend(rows(count))
    before = knowledge(buffer)
    sample = form(with_errors(other.sample(), torch.rand(32)))
    message = f"{sample.numel()} of {sample.numel()} rows are of another buffer: give priorities"
    with pytest.raises(ValueError, match=message):
        buffer.update_tensordict_priority(sample)
    assert knowledge(buffer) == before


def test_a_batch_with_some_rows_of_another_buffer_is_refused():
    (buffer, _), (other, _) = filled("memory"), filled("memory")
    both = torch.cat([buffer.sample(3), other.sample(2)])
    before = knowledge(buffer)
    with pytest.raises(ValueError, match="2 of 5 rows are of another buffer"):
        buffer.update_tensordict_priority(with_errors(both, torch.ones(5)))
    assert knowledge(buffer) == before
    with pytest.raises(ValueError, match="3 of 5 rows"):
        other.update_tensordict_priority(both)


@pytest.mark.parametrize("prefetch", [None, 2])
def test_own_samples_are_taken_in_any_form(prefetch):
    buffer = prioritized(LazyTensorStorage(24), prefetch=prefetch)
    buffer.extend(rows(6))
    first, second = (with_errors(buffer.sample(), torch.full((4,), size)) for size in (20.0, 30.0))
    buffer.update_tensordict_priority(first.clone())
    assert buffer.sampler.default_priority == 20
    buffer.update_tensordict_priority(torch.cat([first, second])[2:].view(2, 3))
    assert buffer.sampler.default_priority == 30
    buffer.update_tensordict_priority(
        with_errors(buffer[:].select("index"), torch.full((6,), 40.0))
    )
    assert buffer.sampler.default_priority == 40


def test_slices_of_another_buffer_are_refused():
    def sliced():
        sampler = PrioritizedSliceSampler(40, 0.7, 0.5, slice_len=2)
        made = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=8)
        made.extend(trajectories([5, 4, 6]))
        return made

    buffer, other = sliced(), sliced()
    sample = with_errors(other.sample(), torch.ones(8))
    other.update_tensordict_priority(sample)
    with pytest.raises(ValueError, match="8 of 8 rows are of another buffer"):
        buffer.update_tensordict_priority(sample)


def test_samples_of_uniform_buffers_are_refused():
    buffer, _ = filled("memory")
    uniform = TensorDictReplayBuffer(storage=LazyTensorStorage(24), batch_size=4)
    uniform.extend(rows(6))
    with pytest.raises(ValueError, match="do not say by"):
        buffer.update_tensordict_priority(with_errors(uniform.sample(), torch.ones(4)))


def test_a_sample_of_former_rows_is_refused_after_the_storage_was_exchanged():
    buffer, _ = filled("memory")
    sample = with_errors(buffer.sample(), torch.ones(4))
    other = LazyTensorStorage(24)
    buffer.set_storage(other)
    buffer.extend(rows(6))
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        buffer.update_tensordict_priority(sample)


def test_a_sampler_that_is_exchanged_leaves_samples_as_they_are():
    buffer, _ = filled("memory")
    sample = with_errors(buffer.sample(), torch.full((4,), 20.0))
    buffer.set_sampler(PrioritizedSampler(24, 0.7, 0.5))
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.default_priority == 20


def test_a_dump_keeps_the_number_of_no_storage(tmp_path):
    (buffer, _), (fresh, _) = filled("memory"), filled("memory")
    sample = with_errors(buffer.sample(), torch.full((4,), 20.0))
    buffer.dumps(tmp_path)
    buffer.loads(tmp_path)
    buffer.update_tensordict_priority(sample)  # it is the same buffer, with the same rows
    assert buffer.sampler.default_priority == 20
    fresh.loads(tmp_path)
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        fresh.update_tensordict_priority(sample)


def test_who_opens_the_files_of_a_folder_takes_its_samples(tmp_path):
    first = prioritized(LazyMemmapStorage(24, scratch_dir=tmp_path / "one"))
    first.extend(rows(6))
    second = prioritized(LazyMemmapStorage.open(tmp_path / "one"))
    second.update_tensordict_priority(with_errors(first.sample(), torch.full((4,), 20.0)))
    assert second.sampler.default_priority == 20
    other = prioritized(LazyMemmapStorage(24, scratch_dir=tmp_path / "two"))
    other.extend(rows(6))
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        second.update_tensordict_priority(with_errors(other.sample(), torch.ones(4)))


def test_samples_of_other_ensembles_are_refused():
    def pair():
        return ReplayBufferEnsemble(
            *(filled("memory")[0] for _ in range(2)), sample_from_all=True, batch_size=8
        )

    ensemble, other = pair(), pair()
    sample = with_errors(other.sample(), torch.full((2, 4), 20.0))
    before = [knowledge(buffer) for buffer in ensemble]
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        ensemble.update_tensordict_priority(sample)
    assert [knowledge(buffer) for buffer in ensemble] == before
    # of its first buffer, and of another
    partly = torch.stack([ensemble.sample()[0], sample[1].exclude("td_error")])
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        ensemble.update_tensordict_priority(with_errors(partly, torch.full((2, 4), 20.0)))
    assert [knowledge(buffer) for buffer in ensemble] == before
    other.update_tensordict_priority(sample)
    assert [buffer.sampler.default_priority for buffer in other] == [20, 20]


def test_the_number_of_a_storage_is_dropped_where_samples_are_stored_again():
    (buffer, _), (other, _) = filled("memory"), filled("memory")
    other.extend(buffer.sample())
    assert "storage_id" not in other[:].get("collector", {})


def test_rows_that_were_never_written_are_named_in_buffers_of_several_writers():
    buffer = prioritized(LazyTensorStorage(36, lanes=3), shared=True)
    buffer.extend(rows(6))
    sample = with_errors(buffer.sample(), torch.ones(4))
    for row in (9, (1 << 48) + 2, 9 << 48):  # of this lane, of one without rows, of no lane
        sample["collector", "row"][1] = row
        with pytest.raises(ValueError, match=f"row {row} was never written, the newest one is"):
            buffer.update_tensordict_priority(sample)
    assert buffer.stats()["stale_priorities"] == 0


@pytest.mark.parametrize("kind", STORAGES)
def test_rows_of_priority_0_are_drawn_only_with_eps(kind):
    buffer, index = filled(kind, alpha=1.0, eps=0.0)
    buffer.update_priority(index, 0.0)
    with pytest.raises(ValueError, match="none of 6 rows has a priority above 0: update_priority"):
        buffer.sample()
    buffer.update_priority(index[3:4], 1.0)
    assert set(buffer.sample()["number"].tolist()) == {3}


@pytest.mark.parametrize("kind", STORAGES)
def test_capacities_other_than_the_storages_are_refused_and_the_buffer_stays(kind):
    buffer, _ = filled(kind)
    before, former = knowledge(buffer), buffer.sampler
    buffer.set_sampler(PrioritizedSampler(9, 1.0, 1.0))
    with pytest.raises(ValueError, match="room for 9 rows and the storage for 24: give both the"):
        buffer.sample()
    buffer.set_sampler(former)
    assert knowledge(buffer) == before


def test_empty_buffers_are_refused():
    with pytest.raises(ValueError, match="no rows to sample yet: extend the buffer first"):
        prioritized(LazyTensorStorage(5)).sample()


@pytest.mark.parametrize("place", [(0, 5), (1, -1), (9, 0)])
def test_index_of_a_column_or_step_that_is_not_there_is_refused(place):
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
