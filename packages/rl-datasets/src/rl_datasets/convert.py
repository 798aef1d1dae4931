"""From the files of a dataset to rows on the disk that are opened at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rl_datasets.chunk import Chunk, chunks
from rl_datasets.episodes import Episode, EpisodeSource
from rl_datasets.paths import PathName, path_of
from rl_datasets.progress import progress_bar
from rl_datasets.read_ahead import read_ahead
from rl_datasets.report import REPORT_FILE, DatasetReport
from rl_replay import LazyMemmapStorage
from rl_tensordict import as_key
from rl_tensordict.arguments import check_type

ROWS_FOLDER = "rows"
CONVERTING = "converting"
JOURNAL_FILE = "journal.jsonl"


def convert(source: EpisodeSource, folder: PathName, dataset: str, *, bar: bool = True) -> Path:
    """Write the episodes of a source as rows of a mapped storage, each observation once.

    The rows are written to a folder of their own that gets its name when they are on the disk. A
    conversion of the same files that was killed is continued at the chunk of episodes where it
    was, unless the machine was restarted since; otherwise it restarts.

    Args:
        source: The episodes.
        folder: The dataset's folder; its rows and their report go to `folder/rows`.
        dataset: The id of the dataset, from which the ids of its trajectories are made.
        bar: Show progress, where tqdm is installed.

    Returns:
        The folder of the rows.

    Raises:
        ValueError: No step, more steps than the source said, or an error in a file.
        TypeError: An argument is of another type.
        RuntimeError: Another process converts the same dataset.

    Example:
        >>> import tempfile
        >>> from rl_datasets.testing import ListSource, toy_episodes
        >>> with tempfile.TemporaryDirectory() as root:
        ...     rows = convert(ListSource(toy_episodes([3, 2])), Path(root), "toy")
        ...     len(LazyMemmapStorage.open(rows))
        5
    """
    check_type("source", source, EpisodeSource, "a source of episodes")
    check_type("dataset", dataset, str, "the id of the dataset")
    folder = path_of(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        conversion = _Conversion(source, folder / CONVERTING, dataset)
        try:
            conversion.run(bar=bar)
        except ValueError:  # files that cannot be read to the end: nothing to resume
            shutil.rmtree(conversion.folder, ignore_errors=True)
            raise
        replace_rows(conversion.folder, folder)
    return folder / ROWS_FOLDER


def replace_rows(made: Path, folder: Path) -> None:
    """Gives the rows of a folder their name, in the place of former ones."""
    rows, former = folder / ROWS_FOLDER, folder / f"{ROWS_FOLDER}.former"
    shutil.rmtree(former, ignore_errors=True)
    if rows.exists():
        rows.replace(former)
    made.replace(rows)
    shutil.rmtree(former, ignore_errors=True)


def dataset_tag(dataset: str) -> int:
    """The high 31 bits of the ids of a dataset's trajectories, made of its name."""
    return int.from_bytes(hashlib.sha256(dataset.encode()).digest()[:4]) >> 1


class _Conversion:
    """The state of a conversion: rows written so far, and the report of them."""

    def __init__(self, source: EpisodeSource, folder: Path, dataset: str) -> None:
        self.source, self.folder = source, folder
        if source.steps < 1:
            raise ValueError(f"{dataset}: there is no step in {_shown(source)}.")
        self.tag = dataset_tag(dataset)
        self.report = DatasetReport(dataset, source.format, fingerprint=source.fingerprint())
        self.storage: LazyMemmapStorage | None = None
        self.numbers: set[int] = set()
        if not self._resume():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._journal({"boot": _boot(), "fingerprint": self.report.fingerprint})

    def run(self, *, bar: bool) -> None:
        """Writes all rows, their report, and both to the disk."""
        begin = time.perf_counter() - self.report.seconds
        source = self.source
        with progress_bar(source.steps, self.report.dataset, "steps", shown=bar) as progress:
            progress.update(self.report.steps)
            with closing(read_ahead(chunks(source.episodes(self.report.episodes)))) as found:
                for group, chunk in found:
                    self._write(group, chunk)
                    progress.update(0 if chunk is None else len(chunk))
        if self.storage is None:
            raise ValueError(f"{self.report.dataset}: there is no step in {_shown(source)}.")
        self.storage.flush()
        report = self.report
        # counted in the whole, so that a conversion that was continued says the same
        span = range(min(self.numbers), max(self.numbers) + 1)
        report.gaps = len(span) - len(self.numbers)
        report.duplicates = report.episodes - len(self.numbers)
        report.seconds = time.perf_counter() - begin
        report.assumptions, report.lossy = list(source.assumptions), dict(source.lossy)
        report.left_out, report.metadata = dict(source.left_out), dict(source.metadata)
        report.save(self.folder)
        (self.folder / JOURNAL_FILE).unlink()
        for path in (self.folder / REPORT_FILE, self.folder):
            _to_disk(path)

    def _write(self, group: list[Episode], chunk: Chunk | None) -> None:
        report = self.report
        report.episodes += len(group)
        self.numbers.update(episode.number for episode in group)
        if chunk is None:
            return
        rows = chunk.rows((self.tag << 32) + report.trajectories)
        if report.steps + len(chunk) > self.source.steps:
            raise ValueError(
                f"{group[-1].place}: more than the {self.source.steps} steps that "
                f"{_shown(self.source)} should have."
            )
        chunk.take_into(report)
        # first, so that the rows of the storage say which line is the last that holds
        self._journal({"report": report.to_dict(), "numbers": [e.number for e in group]})
        if self.storage is None:
            once = [as_key(key) for key in chunk.observations]
            self.storage = LazyMemmapStorage(
                self.source.steps, scratch_dir=self.folder, lossless=once or False
            )
            self.storage.keep_index(True)
        self.storage.extend(rows)

    def _journal(self, line: dict[str, Any]) -> None:
        with (self.folder / JOURNAL_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _resume(self) -> bool:
        """Takes up a conversion of the same files, if there is one whose rows are whole."""
        try:
            text = (self.folder / JOURNAL_FILE).read_text(encoding="utf-8")
            head, *lines = _whole_lines(text)
            fingerprint = json.loads(json.dumps(self.report.fingerprint))
            if head != {"boot": _boot(), "fingerprint": fingerprint} or head["boot"] is None:
                return False
            storage = LazyMemmapStorage.open(self.folder)
            written = len(storage)
            if storage.max_size != self.source.steps:
                return False
        except (OSError, ValueError, RuntimeError, KeyError):
            return False
        numbers: set[int] = set()
        for line in lines:
            numbers.update(line["numbers"])
            if line["report"]["steps"] == written and written:
                self.report = DatasetReport.of_dict(line["report"])
                self.storage, self.numbers = storage, numbers
                return True
        return False


def _whole_lines(text: str) -> list[Any]:
    """The lines of a journal, without one that was not written to its end."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Refuses to convert what another process converts; its lock is gone when it ends."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    with (folder / "converting.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another process converts the dataset in {folder}: wait until it is ready."
            ) from None
        yield


def _boot() -> str | None:
    """What differs after each start of the machine, which may lose mapped rows; None if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shown(source: EpisodeSource) -> str:
    files = [str(path) for path in source.files]
    return files[0] if len(files) == 1 else f"{len(files)} files such as {files[:1]}"
