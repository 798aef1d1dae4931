"""Runs as a table of comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

from rl_record.loggers.event import Event, Histogram, Metrics, Rewind, RunSettings
from rl_record.loggers.logger import Logger
from rl_record.loggers.run_folder import (
    counted,
    ends_within_a_line,
    run_folder,
    video_file,
    written,
)

FILE, HISTOGRAMS = "metrics.csv", "histograms.csv"
HEADS = {
    FILE: ["step", "time", "name", "value"],
    HISTOGRAMS: ["step", "name", "from", "to", "count"],
}


class CSVLogger(Logger):
    """Writes a run as a table with the columns step, time, name and value, a row for each number.

    The file is ``log_dir/exp_name/metrics.csv``; the folder also holds ``histograms.csv``,
    ``settings.json`` and ``videos``. Going on from a checkpoint drops the rows after its step.

    Args:
        exp_name: name of the run; "/" makes folders.
        log_dir: folder of runs.
        resume: go on with the file of an older run of that name, if there is one. Entries without a
            step are counted from 0 again, unless `load_state_dict` says how far the run was.

    Raises:
        FileExistsError: there is an older run, and `resume` is False.
        ValueError: the name leaves the folder.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> with CSVLogger("first", folder) as logger:
        ...     logger.log_metrics({"loss": 0.5, "return": 200}, step=7)
        >>> (folder / "first" / "metrics.csv").read_text().splitlines()[0]
        'step,time,name,value'
    """

    def __init__(
        self, exp_name: str, log_dir: Path | str = "runs", *, resume: bool = False
    ) -> None:
        self.folder = run_folder(log_dir, exp_name, FILE, resume=resume)
        super().__init__(exp_name, CSVSink(self.folder))


class CSVSink:
    """Appends rows to tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (FILE, HISTOGRAMS):
            if ends_within_a_line(folder / name):  # of a killed process
                self._keep(name, lambda _: True)
        if not (folder / FILE).exists() or not (folder / FILE).stat().st_size:
            self._append(FILE, [HEADS[FILE]])

    def write(self, events: Sequence[Event]) -> None:
        """Append the rows of events."""
        rows: list[Sequence[object]] = []
        for event in events:
            if isinstance(event, Metrics):
                rows += [(event.step, event.time, n, v) for n, v in event.values.items()]
                continue
            if isinstance(event, Rewind):
                self._append(FILE, rows)
                rows = []
                self._drop_after(event.step)
            elif isinstance(event, RunSettings):
                self._write_settings(event)
            elif isinstance(event, Histogram):
                self._write_histogram(event)
            else:
                video_file(self.folder, event)
        self._append(FILE, rows)

    def close(self) -> None:
        """Nothing is held between writes."""

    def _append(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        with (self.folder / name).open("a", encoding="utf-8", newline="") as file:
            write_rows(file, rows)

    def _write_settings(self, event: RunSettings) -> None:
        """Write settings in addition to those before."""
        path = self.folder / "settings.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        text = json.dumps(before | written(event.values), indent=1)
        partial = path.with_name("partial-settings.json")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)

    def _write_histogram(self, event: Histogram) -> None:
        counts, edges = counted(event)
        if not (self.folder / HISTOGRAMS).exists():
            self._append(HISTOGRAMS, [HEADS[HISTOGRAMS]])
        ends = zip(edges, edges[1:], counts, strict=False)
        self._append(HISTOGRAMS, [(event.step, event.name, *row) for row in ends])

    def _drop_after(self, step: int) -> None:
        """Leave the rows up to a step."""
        for name in (FILE, HISTOGRAMS):
            if (self.folder / name).exists():
                self._keep(name, lambda row: row[0].lstrip("-").isdecimal() and int(row[0]) <= step)

    def _keep(self, name: str, is_kept: Callable[[list[str]], bool]) -> None:
        """Leave some of the whole rows, in a new file that takes the place of the old one."""
        path = self.folder / name
        partial = path.with_name(f"partial-{name}")
        with path.open("rb") as torn:
            whole = torn.read()
        text = whole[: whole.rfind(b"\n") + 1].decode("utf-8", errors="replace")
        head, *rows = csv.reader(io.StringIO(text, newline="")) if text else [HEADS[name]]
        with partial.open("w", encoding="utf-8", newline="") as new:
            kept = (row for row in rows if len(row) == len(head) and is_kept(row))
            write_rows(new, [head, *kept])
        partial.replace(path)


def write_rows(file: TextIO, rows: Iterable[Sequence[object]]) -> None:
    """Write rows such that a table's reader finds the same."""
    plain = csv.writer(file, lineterminator="\n")
    quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:  # older csv modules leave a "\r" bare, at which readers end a row
        has_returns = any("\r" in cell for cell in row if isinstance(cell, str))
        (quoted if has_returns else plain).writerow(row)
