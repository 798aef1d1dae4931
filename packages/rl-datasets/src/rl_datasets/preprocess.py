"""Rows of a dataset, changed by a function in worker processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_datasets.convert import CONVERTING, ROWS_FOLDER, replace_rows
from rl_datasets.episodes import key_text
from rl_datasets.progress import progress_bar
from rl_datasets.report import ColumnReport, DatasetReport, count_rows
from rl_layout import keys
from rl_replay import LazyMemmapStorage
from rl_tensordict import as_tuple, draw_seed, find
from rl_tensordict.arguments import check_choice, check_type, check_whole
from rl_tensordict.types import Flags
from rl_workers import WorkerPool

_CALL_ROWS = 16_384
_LONGEST_S = 86_400.0  # a call may take as long as it takes


@dataclass(frozen=True)
class Preprocess:
    """What is to be done: a function, and the rows that it is called with."""

    fn: Callable[[TensorDictBase], Any]
    rows: Path  # The folder of the storage
    by_trajectory: bool
    count: int  # How many rows, the first ones
    chunk_rows: int
    seed: int | None = None  # Of what the function draws of torch's randomness; None as it comes
    threads: int | None = None  # Of torch in a process; None as they are

    @classmethod
    def of(  # noqa: PLR0913 - independent options of `preprocess`
        cls,
        fn: Callable[[TensorDictBase], Any],
        rows: Path,
        count: int,
        *,
        dim: int,
        by: str,
        chunksize: int | None,
        num_chunks: int | None,
        generator: torch.Generator | None,
        threads: int | None,
    ) -> Preprocess:
        """What a caller asks for, checked."""
        check_type("fn", fn, Callable, "a function of rows, which returns rows")
        check_choice("by", by, ["rows", "trajectory"])
        if dim != 0:
            raise ValueError(f"the rows of a dataset have one dimension, 0: got dim={dim}.")
        if chunksize is not None and num_chunks is not None:
            raise ValueError("chunksize and num_chunks say the same: give one of them.")
        for name, number in (("chunksize", chunksize), ("num_chunks", num_chunks)):
            if number is not None:
                check_whole(name, number, 1)
        if num_chunks is not None:
            chunksize = max(1, -(-count // num_chunks))
        seed = None
        if generator is not None:
            seed = draw_seed(2**40, generator)
        return cls(fn, rows, by == "trajectory", count, chunksize or _CALL_ROWS, seed, threads)

    def spans(self) -> list[tuple[int, int]]:
        """The rows of each call: whole trajectories."""
        storage = LazyMemmapStorage.open(self.rows)
        ids = storage.read_keys(torch.arange(self.count, device="cpu"), [keys.TRAJ_IDS])
        starts = np.flatnonzero(_starts(ids))
        if self.by_trajectory:
            bounds = starts
        else:
            wanted = np.arange(0, self.count, self.chunk_rows)
            bounds = np.unique(starts[np.searchsorted(starts, wanted, side="right") - 1])
        return list(zip(bounds.tolist(), [*bounds[1:].tolist(), self.count], strict=True))

    def __call__(self, span: tuple[int, int, str]) -> int:
        """Writes what the function makes of some rows to a folder; how many rows that are."""
        begin, end, folder = span
        given = LazyMemmapStorage.open(self.rows).read(torch.arange(begin, end, device="cpu"))
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        with torch.random.fork_rng([], enabled=self.seed is not None):
            if self.seed is not None:
                torch.manual_seed(self.seed + begin)  # the same in any process
            made = self.fn(given)
        if made is None and self.by_trajectory:
            return 0
        if not isinstance(made, TensorDictBase):
            raise TypeError(
                f"preprocess wants a function that returns a tensordict, got {type(made).__name__}."
            )
        if not self.by_trajectory and len(made) != end - begin:
            raise ValueError(
                f"the function made {len(made)} rows of {end - begin}: return as many, or use "
                'by="trajectory".'
            )
        if len(made):
            made.to_tensordict().contiguous().memmap_(folder)
        return len(made)


@dataclass(frozen=True)
class Executor:
    """Who calls the function: this process, workers, or somebody's pool."""

    workers: int = 0
    pool: Any = None
    start_method: Any = None

    def map(self, work: Preprocess, spans: Sequence[tuple[int, int, str]]) -> Iterator[int]:
        """The results of all calls, in order."""
        if self.pool is not None:
            yield from self.pool.imap(work, spans)
        elif self.workers:
            yield from self._in_workers(work, spans)
        else:
            yield from map(work, spans)

    def _in_workers(self, work: Preprocess, spans: Sequence[tuple[int, int, str]]) -> Iterator[int]:
        """Calls in worker processes that take turns, so that results come in order."""
        workers = min(self.workers, len(spans))
        if work.seed is None:  # forks have the generator of this process, and would all draw alike
            work = replace(work, seed=draw_seed(2**40))
        options = {"timeout_s": _LONGEST_S, "start_method": self.start_method}
        with WorkerPool([lambda: work] * workers, **options) as pool:
            for number, span in enumerate(spans):
                index = number % workers
                if number >= workers:
                    yield pool.receive(index)
                pool.begin(index, "__call__", span)
            for number in range(len(spans) - workers, len(spans)):
                yield pool.receive(number % workers)


