"""Runs read back from their lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_record.loggers.jsonl import FILE
from rl_tensordict.arguments import check_type


class Curve(NamedTuple):
    """Numbers over steps, in the order of the steps; of equal ones the later entry comes last."""

    steps: NDArray[np.int64]  # [N]
    values: NDArray[np.float64]  # [N]
    times: NDArray[np.float64]  # [N], seconds since 1970


class Run(Mapping[str, Curve]):
    """What a `JSONLLogger` wrote: a `Curve` for each name.

    Attributes:
        name: name of the folder.
        settings: what `log_hparams` was given.
        histograms: entries of `log_histogram` as they were written, each with its step.
        videos: entries of `log_video`, each with its step and file.
        num_torn: lines that a killed process could not finish, or that are damaged.
        num_backwards: entries that were logged after a later step.

    Example:
        >>> import tempfile
        >>> from rl_record import JSONLLogger
        >>> folder = tempfile.mkdtemp()
        >>> with JSONLLogger("first", folder) as logger:
        ...     logger.log_metrics({"loss": 0.5, "return": 7}, step=10)
        >>> read_run(f"{folder}/first")
        Run('first', 2 curves up to step 10: loss, return)
    """

    def __init__(self, name: str, lines: Iterator[dict[str, Any] | None]) -> None:
        check_type("lines", lines, Iterable, "the lines of a run")
        self.name = name
        self.settings: dict[str, Any] = {}
        self.histograms: list[dict[str, Any]] = []
        self.videos: list[dict[str, Any]] = []
        self.num_torn = self.num_backwards = 0
        self._entries: list[tuple[int, float, dict[str, float]]] = []  # step, time, numbers
        for line in lines:
            try:
                self._add({} if line is None else line)
            except (KeyError, TypeError, ValueError, OverflowError):
                self.num_torn += 1
            self.num_torn += line is None
        self._curves = _curves(self._entries)

    def _add(self, line: dict[str, Any]) -> None:
        """Take a line over, or raise and change nothing."""
        if "rewind" in line:
            last = index(line["rewind"])
            self._entries = [entry for entry in self._entries if entry[0] <= last]
            self.histograms = [h for h in self.histograms if h["step"] <= last]
            self.videos = [v for v in self.videos if v["step"] <= last]
        elif "metrics" in line:
            # "nan" and "inf" are written as text
            numbers = {name: float(value) for name, value in dict(line["metrics"]).items()}
            self._entries.append((index(line["step"]), float(line["time"]), numbers))
            self.num_backwards += bool(line.get("backwards", False))
        elif "histogram" in line:
            self.histograms.append({"step": index(line["step"]), **line["histogram"]})
        elif "video" in line:
            self.videos.append({"step": index(line["step"]), **line["video"]})
        elif "settings" in line:
            self.settings |= dict(line["settings"])

    def __getitem__(self, name: str) -> Curve:
        """The curve of a name."""
        if not isinstance(name, str) or name not in self._curves:
            msg = f"{name!r} was not logged: there are {sorted(self._curves)}."
            raise KeyError(msg)
        return self._curves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    def __repr__(self) -> str:
        """The curves and the last step."""
        last = max((int(curve.steps[-1]) for curve in self._curves.values()), default=-1)
        names = ", ".join(self._curves)
        return f"Run({self.name!r}, {len(self)} curves up to step {last}: {names})"


def read_run(path: Path | str) -> Run:
    """Read a run.

    Args:
        path: folder of the run, or its file.

    Returns:
        Its curves by name.

    Raises:
        FileNotFoundError: there is no run.

    Example:
        >>> try:
        ...     read_run("nowhere")
        ... except FileNotFoundError as error:
        ...     print(error)
        nowhere holds no metrics.jsonl: name the folder of a run that a JSONLLogger wrote.
    """
    check_type("path", path, str | PathLike, "the folder of a run")
    given = Path(path)
    file = given / FILE if given.is_dir() or given.suffix != ".jsonl" else given
    if not file.is_file():
        msg = f"{given} holds no {FILE}: name the folder of a run that a JSONLLogger wrote."
        raise FileNotFoundError(msg)
    with file.open(encoding="utf-8", errors="replace") as lines:
        return Run(file.resolve().parent.name, map(_parsed, lines))


def _parsed(line: str) -> dict[str, Any] | None:
    """A line; None if it is torn."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _curves(entries: list[tuple[int, float, dict[str, float]]]) -> dict[str, Curve]:
    columns: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for step, time, values in entries:
        for name, value in values.items():
            column = columns.setdefault(name, ([], [], []))
            for part, number in zip(column, (step, value, time), strict=True):
                part.append(number)
    curves = {}
    for name, (steps, numbers, times) in columns.items():
        order = np.argsort(steps, kind="stable")
        at, found, when = np.array(steps, np.int64), np.array(numbers), np.array(times)
        curves[name] = Curve(at[order], found[order], when[order])
    return curves
