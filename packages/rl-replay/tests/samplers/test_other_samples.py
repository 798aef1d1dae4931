"""Samples of other buffers are refused as priorities; own ones are taken in any form."""

from __future__ import annotations

import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
)


def with_errors(sample, errors):
    return sample.set("td_error", torch.as_tensor(errors))


@pytest.mark.parametrize("count", [6, 40])  # as many rows as this one has, and more
@pytest.mark.parametrize(
    "form",
    [lambda s: s, lambda s: s.clone()[3:9], lambda s: s.view(4, 8)],
    ids=["as drawn", "some rows", "folded"],
)
def test_samples_of_other_buffers_are_refused(
    kind, form, count, rows, prioritized, filled, knowledge
):
    buffer, _ = filled(kind)
    other = prioritized(LazyTensorStorage(50), batch_size=32)
    other.extend(rows(count))
    before = knowledge(buffer)
    sample = form(with_errors(other.sample(), torch.rand(32)))
    message = f"{sample.numel()} of {sample.numel()} rows are of another buffer: give priorities"
    with pytest.raises(ValueError, match=message):
        buffer.update_tensordict_priority(sample)
    assert knowledge(buffer) == before


def test_a_batch_with_some_rows_of_another_buffer_is_refused(filled, knowledge):
    (buffer, _), (other, _) = filled("memory"), filled("memory")
    both = torch.cat([buffer.sample(3), other.sample(2)])
    before = knowledge(buffer)
    with pytest.raises(ValueError, match="2 of 5 rows are of another buffer"):
        buffer.update_tensordict_priority(with_errors(both, torch.ones(5)))
    assert knowledge(buffer) == before
    with pytest.raises(ValueError, match="3 of 5 rows"):
        other.update_tensordict_priority(both)


@pytest.mark.parametrize("prefetch", [None, 2])
def test_own_samples_are_taken_in_any_form(prefetch, rows, prioritized):
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


def test_samples_of_uniform_buffers_are_refused(rows, filled):
    buffer, _ = filled("memory")
    uniform = TensorDictReplayBuffer(storage=LazyTensorStorage(24), batch_size=4)
    uniform.extend(rows(6))
    with pytest.raises(ValueError, match="do not say by"):
        buffer.update_tensordict_priority(with_errors(uniform.sample(), torch.ones(4)))


def test_a_sample_of_former_rows_is_refused_after_the_storage_was_exchanged(rows, filled):
    buffer, _ = filled("memory")
    sample = with_errors(buffer.sample(), torch.ones(4))
    other = LazyTensorStorage(24)
    buffer.set_storage(other)
    buffer.extend(rows(6))
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        buffer.update_tensordict_priority(sample)


def test_a_sampler_that_is_exchanged_leaves_samples_as_they_are(filled):
    buffer, _ = filled("memory")
    sample = with_errors(buffer.sample(), torch.full((4,), 20.0))
    buffer.set_sampler(PrioritizedSampler(24, 0.7, 0.5))
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.default_priority == 20


def test_a_dump_keeps_the_number_of_no_storage(tmp_path, filled):
    (buffer, _), (fresh, _) = filled("memory"), filled("memory")
    sample = with_errors(buffer.sample(), torch.full((4,), 20.0))
    buffer.dumps(tmp_path)
    buffer.loads(tmp_path)
    buffer.update_tensordict_priority(sample)  # it is the same buffer, with the same rows
    assert buffer.sampler.default_priority == 20
    fresh.loads(tmp_path)
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        fresh.update_tensordict_priority(sample)


def test_who_opens_the_files_of_a_folder_takes_its_samples(tmp_path, rows, prioritized):
    first = prioritized(LazyMemmapStorage(24, scratch_dir=tmp_path / "one"))
    first.extend(rows(6))
    second = prioritized(LazyMemmapStorage.open(tmp_path / "one"))
    second.update_tensordict_priority(with_errors(first.sample(), torch.full((4,), 20.0)))
    assert second.sampler.default_priority == 20
    other = prioritized(LazyMemmapStorage(24, scratch_dir=tmp_path / "two"))
    other.extend(rows(6))
    with pytest.raises(ValueError, match="4 of 4 rows are of another buffer"):
        second.update_tensordict_priority(with_errors(other.sample(), torch.ones(4)))


def test_samples_of_other_ensembles_are_refused(filled, knowledge):
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


def test_the_number_of_a_storage_is_dropped_where_samples_are_stored_again(filled):
    (buffer, _), (other, _) = filled("memory"), filled("memory")
    other.extend(buffer.sample())
    assert "storage_id" not in other[:].get("collector", {})


def test_rows_that_were_never_written_are_named_in_buffers_of_several_writers(rows, prioritized):
    buffer = prioritized(LazyTensorStorage(36, lanes=3), shared=True)
    buffer.extend(rows(6))
    sample = with_errors(buffer.sample(), torch.ones(4))
    for row in (9, (1 << 48) + 2, 9 << 48):  # of this lane, of one without rows, of no lane
        sample["collector", "row"][1] = row
        with pytest.raises(ValueError, match=f"row {row} was never written, the newest one is"):
            buffer.update_tensordict_priority(sample)
    assert buffer.stats()["stale_priorities"] == 0
