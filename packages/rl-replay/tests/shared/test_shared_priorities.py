"""Learners and writers in several processes, one of which is killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

CAPACITY, WRITERS, LEARNERS, BATCHES = 400, 2, 3, 120
SAMPLERS = {
    "rows": lambda: PrioritizedSampler(CAPACITY, alpha=0.7, beta=0.5),
    "slices": lambda: PrioritizedSliceSampler(CAPACITY, alpha=0.7, beta=0.5, slice_len=3),
}


def shared(kind: str) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, lanes=WRITERS + 1),
        sampler=SAMPLERS[kind](),
        batch_size=24,
        shared=True,
    )
    buffer.extend(trajectories([6, 5]))
    return buffer


def write(buffer: TensorDictReplayBuffer, name: int, ended: Any) -> None:
    torch.set_num_threads(1)  # a forked process has none of the threads of its parent
    turn = 0
    while not ended.is_set():
        turn += 1
        buffer.extend(trajectories([4, 7, 2], first_id=100_000 * name + 10 * turn))


def learn(buffer: TensorDictReplayBuffer, seed: int, batches: Any, ended: Any) -> None:
    torch.set_num_threads(1)
    buffer.set_rng(torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    while not ended.is_set():
        sample = buffer.sample()
        weight = sample["priority_weight"]
        assert (weight > 0).all()
        assert (weight <= 1).all()
        sample["td_error"] = torch.rand(len(sample), generator=generator)
        buffer.update_tensordict_priority(sample)
        batches[seed] += 1


@pytest.mark.parametrize("kind", SAMPLERS)
def test_priorities_are_whole_after_a_learner_was_killed(kind):
    buffer = shared(kind)
    context = multiprocessing.get_context("fork")
    ended, batches = context.Event(), context.RawArray("q", LEARNERS)
    writers = [context.Process(target=write, args=(buffer, 1 + n, ended)) for n in range(WRITERS)]
    learners = [
        context.Process(target=learn, args=(buffer, n, batches, ended)) for n in range(LEARNERS)
    ]
    for process in (*writers, *learners):
        process.start()
    try:
        while learners[-1].is_alive() and batches[LEARNERS - 1] < BATCHES:
            learners[-1].join(0.01)
        os.kill(learners[-1].pid, signal.SIGKILL)
        others = batches[:-1]
        while any(
            learners[n].is_alive() and batches[n] < others[n] + BATCHES for n in range(LEARNERS - 1)
        ):
            learners[0].join(0.01)
    finally:
        ended.set()
        for process in (*writers, *learners):
            process.join()
    assert [process.exitcode for process in learners] == [0, 0, -signal.SIGKILL]
    assert [process.exitcode for process in writers] == [0, 0]
    require_true_frequencies(buffer, kind)


def require_true_frequencies(buffer: TensorDictReplayBuffer, kind: str) -> None:
    """Draws of live rows alone, as often as the priorities that the sampler saves say."""
    buffer.set_rng(torch.Generator().manual_seed(7))
    for _ in range(8):  # sums that a killed process left out are computed again
        buffer.sample()
    window = buffer.storage.ring.window()
    live = window.numbers(torch.arange(len(window))).tolist()
    counts = dict.fromkeys(live, 0)
    for _ in range(300):
        sample = buffer.sample()
        rows = sample["collector", "row"].numpy()
        if kind == "slices":
            rows = rows[np.flatnonzero(np.diff(sample["collector", "slice_ids"], prepend=-1))]
        for row in rows.tolist():
            counts[row] += 1
    state = buffer.sampler.state_dict()
    assert state["first"] == list(window.first)
    weights = (state["priorities"].double().numpy() + 1e-8) ** 0.7
    drawn = np.array([counts[row] for row in live])
    if kind == "slices":  # first rows alone: the others were never drawn
        starts = buffer.storage.trajectories().after(np.array(live), 2)[1]
        assert (drawn[~starts] == 0).all()
        weights, drawn = weights[starts], drawn[starts]
    wanted = weights / weights.sum() * drawn.sum()
    kept = wanted > 1
    square = ((drawn - wanted)[kept] ** 2 / wanted[kept]).sum() / kept.sum()
    assert square < 1 + 5 * np.sqrt(2 / kept.sum())  # strata only lower it


def test_other_processes_draw_by_the_same_priorities():
    buffer = shared("rows")
    other = pickle.loads(pickle.dumps(buffer))
    buffer.update_priority(torch.arange(11), 0.0)
    other.update_priority(torch.tensor([3]), 9.0)
    assert set(buffer.sample()["index"].tolist()) == {3}
    buffer.sampler.alpha = 0.0
    assert other.sampler.alpha == 0.0
    assert set(other.sample(200)["index"].tolist()) == set(range(11))


def test_other_processes_take_samples_of_the_buffer_that_they_share():
    buffer, stranger = shared("rows"), shared("rows")
    other = pickle.loads(pickle.dumps(buffer))
    sample = other.sample().set("td_error", torch.full((other.batch_size,), 20.0))
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.default_priority == other.sampler.default_priority == 20
    with pytest.raises(ValueError, match="rows are of another buffer"):
        stranger.update_tensordict_priority(sample)


def test_dumps_of_a_process_that_never_draws_keep_the_priorities_of_others(tmp_path):
    buffer = shared("rows")
    other = pickle.loads(pickle.dumps(buffer))
    other.update_priority(torch.arange(11), torch.arange(11.0))
    buffer.dumps(tmp_path / "dump")
    restored = shared("rows")
    restored.loads(tmp_path / "dump")
    restored.sample()
    assert restored.sampler.state_dict()["priorities"].tolist() == list(range(11))


def test_row_ids_of_padding_are_refused():
    buffer = shared("rows")
    highest = buffer.stats()["highest_priority"]
    with pytest.raises(ValueError, match="row ids are at least 0, got -1"):
        buffer.sampler.update_priority(buffer.storage, torch.tensor([3, -1]), 50.0)
    assert buffer.stats()["highest_priority"] == highest


def test_private_priorities_are_those_of_one_process():
    sampler = PrioritizedSampler(50, alpha=1.0, beta=0.0, private_priorities=True)
    storage = LazyTensorStorage(50, lanes=2)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=60, shared=True)
    buffer.extend(trajectories([6]))
    other = pickle.loads(pickle.dumps(buffer))
    buffer.update_priority(torch.arange(5), 0.0)
    assert set(buffer.sample()["index"].tolist()) == {5}
    assert set(other.sample()["index"].tolist()) == set(range(6))


def test_rows_that_others_drop_take_their_priorities_with_them():
    buffer = shared("rows")
    other = pickle.loads(pickle.dumps(buffer))
    buffer.update_priority(torch.arange(11), torch.arange(11.0))
    other.empty()
    other.extend(trajectories([5]))
    sample = buffer.sample(100)
    assert (sample["priority_weight"] == 1).all()
    assert len(sample["collector", "row"].unique()) == 5


def test_slices_of_another_length_are_refused_where_others_draw():
    sampler = PrioritizedSliceSampler(CAPACITY, alpha=0.7, beta=0.5, num_slices=4)
    storage = LazyTensorStorage(CAPACITY, lanes=2)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, shared=True)
    buffer.extend(trajectories([6, 5]))
    buffer.sample(12)
    with pytest.raises(ValueError, match="slices of 3 rows are drawn from this shared buffer"):
        buffer.sample(8)


@pytest.mark.parametrize("shares", [False, True])
def test_priorities_of_rows_outlive_a_change_of_markers(shares, tmp_path):
    storage = (
        LazyTensorStorage(8, lanes=1)
        if shares
        else LazyMemmapStorage(8, scratch_dir=tmp_path, lanes=1)
    )
    sampler = PrioritizedSampler(8, alpha=1.0, beta=0.5, eps=0, probabilities=True)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=60, shared=shares)
    buffer.extend(trajectories([4]))
    sample = buffer[:]
    sample["index"], sample["td_error"] = torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    buffer.update_tensordict_priority(sample)
    row = buffer[2].clone()
    buffer[2] = row.set("action", row["action"] + 1)  # its markers are written too
    drawn = buffer.sample()
    assert torch.allclose(drawn["probability"].float(), (drawn["index"] + 1) / 10.0)


def test_priorities_begin_anew_with_rows_that_are_loaded(tmp_path):
    buffer = shared("rows")
    buffer.extend(trajectories([4], first_id=50))
    buffer.dumps(tmp_path)
    buffer.update_priority(torch.arange(3), torch.tensor([9.0, 9.0, 9.0]))
    buffer.sample()
    buffer.empty()
    buffer.extend(trajectories([4], first_id=70))
    assert (buffer.sample()["priority_weight"] == 1).all()
