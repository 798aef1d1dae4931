"""Rows come while others learn: weights stay unbiased, and late priorities are dropped, exactly."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

CAPACITY, WRITERS, BATCHES = 300, 2, 400


def shared(lanes: int, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, lanes=lanes),
        sampler=PrioritizedSampler(CAPACITY, **({"alpha": 1.0, "beta": 1.0} | options)),
        batch_size=60,
        shared=True,
        generator=torch.Generator().manual_seed(0),
    )


def rows(count: int, generator: torch.Generator) -> TensorDict:
    return TensorDict({"value": torch.rand(count, generator=generator)}, [count])


def write_on_demand(buffer: TensorDictReplayBuffer, pipe: Any, seed: int) -> None:
    torch.set_num_threads(1)  # a forked process has none of the threads of its parent
    generator = torch.Generator().manual_seed(seed)
    while count := pipe.recv():
        buffer.extend(rows(count, generator))
        pipe.send(count)


@pytest.mark.parametrize("lanes", [1, 3])
def test_as_many_priorities_are_dropped_as_sampled_rows_were_overwritten(lanes: int) -> None:
    buffer, context = shared(lanes), multiprocessing.get_context("fork")
    random = torch.Generator().manual_seed(2)
    buffer.extend(rows(CAPACITY // lanes, random))
    buffer.update_priority(buffer[:]["index"], 2.0)
    pipes, writers = [], []

    def begin(seed: int) -> None:
        here, there = context.Pipe()
        writers.append(
            context.Process(target=write_on_demand, args=(buffer, there, seed), daemon=True)
        )
        writers[-1].start()
        pipes.append(here)

    begin(1)
    begin(2)
    total, counts = 0, set()
    updated: set[int] = set()  # the rows whose priority was set before
    for turn in range(60):
        sample = buffer.sample()
        count = int(torch.randint(1, 90, (), generator=random))
        pipes[turn % 2].send(count)
        assert pipes[turn % 2].recv() == count
        if turn == 30:  # one that holds a lane is killed, and another takes its place
            os.kill(writers[0].pid, signal.SIGKILL)
            writers[0].join()
            begin(3)
            pipes[0] = pipes.pop()
        sampled = sample["collector", "row"]
        gone = int((~buffer.storage.ring.is_live(sampled)).sum())
        counts.add(gone)
        sample["td_error"] = torch.full((60,), 0.25)
        buffer.update_tensordict_priority(sample)
        total += gone
        assert buffer.stats()["stale_priorities"] == total
        priorities = buffer.sampler.state_dict()["priorities"]
        assert set(priorities.tolist()) <= {0.25, 2.0}  # newcomers have the highest there was
        window = buffer.storage.ring.window()
        live = window.numbers(torch.arange(len(window)))
        late = ~torch.isin(live, sampled) & (priorities == 0.25)
        assert set(live[late].tolist()) <= updated
        updated |= set(sampled.tolist())
    for pipe in pipes:
        pipe.send(0)
    for writer in writers:
        writer.join(60)
    assert len(counts) > 5


def write(buffer: TensorDictReplayBuffer, seed: int, ended: Any, batches: Any) -> None:
    """Write twice for each batch: all rows would be new in each one if this ran ahead."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    written = 0
    while not ended.is_set():
        buffer.extend(rows(7, generator))
        written += 1
        while written > 2 * sum(batches) + 9 and not ended.wait(0.001):
            pass


def learn(buffer: TensorDictReplayBuffer, seed: int, ended: Any, batches: Any, pipe: Any) -> None:
    """Means over samples: weights; weighted values, and values, less the mean of all rows."""
    torch.set_num_threads(1)
    buffer.set_rng(torch.Generator().manual_seed(seed))
    sums = torch.zeros(6, dtype=torch.float64)
    while not ended.is_set():
        sample = buffer.sample()
        value, weight = (sample[key].double() for key in ("value", "priority_weight"))
        stored = buffer[:]["value"].double().mean()
        means = (weight.mean(), (weight * value).mean() - stored, value.mean() - stored)
        terms = torch.stack(means)
        sums += torch.cat((terms, terms**2))
        sample["td_error"] = value.float() + 0.2  # so that rows of large values come more often
        buffer.update_tensordict_priority(sample)
        batches[seed] += 1
    pipe.send((sums / max(batches[seed], 1)).tolist())


def test_weighted_means_are_true_while_writers_write_and_learners_are_killed() -> None:
    buffer = shared(WRITERS + 1, normalize=None, stratified=False)
    buffer.extend(rows(30, torch.Generator().manual_seed(9)))
    context = multiprocessing.get_context("fork")
    ended, batches = context.Event(), context.RawArray("q", 3)
    here, there = context.Pipe()
    writers = [
        context.Process(target=write, args=(buffer, 5 + n, ended, batches), daemon=True)
        for n in range(WRITERS)
    ]
    learners = [
        context.Process(target=learn, args=(buffer, n, ended, batches, there), daemon=True)
        for n in range(3)
    ]
    for process in (*writers, *learners):
        process.start()
    try:
        for killed in (1, 2):
            before = list(batches)
            while learners[killed].is_alive() and batches[killed] < before[killed] + 30:
                learners[killed].join(0.01)
            os.kill(learners[killed].pid, signal.SIGKILL)
        while learners[0].is_alive() and batches[0] < BATCHES:
            learners[0].join(0.01)
    finally:
        ended.set()
    means = torch.tensor(here.recv(), dtype=torch.float64)
    for process in (*writers, *learners):
        process.join(60)
    weight, value, plain = means[:3].tolist()
    deviation = ((means[3:] - means[:3] ** 2) / batches[0]).sqrt().tolist()
    assert abs(weight - 1) < 5 * deviation[0]
    assert abs(value) < 5 * deviation[1]
    assert plain > 5 * deviation[2]  # without weights the mean is another one
