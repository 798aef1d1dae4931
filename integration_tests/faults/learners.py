"""Learners that draw by priority and are killed along with the writers of their buffer.

Afterwards rows must be drawn as often as the probabilities say that are told of them, these must be
those of the priorities that are kept, and an update of rows that were overwritten must be dropped
and counted, row by row.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
)

CAPACITY, LANES, BATCH = 400, 4, 24
ALPHA, EPS = 0.7, 1e-8
WRITERS, LEARNERS = 2, 2
DRAWS = 60  # batches that are counted
LONGEST = 0.06  # seconds that a process lives at most
KINDS: dict[str, Callable[[], PrioritizedSampler]] = {
    "rows": lambda: PrioritizedSampler(CAPACITY, ALPHA, 0.5, eps=EPS, probabilities=True),
    "slices": lambda: PrioritizedSliceSampler(CAPACITY, ALPHA, 0.5, eps=EPS, slice_len=3),
    "short slices": lambda: PrioritizedSliceSampler(
        CAPACITY, ALPHA, 0.5, eps=EPS, slice_len=3, strict_length=False
    ),
}


class Learners:
    """Kills writers and learners of shared buffers."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._buffers = {kind: _buffer(make()) for kind, make in KINDS.items()}
        self._killed = dict.fromkeys(KINDS, 0)  # learners whose last update may be half there
        self._next = 0

    def trial(self) -> list[str]:
        """Kill two writers and two learners, one after the other; what is wrong, a line each."""
        kind = self._generator.choice(list(KINDS))
        buffer, self._next = self._buffers[kind], self._next + 1_000_000
        ids = [self._next + 500_000 * number for number in range(WRITERS)]
        seeds = self._generator.sample(range(1 << 30), LEARNERS)
        lines = self._kill(
            [partial(_write, buffer, first) for first in ids]
            + [partial(_learn, buffer, seed) for seed in seeds]
        )
        self._killed[kind] += LEARNERS
        lines += self._check(kind, buffer)
        buffer.storage.ring.release_lane()  # type: ignore[attr-defined]  # it is shared
        return [f"{kind}: {line}" for line in lines]

    def _kill(self, works: list[Callable[[], None]]) -> list[str]:
        children = [_forked(work) for work in works]
        self._generator.shuffle(children)
        for child in children:
            time.sleep(self._generator.uniform(0, LONGEST / 2))
            os.kill(child, signal.SIGKILL)
        ends = [os.waitpid(child, 0)[1] for child in children]
        return [f"a process ended by itself: {end}" for end in ends if not os.WIFSIGNALED(end)]

    def _check(self, kind: str, buffer: TensorDictReplayBuffer) -> list[str]:
        for _ in range(8):  # sums that a killed process left out are computed again
            buffer.sample()
        told, counts = _counted(buffer)
        kept, live = _kept(buffer)
        weights = (kept.double().numpy() + EPS) ** ALPHA
        lines, total = [], sum(told.values())
        if not set(told) <= set(live):
            lines.append(f"rows {sorted(set(told) - set(live))} are drawn, and are gone")
        if kind == "rows":  # where slices are drawn, only some rows can be the first ones
            shares = dict(zip(live, weights / weights.sum(), strict=True))
            other = [row for row in told if abs(told[row] / shares[row] - 1) > 0.05]
            if len(other) > BATCH * self._killed[kind]:
                lines.append(f"{len(other)} rows have other weights than their priorities say")
        if not 0 < total < 1 + 1e-6:
            lines.append(f"the probabilities of rows sum up to {total}")
        wanted = {row: share * counts.total() for row, share in told.items()}
        known = [row for row, count in wanted.items() if count > 1]
        square = sum((counts[row] - wanted[row]) ** 2 / wanted[row] for row in known) / len(known)
        if square > 1 + 6 * np.sqrt(2 / len(known)):  # strata only lower it
            lines.append(f"draws differ from the probabilities: chi square {square:.2f} of 1")
        return lines + _dropped(buffer)


def _buffer(sampler: PrioritizedSampler) -> TensorDictReplayBuffer:
    sampler.probabilities = True
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, lanes=LANES),
        sampler=sampler,
        batch_size=BATCH,
        shared=True,
    )
    buffer.extend(trajectories([6, 5]))
    buffer.update_tensordict_priority(buffer.sample().set("td_error", torch.ones(BATCH)))
    buffer.storage.ring.release_lane()  # type: ignore[attr-defined]
    return buffer


def _forked(work: Callable[[], None]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forked while threads run
        child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # those of OpenMP are not in a forked child
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def _write(buffer: TensorDictReplayBuffer, first_id: int) -> None:
    while True:
        buffer.extend(trajectories([4, 7, 2], first_id=first_id))
        first_id += 10


def _learn(buffer: TensorDictReplayBuffer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    buffer.set_rng(generator)
    ring = buffer.storage.ring
    while True:
        sample = buffer.sample()
        weight, rows = sample["priority_weight"], sample["collector", "row"]
        if not ((weight > 0) & (weight <= 1)).all():
            raise ValueError(f"weights out of range: {weight}")
        sample["td_error"] = torch.rand(len(sample), generator=generator)
        before, least = _stale(buffer), int((~ring.is_live(rows)).sum())
        buffer.update_tensordict_priority(sample)
        dropped, most = _stale(buffer) - before, int((~ring.is_live(rows)).sum())
        if not least <= dropped <= most:
            raise ValueError(f"{dropped} updates dropped, of {least} to {most} overwritten rows")


def _stale(buffer: TensorDictReplayBuffer) -> int:
    return int(buffer.stats()["stale_priorities"])


def _counted(buffer: TensorDictReplayBuffer) -> tuple[dict[int, float], Counter[int]]:
    """The probability that is told of each row that is drawn, and how often that is."""
    told: dict[int, float] = {}
    counts: Counter[int] = Counter()
    for _ in range(DRAWS):
        sample = buffer.sample()
        rows, shares = sample["collector", "row"].numpy(), sample["probability"].tolist()
        slices = sample.get(("collector", "slice_ids"), None)
        firsts = range(len(rows)) if slices is None else np.flatnonzero(np.diff(slices, prepend=-1))
        for first in firsts:
            told[int(rows[first])] = shares[first]
            counts[int(rows[first])] += 1
    return told, counts


def _kept(buffer: TensorDictReplayBuffer) -> tuple[torch.Tensor, list[int]]:
    """The priorities of the rows that stand, and their row ids."""
    window = buffer.storage.ring.window()
    state = buffer.sampler.state_dict()
    return state["priorities"], window.numbers(torch.arange(len(window))).tolist()


def _dropped(buffer: TensorDictReplayBuffer) -> list[str]:
    """Updates of overwritten rows are dropped, and no others."""
    sample = buffer.sample()
    buffer.extend(trajectories([9, 8, 7]))
    gone = int((~buffer.storage.ring.is_live(sample["collector", "row"])).sum())
    before = _stale(buffer)
    buffer.update_tensordict_priority(sample.set("td_error", torch.rand(len(sample))))
    dropped = _stale(buffer) - before
    return [] if dropped == gone else [f"{dropped} updates dropped, of {gone} overwritten rows"]
