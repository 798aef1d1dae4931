"""Samples drawn while four processes write, each row of which says where it belongs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from rl_layout import Segments
from rl_layout.testing import EndKind, trajectories
from rl_replay import (
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_replay.row_source import StoredRows
from rl_slabs.lane import LANE_MASK

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked beside threads

WRITERS, EACH = 4, 120


def produce(buffer: TensorDictReplayBuffer, who: int) -> None:
    """Whole trajectories, frames of several at a time, and single rows, for ever.

    The action says which row of the lane it is.
    """
    random, name, count = np.random.default_rng(who), who << 20, 0
    while True:
        name += 4
        lengths = random.integers(1, 12, 3).tolist()
        rows = trajectories(lengths, EndKind.TRUNCATED, first_id=name)
        order = np.argsort(rows["observation"][:, 1].numpy(), kind="stable")
        how = int(random.integers(3))
        if how == 1:
            rows = rows[torch.from_numpy(order)]  # in turns
        elif how == 2:
            rows = rows[: lengths[0]]
        rows["action"] = torch.arange(count, count + len(rows))[:, None]
        count += len(rows)
        if how == 2:
            for row in rows:
                buffer.add(row)
        else:
            for part in rows.split(7 if how else len(rows)):
                buffer.extend(part)


@contextmanager
def written(buffer: TensorDictReplayBuffer) -> Iterator[None]:
    """Four processes write until the end."""
    children = []
    for who in range(1, WRITERS + 1):
        child = os.fork()
        if not child:
            try:
                torch.set_num_threads(1)
                produce(buffer, who)
            finally:
                os._exit(1)
        children.append(child)
    try:
        buffer.wait_until(WRITERS * EACH * 3 // 4, timeout=120)
        yield
        assert not any(os.waitpid(child, os.WNOHANG)[0] for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def shared(sampler: Any, **options: Any) -> TensorDictReplayBuffer:
    storage = LazyTensorStorage(WRITERS * EACH, lanes=WRITERS, **options)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64, shared=True)


def require_whole(rows: Any) -> None:
    names = rows["observation"].long()
    assert (names[:, 0] == rows["collector", "traj_ids"]).all()
    assert (names[:, 1] == rows["collector", "traj_step"]).all()
    assert (rows["next", "reward"][:, 0] == names[:, 1] + 1).all()
    assert (rows["next", "observation"].long() == names + torch.tensor([0, 1])).all()
    numbers = rows.get(("collector", "row"), None)
    if numbers is not None:
        assert (rows["action"][:, 0] == numbers & LANE_MASK).all()


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("kind", ["slices", "steps", "without replacement"])
def test_every_slice_is_one_that_was_written(kind: str, lossless: bool) -> None:
    sampler = {
        "slices": SliceSampler(slice_len=8),
        "steps": SliceSampler(slice_len=8, by="step"),
        "without replacement": SliceSamplerWithoutReplacement(slice_len=8),
    }[kind]
    buffer = shared(sampler, lossless=lossless)
    with written(buffer):
        for _ in range(120):
            sample = buffer.sample()
            require_whole(sample)
            names, ids = sample["observation"].long(), sample["collector", "slice_ids"]
            same = ids.diff() == 0
            assert (names.diff(dim=0)[same] == torch.tensor([0, 1])).all()
            assert len(Segments.of(sample)) == len(ids.unique())
    assert buffer.stats()["redraws"] > 0


def test_single_rows_and_reads_are_whole() -> None:
    buffer = shared(RandomSampler())
    with written(buffer):
        for _ in range(150):
            require_whole(buffer.sample())
            require_whole(buffer[:])
            sample = buffer.sample(5)
            buffer.update_rows(sample["collector", "row"], sample.select("action"))
    assert buffer.stats()["redraws"] >= 0


def test_rows_beside_those_of_a_sample_are_proved_by_links() -> None:
    buffer = shared(RandomSampler())
    source, found = StoredRows(buffer.storage), 0
    with written(buffer):
        for turn in range(150):
            sample = buffer.sample()
            rows, k = sample["collector", "row"], turn % 5 - 2
            beside, proved = source.after(rows, k)
            read, stood = source.read(torch.where(proved, beside, rows), ["observation"])
            good = proved & stood
            expected = sample["observation"] + torch.tensor([0.0, k])
            assert (read["observation"][good] == expected[good]).all()
            found += int(good.sum())
    assert found > 1000


def test_links_by_the_index_and_by_hops_agree_where_nobody_writes() -> None:
    alone = TensorDictReplayBuffer(storage=LazyTensorStorage(60))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(60, lanes=1), shared=True)
    rows = trajectories([6, 9, 1, 14], EndKind.CUT)
    for part in rows[torch.randperm(30)].split(4):
        alone.extend(part)
        buffer.extend(part)
    numbers = torch.arange(30)
    for k in range(-4, 5):
        one, proved = StoredRows(alone.storage).after(numbers, k)
        two, also = StoredRows(buffer.storage).after(numbers, k)
        assert (proved == also).all()
        assert (one == two)[proved].all()