def preprocessed(
    work: Preprocess, report: DatasetReport, folder: Path, processes: Executor, *, bar: bool
) -> tuple[DatasetReport, LazyMemmapStorage]:
    """Does the work, writes the rows to a folder, and returns their report and storage."""
    begin = time.perf_counter()
    making = folder / CONVERTING
    shutil.rmtree(making, ignore_errors=True)
    parts, rows = making / "parts", making / ROWS_FOLDER
    spans = [(*span, str(parts / str(number))) for number, span in enumerate(work.spans())]
    parts.mkdir(parents=True)
    with progress_bar(len(spans), "preprocess", "calls", shown=bar) as progress:
        made_of = []
        for span, count in zip(spans, processes.map(work, spans), strict=True):
            if count:
                made_of.append(Path(span[2]))
            progress.update(1)
    if not made_of:
        raise ValueError("the function left no row.")
    made = _written(made_of, rows, report)
    made.seconds = time.perf_counter() - begin
    made.save(rows)
    replace_rows(rows, folder)
    shutil.rmtree(making)
    return made, LazyMemmapStorage.open(folder / ROWS_FOLDER)


def _written(parts: Sequence[Path], rows: Path, former: DatasetReport) -> DatasetReport:
    """Writes the results of all calls as rows; the report of them."""
    made = DatasetReport(
        former.dataset,
        former.format,
        episodes=former.episodes,
        assumptions=former.assumptions,
        lossy=former.lossy,
        left_out=former.left_out,
        metadata=former.metadata,
        fingerprint=former.fingerprint,
    )
    chunks = [TensorDict.load_memmap(part) for part in parts]  # mapped, not read
    storage = LazyMemmapStorage(
        sum(map(len, chunks)), scratch_dir=rows, lossless=_is_twice(chunks[0])
    )
    storage.keep_index(True)
    for chunk in chunks:
        storage.extend(chunk)
        _count_into(made, chunk)
    storage.flush()
    return made


def _is_twice(rows: TensorDictBase) -> bool:
    """Whether an observation is stored before and after a step."""
    names = {as_tuple(key) for key in rows.keys(True, True)}
    once = {name[1:] for name in names if name[0] == keys.NEXT}
    return bool(once & names)


def _starts(rows: TensorDictBase) -> Flags:
    """Which rows are the first of a trajectory, as their ids say."""
    ids = rows[keys.TRAJ_IDS].numpy()
    return np.concatenate([[True], ids[1:] != ids[:-1]])


def _count_into(report: DatasetReport, rows: TensorDictBase) -> None:
    """Counts rows as the report of a conversion does, by their markers."""
    rewards = find(rows, keys.NEXT_REWARD)
    count_rows(
        report,
        _starts(rows),
        rows[keys.NEXT_TERMINATED].numpy(),
        rows[keys.NEXT_TRUNCATED].numpy(),
        None if rewards is None else rewards.double().numpy(),
    )
    if (missing := find(rows, keys.NEXT_MISSING)) is not None:
        report.next_missing += int(missing.sum())
    for key, leaf in rows.items(True, True):
        path = as_tuple(key)
        if path[0] != keys.COLLECTOR and isinstance(leaf, torch.Tensor):
            column = leaf.numpy()
            report.columns.setdefault(key_text(path), ColumnReport.of(column)).take(column)
