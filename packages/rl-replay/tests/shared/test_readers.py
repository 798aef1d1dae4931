"""Samples drawn while four processes write, each row of which says where it belongs."""

from __future__ import annotations

import mmap
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
from rl_replay.buffer.transforms import StoredRows
from rl_slabs.lanes.lane import LANE_SHIFT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forked alongside threads

WRITERS, EACH = 4, 120
WHO_SHIFT = 40


def produce(buffer: TensorDictReplayBuffer, who: int, stop: mmap.mmap, path: Path) -> None:
    """Whole trajectories, frames of several at a time, and single rows, until it is to stop.

    The action says who wrote a row and how many rows the same writer wrote before. The file says of
    each under which number it was published, of which trajectory it is and which step of that.
    """
    random, name, count = np.random.default_rng(who), who << 20, 0
    with path.open("wb") as file:
        while not stop[0]:
            name += 4
            lengths = random.integers(1, 12, 3).tolist()
            rows = trajectories(lengths, EndKind.TRUNCATED, first_id=name)
            order = np.argsort(rows["observation"][:, 1].numpy(), kind="stable")
            how = int(random.integers(3))
            if how == 1:
                rows = rows[torch.from_numpy(order)]  # in turns
            elif how == 2:
                rows = rows[: lengths[0]]
            rows["action"] = torch.arange(count, count + len(rows))[:, None] + (who << WHO_SHIFT)
            count += len(rows)
            if how == 2:
                for row in rows:
                    record(file, buffer, torch.tensor([buffer.add(row)]), row[None])
            else:
                for part in rows.split(7 if how else len(rows)):
                    record(file, buffer, buffer.extend(part), part)


def record(file: BinaryIO, buffer: TensorDictReplayBuffer, places: torch.Tensor, rows: Any) -> None:
    """Note what was just published: its writer holds the lane until it writes again."""
    (lane,) = (places // EACH).unique().tolist()
    end = buffer.storage.ring.states()[lane].published
    counted = torch.arange(end - len(rows), end)
    assert (places == lane * EACH + counted % EACH).all()
    numbers = (lane << LANE_SHIFT) + counted
    file.write(torch.column_stack([numbers, rows["observation"].long()]).numpy().tobytes())


class Written:
    """What is read while the writers write; compared with what they noted when they have ended."""

    def __init__(self) -> None:
        self.read: list[torch.Tensor] = []

    def require_whole(self, rows: Any) -> None:
        names = rows["observation"].long()
        assert (names[:, 0] == rows["collector", "traj_ids"]).all()
        assert (names[:, 1] == rows["collector", "traj_step"]).all()
        assert (rows["next", "reward"][:, 0] == names[:, 1] + 1).all()
        assert (rows["next", "observation"].long() == names + torch.tensor([0, 1])).all()
        numbers = rows.get(("collector", "row"), None)
        if numbers is None:
            numbers = torch.full((len(rows),), -1)
        self.read.append(torch.column_stack([rows["action"], numbers, names]))

    def require_as_noted(self, notes: list[torch.Tensor]) -> None:
        """Each row read is the one that its writer noted, under the number that it had."""
        numbers = torch.cat([each[:, 0] for each in notes])
        assert len(numbers.unique()) == len(numbers)  # none was given twice
        assert self.read
        action, number, name, step = torch.cat(self.read).unbind(1)
        who, count = action >> WHO_SHIFT, action & ((1 << WHO_SHIFT) - 1)
        for writer, each in enumerate(notes, start=1):
            mine = who == writer
            noted = each[count[mine]]
            assert (noted[:, 1:] == torch.stack([name[mine], step[mine]], 1)).all()
            assert ((noted[:, 0] == number[mine]) | (number[mine] < 0)).all()
        assert ((who >= 1) & (who <= WRITERS)).all()


@contextmanager
def written(buffer: TensorDictReplayBuffer, folder: Path) -> Iterator[Written]:
    """Four processes write until the end; then what was read meanwhile is compared."""
    stop, children, seen = mmap.mmap(-1, 1), [], Written()
    paths = [folder / str(who) for who in range(1, WRITERS + 1)]
    for who, path in enumerate(paths, start=1):
        child = os.fork()
        if not child:
            code = 1
            try:
                torch.set_num_threads(1)
                produce(buffer, who, stop, path)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    try:
        lanes = buffer.storage.lanes
        buffer.wait_until(lanes * EACH * 3 // 4, timeout=120)
        yield seen
        started = len(children)
        children = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
        assert len(children) == started
        stop[0] = 1
        while children:
            assert os.waitpid(children.pop(), 0)[1] == 0
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
    notes = [torch.from_numpy(np.fromfile(path, np.int64).reshape(-1, 3)) for path in paths]
    seen.require_as_noted(notes)
    used = [len((each[:, 0] >> LANE_SHIFT).unique()) for each in notes]
    assert lanes == WRITERS or sum(used) > WRITERS  # writers did move on to free lanes


def shared(sampler: Any, lanes: int = WRITERS, **options: Any) -> TensorDictReplayBuffer:
    storage = LazyTensorStorage(lanes * EACH, lanes=lanes, **options)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=64, shared=True)


@pytest.mark.parametrize("lanes", [WRITERS, WRITERS + 2])
@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("kind", ["slices", "steps", "without replacement"])
def test_every_slice_is_one_that_was_written(
    kind: str, lossless: bool, lanes: int, tmp_path: Path
) -> None:
    sampler = {
        "slices": SliceSampler(slice_len=8),
        "steps": SliceSampler(slice_len=8, by="step"),
        "without replacement": SliceSamplerWithoutReplacement(slice_len=8),
    }[kind]
    buffer = shared(sampler, lanes, lossless=lossless)
    with written(buffer, tmp_path) as seen:
        for turn in range(5_000):
            if turn >= 120 and buffer.stats()["redraws"]:
                break
            sample = buffer.sample()
            seen.require_whole(sample)
            names, ids = sample["observation"].long(), sample["collector", "slice_ids"]
            same = ids.diff() == 0
            assert (names.diff(dim=0)[same] == torch.tensor([0, 1])).all()
            assert len(Segments.of(sample)) == len(ids.unique())
    assert buffer.stats()["redraws"] > 0


@pytest.mark.parametrize("lanes", [WRITERS, WRITERS + 2])
def test_single_rows_and_reads_are_whole(lanes: int, tmp_path: Path) -> None:
    buffer = shared(RandomSampler(), lanes)
    with written(buffer, tmp_path) as seen:
        for _ in range(150):
            seen.require_whole(buffer.sample())
            seen.require_whole(buffer[:])
            sample = buffer.sample(5)
            buffer.update_rows(sample["collector", "row"], sample.select("action"))
    assert buffer.stats()["redraws"] >= 0


@pytest.mark.parametrize("lanes", [WRITERS, WRITERS + 2])
def test_neighbours_of_sampled_rows_are_proved_by_links(lanes: int, tmp_path: Path) -> None:
    buffer = shared(RandomSampler(), lanes)
    source, found = StoredRows(buffer.storage), 0
    with written(buffer, tmp_path) as seen:
        for turn in range(150):
            sample = buffer.sample()
            seen.require_whole(sample)
            rows, k = sample["collector", "row"], turn % 5 - 2
            neighbours, proved = source.after(rows, k)
            read, present = source.read(torch.where(proved, neighbours, rows), ["observation"])
            good = proved & present
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
