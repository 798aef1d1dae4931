"""What a conversion found in a dataset: counts, ends, ranges, and what was assumed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_datasets.paths import PathName, path_of
from rl_tensordict.arguments import check_type
from rl_tensordict.types import Array, Flags, Ints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT_FILE = "report.json"
_ENDS = {"terminated": "#c0392b", "truncated": "#e67e22", "cut": "#7f8c8d"}
_BLUE = "#2980b9"
SHOWN = 256  # trajectories whose lengths and returns are kept, at most


@dataclass
class ColumnReport:
    """A column of the rows: its form, and the range of its values."""

    dtype: str
    shape: list[int]  # of one row
    low: float = math.inf  # The smallest value that is a number
    high: float = -math.inf  # The largest
    not_finite: int = 0  # Values that are infinite or no number

    @classmethod
    def of(cls, rows: Array) -> ColumnReport:
        """The form of some rows, without their values."""
        return cls(str(rows.dtype), list(rows.shape[1:]))

    def take(self, rows: Array) -> None:
        """Counts more rows."""
        if not rows.size:
            return
        low, high = rows.min(), rows.max()
        if rows.dtype.kind == "f" and not (math.isfinite(low) and math.isfinite(high)):
            finite = rows[np.isfinite(rows)]
            self.not_finite += rows.size - finite.size
            if not finite.size:
                return
            low, high = finite.min(), finite.max()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))


@dataclass
class DatasetReport:
    """What is in a converted dataset, and what its files could not tell.

    It is printed by the first conversion and kept with the rows.

    Attributes:
        dataset: The id of the dataset.
        format: The format of its files.
        steps: Transitions.
        episodes: Episodes of the files.
        trajectories: Runs of rows that continue each other: more than episodes where a file marks
            ends inside one.
        terminated, truncated, cut: How trajectories end: by the task, by a limit, or because the
            file ends them and does not say why.
        next_missing: Rows whose next observation is not in the files.
        shortest, longest: Steps of the shortest and the longest trajectory.
        lowest_return, mean_return, highest_return: Sums of rewards of trajectories.
        lengths, returns: Those of every `kept_every`-th trajectory, at most 256, for pictures.
        gaps: Numbers of episodes that the files leave out.
        duplicates: Numbers of episodes that come more than once.
        columns: Every column, its dtype, shape and range.
        lossy: Columns that are not what the environment gave, with the reason.
        left_out: Columns that no tensor can hold, with the reason.
        assumptions: What was assumed where the files do not say.
        metadata: What else the files say of the dataset.
        seconds: How long the conversion took.
        fingerprint: Names, sizes and times of the files.

    Example:
        >>> report = DatasetReport("demo/one-v0", "minari hdf5", steps=30, episodes=2, seconds=0.1)
        >>> report.rows_per_second
        300.0
        >>> print(str(report).splitlines()[0])
        demo/one-v0 (minari hdf5): 30 steps, 2 episodes
    """

    dataset: str
    format: str
    steps: int = 0
    episodes: int = 0
    trajectories: int = 0
    terminated: int = 0
    truncated: int = 0
    cut: int = 0
    next_missing: int = 0
    shortest: int = 0
    longest: int = 0
    lowest_return: float = math.inf
    mean_return: float = 0.0
    highest_return: float = -math.inf
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    kept_every: int = 1
    gaps: int = 0
    duplicates: int = 0
    columns: dict[str, ColumnReport] = field(default_factory=dict)
    lossy: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Rows that the conversion wrote in a second."""
        return self.steps / self.seconds if self.seconds else 0.0

    def take_trajectories(self, lengths: Array, returns: Array) -> None:
        """Counts whole trajectories."""
        for name, given in (("lengths", lengths), ("returns", returns)):
            check_type(name, given, np.ndarray, "an array, a number for each trajectory")
        if len(lengths) != len(returns):
            raise ValueError(
                f"lengths and returns: expected one of each for every trajectory, got "
                f"{len(lengths)} and {len(returns)}."
            )
        if not len(lengths):
            return
        shortest, longest = int(lengths.min()), int(lengths.max())
        self.shortest = min(self.shortest or shortest, shortest)
        self.longest = max(self.longest, longest)
        count = self.trajectories + len(lengths)
        self.mean_return += (float(returns.sum()) - len(returns) * self.mean_return) / count
        self.lowest_return = min(self.lowest_return, float(returns.min()))
        self.highest_return = max(self.highest_return, float(returns.max()))
        first = -self.trajectories % self.kept_every  # those whose number is a multiple
        self.lengths += lengths[first :: self.kept_every].tolist()
        self.returns += returns[first :: self.kept_every].tolist()
        while len(self.lengths) > SHOWN:
            self.lengths, self.returns = self.lengths[::2], self.returns[::2]
            self.kept_every *= 2
        self.trajectories = count

    def plot(self) -> Figure:
        """Draw how trajectories end, their lengths and returns, and the ranges of all columns.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError(
                "matplotlib is not installed: pip install 'rl-datasets[plot]', or print the report."
            ) from error
        rows = 1.2 + 0.28 * len(self.columns)  # inches
        figure = Figure(figsize=(10, 3 + rows), layout="constrained")
        axes = figure.subplot_mosaic("ABC;DDD", height_ratios=[3, rows])
        ends, lengths, returns, ranges = (axes[place] for place in "ABCD")
        _draw_ends(ends, self)
        lengths.hist(self.lengths, bins=30, color=_BLUE)
        lengths.set(xlabel="steps of a trajectory", ylabel="trajectories")
        returns.hist(self.returns, bins=30, color=_BLUE)
        returns.set(xlabel="return of a trajectory", ylabel="trajectories")
        if self.kept_every > 1:
            lengths.set_title(f"one of {self.kept_every} is counted", fontsize="small")
        _draw_ranges(ranges, self)
        figure.suptitle(str(self).split("\n", 1)[0])
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        # a conversion asks for it with each chunk, and `asdict` copies number by number
        plain = vars(self) | {"columns": {name: vars(one) for name, one in self.columns.items()}}
        return {
            name: [*value] if isinstance(value, list) else deepcopy(value)
            for name, value in plain.items()
        }

    @classmethod
    def of_dict(cls, plain: Mapping[str, Any]) -> DatasetReport:
        """The report that `to_dict` wrote."""
        check_type("plain", plain, Mapping, "what to_dict returned")
        if missing := {"dataset", "format", "columns"} - set(plain):
            raise KeyError(f"plain: {sorted(missing)} are missing, which to_dict writes.")
        columns = {name: ColumnReport(**column) for name, column in plain["columns"].items()}
        return cls(**{**plain, "columns": columns})

    def save(self, folder: PathName) -> None:
        """Writes the report into a folder."""
        folder = path_of(folder)
        text = json.dumps(self.to_dict(), indent=1)
        (folder / REPORT_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: PathName) -> DatasetReport:
        """Reads the report of a folder."""
        path = path_of(folder) / REPORT_FILE
        try:
            return cls.of_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is no report of a conversion: {error}. Convert the dataset anew with "
                'download="force".'
            ) from error

    def __str__(self) -> str:
        lines = [
            f"{self.dataset} ({self.format}): {self.steps} steps, {self.episodes} episodes",
            f"  ends: {self.terminated} terminated, {self.truncated} truncated, {self.cut} cut",
            f"  next observation missing: {self.next_missing} rows",
            f"  steps of a trajectory: {self.shortest} to {self.longest}; returns "
            f"{self.lowest_return:.6g} to {self.highest_return:.6g}, mean {self.mean_return:.6g}",
        ]
        if self.gaps or self.duplicates:
            lines.append(f"  episode numbers: {self.gaps} left out, {self.duplicates} repeated")
        for name, column in self.columns.items():
            bad = f", {column.not_finite} not finite" if column.not_finite else ""
            form = f"{column.dtype} {column.shape}"
            lines.append(f"  {name}: {form}, {column.low:.6g} to {column.high:.6g}{bad}")
        lines += [f"  lossy: {name}: {why}" for name, why in self.lossy.items()]
        lines += [f"  left out: {name}: {why}" for name, why in self.left_out.items()]
        lines += [f"  assumed: {one}" for one in self.assumptions]
        lines.append(f"  {self.rows_per_second:,.0f} rows a second")
        return "\n".join(lines)

    __repr__ = __str__


def count_rows(
    report: DatasetReport,
    starts: Flags,
    terminated: Array,
    truncated: Array,
    rewards: Array | None,
) -> Ints:
    """Counts rows, `[N]` or `[N, 1]` each, of which some begin trajectories; the last of each."""
    count, begins = len(starts), np.flatnonzero(starts)
    last = np.append(begins[1:], count) - 1
    ended, stopped = (flag.reshape(count, -1)[last, 0] for flag in (terminated, truncated))
    report.steps += count
    report.terminated += int(ended.sum())
    report.truncated += int((stopped & ~ended).sum())
    report.cut += int((~(stopped | ended)).sum())
    gained = np.zeros(count) if rewards is None else rewards.reshape(count, -1)[:, 0]
    returns = np.add.reduceat(gained, begins, dtype=np.float64)
    report.take_trajectories(last - begins + 1, returns)
    return last


def _draw_ends(axes: Any, report: DatasetReport) -> None:
    counts = {name: getattr(report, name) for name in _ENDS} | {"next missing": report.next_missing}
    colours = [*_ENDS.values(), "#8e44ad"]
    bars = axes.barh(list(counts), list(counts.values()), color=colours)
    axes.bar_label(bars, padding=2)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("trajectories; rows where next is missing")


def _draw_ranges(axes: Any, report: DatasetReport) -> None:
    """A bar from the lowest to the highest value of each column, on a scale that has zero."""
    for place, column in enumerate(report.columns.values()):
        if column.low <= column.high:
            axes.plot([column.low, column.high], [place] * 2, "|-", color=_BLUE, lw=3)
        if column.not_finite:
            axes.annotate(
                f"{column.not_finite} not finite",
                (0, place),
                xytext=(0, 4),
                textcoords="offset points",
                color="#c0392b",
                fontsize="small",
            )
    axes.set_yticks(range(len(report.columns)), list(report.columns))
    axes.invert_yaxis()
    axes.set_xscale("symlog")
    axes.set_xlabel("lowest to highest value")
