from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout.testing import trajectories
from rl_replay import LazyTensorStorage, PrioritizedSliceSampler, TensorDictReplayBuffer
from rl_replay.trajectories.index import TrajectoryIndex

EPS = 1e-8


def buffer_of(capacity, *, batch_size, alpha=0.8, beta=0.5, **options):
    sampler = PrioritizedSliceSampler(capacity, alpha, beta, **options)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )


def starts_of(buffer, length, *, strict):
    """The rows that can begin a slice, by a walk over every row's successors."""
    window, capacity = buffer.storage.ring.window(), buffer.storage.max_size
    first, end = window.first[0], window.first[0] + window.counts[0]
    distances = {row: int(buffer.storage.back[row % capacity]) for row in range(first, end)}
    successors = {row - far: row for row, far in distances.items() if far and row - far >= first}

    def reaches(row):
        for _ in range(length - 1):
            if row not in successors:
                return False
            row = successors[row]
        return True

    # the first row of a trajectory, or of what is left of one
    heads = {row for row, far in distances.items() if not far or row - far < first}
    return {row for row in distances if reaches(row) or (not strict and row in heads)}


def first_rows(sample):
    slices = sample["collector", "slice_ids"].numpy()
    return np.flatnonzero(np.diff(slices, prepend=-1)), slices


@given(
    st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=9),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([None, 0.0, 0.9]),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_slices_are_drawn_by_the_priorities_of_all_rows_that_can_begin_one(
    writes, length, strict, eta, seed
):
    options = {"slice_len": length, "strict_length": strict, "eta": eta, "normalize": None}
    buffer = buffer_of(29, batch_size=6 * length, **options)
    rng, known, highest = np.random.default_rng(seed), {}, 1.0
    for turn, lengths in enumerate(writes):
        batch = trajectories(lengths)
        batch["collector", "traj_ids"] += 1_000 * turn
        buffer.extend(batch)
        window = buffer.storage.ring.window()
        live = range(window.first[0], window.first[0] + window.counts[0])
        known = {row: known.get(row, highest) for row in live}
        starts = starts_of(buffer, length, strict=strict)
        if not starts:
            with pytest.raises(ValueError, match=rf"begins a slice of {length} rows"):
                buffer.sample()
            continue
        sample = buffer.sample()
        rows = sample["collector", "row"].numpy()
        firsts, slices = first_rows(sample)
        assert set(rows[firsts]) <= starts
        total = sum((known[row] + EPS) ** 0.8 for row in starts)
        shares = np.array([(known[row] + EPS) ** 0.8 / total for row in rows[firsts]])
        found = sample["priority_weight"].numpy()
        np.testing.assert_allclose(found, (len(live) * shares[slices]) ** -0.5, rtol=1e-4)
        errors = np.float32(rng.random(len(rows)) * 4)
        sample["td_error"] = torch.from_numpy(errors)
        buffer.update_tensordict_priority(sample)
        if eta is None:
            known |= dict(zip(rows.tolist(), errors.tolist(), strict=True))
            highest = max(highest, float(errors.max()))
            continue
        for number, row in enumerate(rows[firsts].tolist()):
            part = errors[slices == number].astype(np.float64)
            known[row] = float(np.float32(eta * part.max() + (1 - eta) * part.mean()))
            highest = max(highest, known[row])


def test_slices_are_marked_as_those_of_the_uniform_sampler():
    buffer = buffer_of(20, batch_size=6, alpha=1.0, slice_len=3)
    index = buffer.extend(trajectories([5, 4]))
    buffer.update_priority(index, torch.tensor([0, 1.0, 0, 0, 0, 0, 1.0, 0, 0]))
    sample = buffer.sample()
    assert sample["index"].tolist() == [1, 2, 3, 6, 7, 8]
    assert sample["is_init"].flatten().tolist() == [True, False, False] * 2
    assert sample["next", "done"].flatten().tolist() == [False, False, True] * 2
    assert sample["next", "truncated"].flatten().tolist()[:3] == [False, False, True]


def test_slices_begin_at_multiples_of_the_period_only():
    buffer = buffer_of(40, batch_size=200, slice_len=2, period=3)
    buffer.extend(trajectories([11, 8]))
    sample = buffer.sample()
    firsts, _ = first_rows(sample)
    steps = sample["collector", "traj_step"][torch.from_numpy(firsts)]
    assert set(steps.tolist()) == {0, 3, 6, 9}


def test_other_lengths_of_slices_are_drawn_from_other_rows():
    buffer = buffer_of(20, batch_size=8, num_slices=4)
    buffer.extend(trajectories([6]))
    for length in (2, 6, 3):
        sample = buffer.sample(4 * length)
        firsts, _ = first_rows(sample)
        assert len(firsts) == 4
        assert set(sample["index"][firsts].tolist()) <= set(range(7 - length))


