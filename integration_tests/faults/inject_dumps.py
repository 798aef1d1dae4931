"""Exceptions in the middle of `dumps`: the folder holds the former dump or the new one, whole.

Run with `nox -s faults`, or as a script: `--seconds 100 --seed 3`, or `--once` for every line. A
dump is interrupted at one line of our sources, as Ctrl-C interrupts it. Then the folder must load
as the former dump or as the new one, in all that the next samples depend on; the buffer that was
being dumped must be as before; its next write and its next dump must work, and that dump must leave
no file of the interrupted one. Where there was no former dump the folder has none, or the new one.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from inject import options_of, sweep_as_asked
from interrupts import Interrupt, interrupting
from write_scenarios import ahead, of, of_each_storage
from written_rows import CAPACITY, OLD, problems, rows, wrong_links

from rl_replay import (
    H5StorageCheckpointer,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
)

Buffer = ReplayBuffer | ReplayBufferEnsemble


@dataclass
class Case:
    """A buffer that changed since the dump that a folder holds, if it holds one."""

    buffer: Buffer
    folder: Path


@dataclass(frozen=True)
class DumpScenario:
    """A dump of one kind of buffer.

    Attributes:
        name: What it is called in the output.
        fill: A buffer with `OLD` rows.
        root: Where folders are made.
        former: Whether the folder holds a dump already.
    """

    name: str
    fill: Callable[[], Buffer]
    root: Path
    former: bool = True
    call: Callable[[Case], None] = field(default=lambda case: case.buffer.dumps(case.folder))

    def make(self) -> Case:
        """A buffer with a dump of its former rows, and newer ones."""
        case = Case(self.fill(), Path(tempfile.mkdtemp(dir=self.root)) / "dump")
        if self.former:
            case.buffer.dumps(case.folder)
        change(case.buffer)
        return case

    def loaded(self, folder: Path) -> Any:
        """The state of another buffer that loads a folder; None if there is no dump."""
        other = self.fill()
        try:
            other.loads(folder)
        except FileNotFoundError:
            return None
        return other.state_dict()

    @cached_property
    def wanted(self) -> list[Any]:
        """The states that a folder may hold after an interrupt: the former one and the new one."""
        case = self.make()
        former = self.loaded(case.folder)
        case.buffer.dumps(case.folder)
        return [former, self.loaded(case.folder)]


def change(buffer: Buffer, first: int = OLD) -> None:
    """Write newer rows, and other priorities where a sampler has some."""
    for number, member in enumerate(members_of(buffer)):
        written = member.extend(rows(first + 100 * number, 11))
        if isinstance(member.sampler, PrioritizedSampler | PrioritizedSliceSampler):
            member.update_priority(written, torch.arange(1.0, 12.0))


def trial(scenario: DumpScenario, place: int) -> list[str]:
    """Interrupt a dump at a line, and say what is wrong afterwards."""
    case, wanted = scenario.make(), scenario.wanted
    before = case.buffer.state_dict()
    with contextlib.suppress(Interrupt), interrupting(place) as seen:
        scenario.call(case)
    lines: list[str] = []
    try:
        if not same(case.buffer.state_dict(), before):
            lines.append("the buffer that was dumped changed")
        if not any(same(scenario.loaded(case.folder), one) for one in wanted):
            lines.append("the folder holds neither the former dump nor the new one")
        change(case.buffer, first=700)
        lines += [f"after more rows: {line}" for line in wrong_rows(case.buffer)]
        case.buffer.dumps(case.folder)
        other = case.folder.with_name("other")
        case.buffer.dumps(other)
        # a load drops the links of the oldest rows to rows that are gone, so loads are compared
        if not same(scenario.loaded(case.folder), scenario.loaded(other)):
            lines.append("the next dump holds something else than one to a new folder")
        lines += left_behind(case.folder, other)
    except (Exception, AssertionError):
        lines.append(f"a check or the next dump fails: {traceback.format_exc()[-900:]}")
    # a disk is not always as fast, so the number of a line differs by a few from dump to dump
    return [f"at {seen[-1]} {line}" for line in lines]


def wrong_rows(buffer: Buffer) -> list[str]:
    """Rows of a buffer that were never written, and links that there should not be."""
    lines: list[str] = []
    for member in members_of(buffer):
        lines += problems(member[:]) + wrong_links(member, settled=True)
    buffer.sample(10)
    return lines


def left_behind(folder: Path, other: Path) -> list[str]:
    """The files in a folder of one dump that another folder of one dump has not, or lacks."""
    kinds = [sorted(kind_of(name) for name in one.iterdir()) for one in (folder, other)]
    return [] if kinds[0] == kinds[1] else [f"the folder holds {kinds[0]}, not {kinds[1]}"]


def members_of(buffer: Buffer) -> list[ReplayBuffer]:
    """The buffers of an ensemble, or the buffer alone."""
    return list(buffer) if isinstance(buffer, ReplayBufferEnsemble) else [buffer]


def kind_of(path: Path) -> str:
    """The name of a file without what is drawn for each dump."""
    return f"{path.name.partition('-')[0]}{path.suffix}"


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal in every number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor | np.ndarray) and isinstance(other, type(one)):
        alike = (one.shape, one.dtype) == (other.shape, other.dtype)
        return alike and np.array_equal(np.asarray(one), np.asarray(other))
    if hasattr(one, "to_dict") and hasattr(other, "to_dict"):
        return same(one.to_dict(), other.to_dict())
    return type(one) is type(other) and bool(one == other)


def ensemble() -> ReplayBufferEnsemble:
    """Two buffers, one with priorities and one that stores observations once."""
    return ReplayBufferEnsemble(
        of(
            lambda: LazyTensorStorage(CAPACITY),
            sampler=lambda: PrioritizedSampler(CAPACITY, 0.6, 0.4),
        )(),
        of(lambda: LazyTensorStorage(CAPACITY, lossless=True))(),
        batch_size=10,
        p=[0.3, 0.7],
    )


def in_a_file() -> ReplayBuffer:
    """A buffer whose rows a checkpointer writes to a file of its own."""
    buffer = of(lambda: LazyTensorStorage(CAPACITY))()
    buffer.storage.checkpointer = H5StorageCheckpointer()
    return buffer


def scenarios(root: Path) -> list[DumpScenario]:
    """A dump of every kind of buffer over a former one, and to a new folder."""
    slices = lambda: PrioritizedSliceSampler(CAPACITY, 0.6, 0.4, slice_len=2)  # noqa: E731
    kinds: dict[str, Callable[[], Buffer]] = {
        **of_each_storage(),
        "prioritized": of(
            lambda: LazyTensorStorage(CAPACITY),
            sampler=lambda: PrioritizedSampler(CAPACITY, 0.6, 0.4),
        ),
        "prioritized slices lossless": of(
            lambda: LazyTensorStorage(CAPACITY, lossless=True), sampler=slices
        ),
        "n-step": of(lambda: LazyTensorStorage(CAPACITY), transform=ahead),
        "ensemble": ensemble,
        "rows in an HDF5 file": in_a_file,
    }
    return [
        DumpScenario(f"dumps {kind}, {where}", fill, root, former=former)
        for kind, fill in kinds.items()
        for where, former in (("over a former dump", True), ("to a new folder", False))
    ]


if __name__ == "__main__":
    sys.exit(sweep_as_asked(options_of(__doc__), scenarios, trial))
