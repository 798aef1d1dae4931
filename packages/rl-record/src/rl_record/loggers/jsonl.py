"""Runs as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_record.loggers.event import Event, Histogram, Metrics, Rewind, RunSettings, Video
from rl_record.loggers.logger import Logger
from rl_record.loggers.run_folder import (
    counted,
    ends_within_a_line,
    run_folder,
    video_file,
    written,
)

FILE = "metrics.jsonl"


class JSONLLogger(Logger):
    """Writes a run as lines of JSON, one for each call, to ``log_dir/exp_name/metrics.jsonl``.

    `rl_record.read_run` reads it, ``python -m rl_record.plot`` draws it. Videos are files in the
    folder ``videos`` next to it. A killed process loses the calls of its last moment; the reader
    skips a line that it could not finish.

    Args:
        exp_name: name of the run; "/" makes folders, as in ``"sac/seed-0"``.
        log_dir: folder of runs.
        resume: go on with the file of an older run of that name, if there is one. Entries without a
            step are counted from 0 again, unless `load_state_dict` says how far the run was.

    Raises:
        FileExistsError: there is an older run, and `resume` is False.
        ValueError: the name leaves the folder.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with JSONLLogger("first", folder) as logger:
        ...     for step in range(3):
        ...         logger.log_scalar("loss", 1 / (step + 1), step)
        >>> from rl_record import read_run
        >>> read_run(f"{folder}/first")["loss"].values.tolist()
        [1.0, 0.5, 0.3333333333333333]
    """

    def __init__(
        self, exp_name: str, log_dir: Path | str = "runs", *, resume: bool = False
    ) -> None:
        self.folder = run_folder(log_dir, exp_name, FILE, resume=resume)
        super().__init__(exp_name, JSONLSink(self.folder))


class JSONLSink:
    """Appends events to a file, one line each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / FILE
        torn = ends_within_a_line(path)
        # without a buffer: nothing waits in it that a forked process would write again
        self.file = path.open("ab", buffering=0)
        if torn:
            self.file.write(b"\n")

    def write(self, events: Sequence[Event]) -> None:
        """Append events, and hand the lines to the operating system."""
        lines = [json.dumps(self._line(event), allow_nan=False) for event in events]
        left = memoryview(("\n".join(lines) + "\n").encode())
        while left:  # all by one call, as a rule, so that lines of two processes are not mixed
            left = left[self.file.write(left) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _line(self, event: Event) -> dict[str, Any]:
        line: dict[str, Any] = {"time": event.time}
        match event:
            case Metrics():
                line |= {"step": event.step, "metrics": written(event.values)}
                return line | ({"backwards": True} if event.is_backwards else {})
            case Histogram():
                counts, edges = counted(event)
                numbers = {"name": event.name, "counts": counts, "edges": edges}
                return line | {"step": event.step, "histogram": numbers}
            case Video():
                file = video_file(self.folder, event)
                inside = file.is_relative_to(self.folder)
                shown = file.relative_to(self.folder) if inside else file
                found = {"name": event.name, "file": shown.as_posix(), "fps": event.fps}
                return line | {"step": event.step, "video": found}
            case RunSettings():
                return line | {"settings": written(event.values)}
            case Rewind():
                return line | {"rewind": event.step}
