"""How often what is drawn, out of whole buffers, against an enumeration of what can be drawn."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise, zip_longest

import pytest
import torch

from rl_layout import EndKind, keys
from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

Slice = tuple[int, int]  # number of the first row, and how many rows
LENGTHS = [[7, 2, 5, 1, 3], [3, 9, 1, 4, 2]]  # as many calls of 4 rows each


def filled(sampler: Sampler, kind: str) -> ReplayBuffer:
    """Two producers that interleave in one ring, or that have a lane each; all are gone around."""
    storage = LazyTensorStorage(32, lanes=2) if kind == "lanes" else LazyTensorStorage(29)
    buffer = ReplayBuffer(
        storage=storage,
        sampler=sampler,
        generator=torch.Generator().manual_seed(1),
        shared=kind == "lanes",
    )
    tapes = [trajectories(n, EndKind.CUT, first_id=99 * i) for i, n in enumerate(LENGTHS)]

    turn = threading.Barrier(2)

    def write(tape: int) -> None:
        for rows in tapes[tape].split(4):
            buffer.extend(rows)
            turn.wait(30)  # no thread ends and leaves its lane before the other one has its own

    if kind == "lanes":
        threads = [threading.Thread(target=write, args=(tape,)) for tape in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return buffer
    for parts in zip_longest(*(tape.split(4) for tape in tapes)):
        for rows in parts:
            if rows is not None:
                buffer.extend(rows)
    return buffer


def chains(buffer: ReplayBuffer) -> list[list[int]]:
    """The row numbers of each trajectory, read from ids and steps one by one."""
    rows = buffer[:]
    numbers = buffer.storage.ring.numbers_at(torch.arange(buffer.storage.max_size))
    numbers = numbers[numbers >= 0].tolist()
    named = zip(rows[keys.TRAJ_IDS].tolist(), rows[keys.TRAJ_STEP].tolist(), numbers, strict=True)
    found: list[list[int]] = []
    before = None
    for name, step, number in sorted(named):
        if before != (name, step - 1):
            found.append([])
        found[-1].append(number)
        before = name, step
    return found


def places(chain: list[int], length: int, left: int, right: int) -> list[Slice]:
    """Every slice of a trajectory, cut off at its ends."""
    begins = range(-left, max(len(chain) - length, 0) + right + 1)
    whole = [range(max(b, 0), min(b + length, len(chain))) for b in begins if b < len(chain)]
    return [(chain[part[0]], len(part)) for part in whole if part]


def chances(found: list[list[int]], length: int, span: tuple[int, int], by: str) -> Counter[Slice]:
    """The chance of each slice."""
    chance: Counter[Slice] = Counter()
    each = [places(chain, length, *span) for chain in found]
    for some in each:
        for place in some:
            one = 1 / len(some) / len(each) if by == "trajectory" else 1 / sum(map(len, each))
            chance[place] += one
    return chance


def slices_of(buffer: ReplayBuffer, length: int, count: int) -> list[Slice]:
    sample, info = buffer.sample(length * count, return_info=True)
    rows = sample[keys.ROW].tolist()
    ends = [*info["slices"].starts.tolist(), len(rows)]
    return [(rows[begin], end - begin) for begin, end in pairwise(ends)]


def assert_drawn_as(drawn: Counter, chance: Counter) -> None:
    """Chi-square, below the point that one in a hundred thousand right ones passes."""
    total = sum(drawn.values())
    assert set(drawn) <= set(chance)
    assert abs(sum(chance.values()) - 1) < 1e-9
    square = sum((drawn[what] - total * p) ** 2 / (total * p) for what, p in chance.items())
    free = len(chance) - 1
    # Wilson and Hilferty's approximation of the quantile, 4.26 standard deviations out
    limit = free * (1 - 2 / (9 * free) + 4.26 * (2 / (9 * free)) ** 0.5) ** 3
    assert square < limit


@pytest.mark.parametrize("kind", ["ring", "lanes"])
@pytest.mark.parametrize("by", ["trajectory", "step"])
@pytest.mark.parametrize(
    ("span", "strict"), [(False, False), (False, True), (True, False), ((0, 2), False), (1, True)]
)
def test_slices_are_as_likely_as_enumerated(by, span, strict, kind):
    sampler = SliceSampler(slice_len=4, by=by, span=span, strict_length=strict)
    buffer = filled(sampler, kind)
    found = [chain for chain in chains(buffer) if len(chain) >= (4 if strict else 1)]
    reach = {"False": (0, 0), "True": (3, 3), "(0, 2)": (0, 2), "1": (1, 1)}[str(span)]
    drawn: Counter[Slice] = Counter()
    for _ in range(40):
        drawn.update(slices_of(buffer, 4, 300))
    assert_drawn_as(drawn, chances(found, 4, reach, by))


@pytest.mark.parametrize("kind", ["ring", "lanes"])
def test_steps_are_equally_likely_with_a_whole_span(kind):
    buffer = filled(SliceSampler(slice_len=4, by="step", span=True), kind)
    rows = torch.cat([buffer.sample(1200)[keys.ROW] for _ in range(40)])
    numbers, counts = rows.unique(return_counts=True)
    assert len(numbers) == len(buffer)
    share = counts / counts.sum()
    # rows of one slice are drawn together, so the deviation is up to 4 times that of single rows
    assert (share * len(buffer) - 1).abs().max() < 5 * 2 * (len(buffer) / len(rows)) ** 0.5


@pytest.mark.parametrize("kind", ["ring", "lanes"])
def test_rows_of_all_lanes_are_equally_likely(kind):
    buffer = filled(RandomSampler(), kind)
    drawn = Counter(row for _ in range(20) for row in buffer.sample(1000)[keys.ROW].tolist())
    live = [row for chain in chains(buffer) for row in chain]
    assert_drawn_as(drawn, Counter({row: 1 / len(live) for row in live}))


@pytest.mark.parametrize("kind", ["ring", "lanes"])
def test_epoch_takes_each_trajectory_once_at_any_place(kind):
    buffer = filled(SliceSamplerWithoutReplacement(slice_len=4), kind)
    found, drawn = chains(buffer), Counter()
    for _ in range(600):
        epoch = slices_of(buffer, 4, len(found))
        assert len(epoch) == len(found)
        drawn.update(epoch)
    for chain in found:
        own = {place: drawn[place] for place in places(chain, 4, 0, 0)}
        assert sum(own.values()) == 600
        if len(own) > 1:
            assert_drawn_as(Counter(own), Counter({place: 1 / len(own) for place in own}))