def test_priorities_of_slices_are_kept_by_dumps(tmp_path):
    buffer, other = (buffer_of(20, batch_size=12, slice_len=3) for _ in range(2))
    buffer.extend(trajectories([8, 6]))
    sample = buffer.sample()
    sample["td_error"] = torch.rand(12)
    buffer.update_tensordict_priority(sample)
    buffer.dumps(tmp_path / "dump")
    other.loads(tmp_path / "dump")
    assert (other.sample()["index"] == buffer.sample()["index"]).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"slice_len": 3, "eta": 2.0}, ValueError, "eta must be in"),
        ({"slice_len": 3, "period": 0}, ValueError, "period"),
        ({}, TypeError, "num_slices, slice_len, or both"),
        ({"slice_len": 3, "spam": 1}, TypeError, "spam"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        PrioritizedSliceSampler(20, 0.5, 0.5, **options)


def test_period_without_steps_is_refused():
    buffer = buffer_of(20, batch_size=4, slice_len=2, period=2)
    batch = trajectories([6])
    del batch["collector", "traj_step"]
    buffer.extend(batch)
    with pytest.raises(KeyError, match="period=2 needs"):
        buffer.sample()


def test_rows_are_noted_in_few_ranges_where_nobody_draws():
    sampler = PrioritizedSliceSampler(20, alpha=1.0, beta=1.0, slice_len=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=30)
    buffer.extend(trajectories([6]))
    buffer.sample()
    ranges = sampler._rows.candidates.new  # private: memory that only grows is seen nowhere else
    for turn in range(9):
        index = buffer.extend(trajectories([4], first_id=10 * (turn + 1)))
        buffer.update_priority(index, 2.0)
    assert len(ranges) == 1
    first = buffer.sample(300)["collector", "row"][::3]
    assert set(first.tolist()) == {22, 23, 26, 27, 30, 31, 34, 35, 38, 39}


def test_first_rows_that_an_index_no_longer_has_are_drawn_anew():
    sampler = PrioritizedSliceSampler(20, alpha=1.0, beta=1.0, slice_len=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=30)
    buffer.extend(trajectories([6, 6]))
    buffer.sample()
    index = TrajectoryIndex(20)  # as while another process writes over the second trajectory
    index.append(0, np.array([0, 1, 1, 1, 1, 1]))
    for _ in range(5):
        bounds = sampler.choose(index, 40, 3)
        assert set(bounds.slots.tolist()) == {0}
        assert set(bounds.offsets.tolist()) <= {0, 1, 2, 3}
        assert set(bounds.lengths.tolist()) == {3}


def interleaved(length, first_id=0):
    """Two trajectories, a step of each in turn."""
    batch = trajectories([length, length])
    batch["collector", "traj_ids"] += first_id
    return batch.view(2, length).transpose(0, 1).reshape(-1)


def begun(buffer, slices=60):
    """The rows that slices of 3 rows at most begin at, and the rows of each."""
    sample = buffer.sample(3 * slices)
    firsts, ids = first_rows(sample)
    rows = sample["collector", "row"][torch.from_numpy(firsts)].tolist()
    return dict(zip(rows, np.bincount(ids).tolist(), strict=True))


def test_rests_of_trajectories_that_the_ring_cuts_begin_slices():
    buffer = buffer_of(10, batch_size=90, slice_len=3, strict_length=False)
    buffer.extend(interleaved(5))  # the one has the even rows, the other one the odd ones
    assert begun(buffer) == dict.fromkeys(range(6), 3)
    for written, wanted in [
        (5, {5: 3, 6: 2}),  # rows 6 and 8 are left of the one, 5, 7 and 9 of the other
        (2, {7: 2, 8: 1}),
        (1, {8: 1, 9: 1}),
        (1, {9: 1}),
    ]:
        first = buffer.write_count
        buffer.extend(trajectories([1] * written, first_id=10 + first))
        newest = dict.fromkeys(range(10, first + written), 1)
        assert begun(buffer) == wanted | newest


def test_starts_are_found_anew_where_markers_are_rewritten_in_place():
    buffer = buffer_of(20, batch_size=90, slice_len=3, alpha=1.0)
    index = buffer.extend(trajectories([4, 4]))
    assert begun(buffer) == dict.fromkeys([0, 1, 4, 5], 3)
    buffer.update_priority(index, torch.tensor([0, 1.0, 2, 3, 0, 5, 6, 7]))
    joined = trajectories([8])
    buffer[:] = buffer[:].update(joined).exclude("index")
    firsts = buffer.sample()["index"][::3]
    assert firsts.bincount().div(30).mul(11).round().tolist() == [0, 1, 2, 3, 0, 5]


def test_slices_whose_rows_go_while_they_are_drawn_are_drawn_again():
    buffer = buffer_of(20, batch_size=90, slice_len=3)
    buffer.extend(trajectories([5, 4, 6]))
    assert set(begun(buffer)) == {0, 1, 2, 5, 6, 9, 10, 11, 12}
    index = buffer.storage.trajectories()
    later = TrajectoryIndex(20)  # as another process has left it since rows were drawn
    later.restore(index.state())
    later.drop_before(6)
    slices = buffer.sampler.choose(later, 50, 3)
    firsts = later.rows(slices.slots, slices.offsets, np.ones_like(slices.lengths))
    assert set(firsts.tolist()) == {6, 9, 10, 11, 12}
    assert (slices.lengths == 3).all()
    assert set(begun(buffer)) == {6, 9, 10, 11, 12}
