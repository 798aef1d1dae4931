"""Runs as a table of comma-separated values."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from rl_record.loggers.event import Event, Histogram, Metrics, Rewind, RunSettings
from rl_record.loggers.logger import Logger
from rl_record.loggers.run_folder import counted, run_folder, video_file, written

FILE, HISTOGRAMS = "metrics.csv", "histograms.csv"
COLUMNS = ("step", "time", "name", "value")


class CSVLogger(Logger):
    """Writes a run as a table with the columns step, time, name and value, a row for each number.

    The file is ``log_dir/exp_name/metrics.csv``; the folder also holds ``histograms.csv``,
    ``settings.json`` and ``videos``. Going on from a checkpoint drops the rows after its step.

    Args:
        exp_name: name of the run; "/" makes folders.
        log_dir: folder of runs.
        resume: go on with the file of an older run of that name, if there is one.

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
        if not (folder / FILE).exists():
            self._append(FILE, [COLUMNS])

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
                text = json.dumps(written(event.values), indent=1)
                (self.folder / "settings.json").write_text(text, encoding="utf-8")
            elif isinstance(event, Histogram):
                self._write_histogram(event)
            else:
                video_file(self.folder, event)
        self._append(FILE, rows)

    def close(self) -> None:
        """Nothing is held between writes."""

    def _append(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        with (self.folder / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)

    def _write_histogram(self, event: Histogram) -> None:
        counts, edges = counted(event)
        if not (self.folder / HISTOGRAMS).exists():
            self._append(HISTOGRAMS, [("step", "name", "from", "to", "count")])
        ends = zip(edges, edges[1:], counts, strict=False)
        self._append(HISTOGRAMS, [(event.step, event.name, *row) for row in ends])

    def _drop_after(self, step: int) -> None:
        """Leave the rows up to a step, in a new file that takes the place of the old one."""
        for name in (FILE, HISTOGRAMS):
            path = self.folder / name
            if not path.exists():
                continue
            partial = path.with_name(f"partial-{name}")
            with (
                path.open(encoding="utf-8", newline="") as old,
                partial.open("w", newline="") as new,
            ):
                head, *rows = csv.reader(old)
                writer = csv.writer(new, lineterminator="\n")
                writer.writerow(head)
                writer.writerows(
                    row for row in rows if len(row) == len(head) and int(row[0]) <= step
                )
            partial.replace(path)
