"""The layout of a batch as a picture: one bar per trajectory along time."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from rl_layout import keys
from rl_layout.checks.check_layout import check_layout
from rl_layout.checks.report import LayoutReport
from rl_layout.segments.end_kind import EndKind
from rl_layout.segments.segments import Segments
from rl_tensordict.arguments import check_type, check_whole, shown

COLOURS = {EndKind.TERMINATED: "#c0392b", EndKind.TRUNCATED: "#e67e22", EndKind.CUT: "#7f8c8d"}
ENDS = {EndKind.TERMINATED: "X", EndKind.TRUNCATED: "|", EndKind.CUT: ">"}
MARKS = {"error": "!", "note": "?"}


@dataclass(frozen=True)
class Bar:
    """One trajectory of the picture.

    Attributes:
        label: text next to it.
        first: step at which it begins.
        length: its number of steps.
        kind: how it ends.
        is_start: whether its first row is marked as a start.
        marks: step and severity of the findings on it.

    Example:
        >>> Bar("id 7", 0, 3, EndKind.CUT, True, ()).length
        3
    """

    label: str
    first: int
    length: int
    kind: EndKind
    is_start: bool
    marks: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class LayoutDrawing:
    """A drawn layout: print it for text, `plot` or `save` it for a picture.

    Notebooks show it as a picture where matplotlib is installed (``pip install rl-layout[draw]``).

    Attributes:
        bars: one per trajectory drawn, in order of rows.
        left_out: number of trajectories after the last one drawn.
        report: what `check_layout` found.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> draw_layout(trajectories([2, 3])).bars[1].length
        3
    """

    bars: tuple[Bar, ...]
    left_out: int
    report: LayoutReport

    def __str__(self) -> str:
        width = max(len(bar.label) for bar in self.bars)
        # steps for each of at most 80 characters
        scale = max(1.0, max(bar.first + bar.length for bar in self.bars) / 80)
        lines = [f"{bar.label.rjust(width)}  {_text(bar, scale)}" for bar in self.bars]
        lines += [f"... and {self.left_out} more"] * bool(self.left_out)
        legend = "[ start  X terminated  | truncated  > cut  ! error  ? note"
        return "\n".join([*lines, legend])

    def plot(self, ax: Any = None) -> Any:
        """Draw the bars with matplotlib.

        Args:
            ax: the axes to draw on; new ones by default.

        Returns:
            The axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> drawing = draw_layout(trajectories([2, 3]))
            >>> axes = drawing.plot()  # doctest: +SKIP
        """
        if ax is not None and not callable(getattr(ax, "barh", None)):
            msg = f"ax: expected axes of matplotlib, got {shown(ax)}. Pass plt.gca(), or nothing."
            raise TypeError(msg)
        ax = _axes(len(self.bars)) if ax is None else ax
        for place, bar in enumerate(self.bars):
            end = bar.first + bar.length
            ax.barh(place, bar.length, left=bar.first, height=0.6, color="#2980b9", alpha=0.6)
            # the end of the bar, in the colour of its kind
            ax.barh(place, 0.35, left=end - 0.35, height=0.8, color=COLOURS[bar.kind])
            if bar.is_start:
                ax.plot([bar.first] * 2, [place - 0.4, place + 0.4], color="#27ae60", lw=2)
            for step, severity in bar.marks:
                ax.text(step + 0.5, place, MARKS[severity], ha="center", va="center", weight="bold")
        ax.set_yticks(range(len(self.bars)), [bar.label for bar in self.bars])
        ax.invert_yaxis()
        ax.set_xlabel("step of the trajectory")
        ax.set_title(str(self.report).split("\n", 1)[0])
        for kind, colour in COLOURS.items():
            ax.barh(0, 0, color=colour, label=kind.name.lower())
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return ax

    def save(self, path: str | Path) -> None:
        """Write the drawing to a file.

        Args:
            path: ``.txt`` for text, or any ending that matplotlib writes.

        Raises:
            ModuleNotFoundError: a picture is asked for and matplotlib is not installed.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> drawing = draw_layout(trajectories([2, 3]))
            >>> drawing.save("layout.png")  # doctest: +SKIP
        """
        check_type("path", path, str | Path, "a file name, as 'layout.txt'")
        if Path(path).suffix == ".txt":
            Path(path).write_text(f"{self}\n", encoding="utf-8")
        else:
            self.plot().figure.savefig(path)

    def _repr_png_(self) -> bytes | None:
        """What a notebook shows; text where matplotlib is not installed."""
        try:
            figure = self.plot().figure
        except ModuleNotFoundError:
            return None
        picture = BytesIO()
        figure.savefig(picture, format="png")
        return picture.getvalue()


def draw_layout(batch: TensorDictBase, *, max_trajectories: int = 40) -> LayoutDrawing:
    """Draw where the trajectories of a batch begin and end, and what is wrong with it.

    Args:
        batch: a TED tensordict ``[N]`` or ``[*B, T]``.
        max_trajectories: draw at most so many.

    Returns:
        A drawing to print, plot or save.

    Raises:
        KeyError: the batch has no marker.
        ValueError: it has no real row, or a marker does not fit it.
        TypeError: a marker has the wrong dtype.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> print(draw_layout(trajectories([2, 4], [EndKind.TRUNCATED, EndKind.CUT])))
        id 7  [|
        id 8  [==>
        [ start  X terminated  | truncated  > cut  ! error  ? note
    """
    if max_trajectories is not None:
        check_whole("max_trajectories", max_trajectories, 1)
    segments, report = Segments.of(batch), check_layout(batch)
    if not len(segments):
        msg = f"expected real rows: all {segments.num_rows} are masked out."
        raise ValueError(msg)
    flat, shown = batch.reshape(-1), segments.starts[:max_trajectories].tolist()
    ids, steps = flat.get(keys.TRAJ_IDS, None), flat.get(keys.TRAJ_STEP, None)
    init = flat.get(keys.IS_INIT, None)
    marks = {
        # by flat row; of several findings the worst stays, as errors are listed first
        int(np.ravel_multi_index(finding.row, tuple(report.batch_shape))): finding.severity
        for finding in reversed(report.findings)
        if finding.row
    }
    bars = []
    for number, start in enumerate(shown):
        length, kind = int(segments.lengths[number]), EndKind(int(segments.kinds[number]))
        label = f"#{number}" if ids is None else f"id {int(ids[start])}"
        first = 0 if steps is None else int(steps[start])
        here = ((row - start, severity) for row, severity in marks.items())
        inside = tuple((first + at, severity) for at, severity in here if 0 <= at < length)
        bars.append(Bar(label, first, length, kind, init is None or bool(init[start]), inside))
    return LayoutDrawing(tuple(bars), len(segments) - len(shown), report)


def _text(bar: Bar, scale: float) -> str:
    """One line: an offset, the steps, the end, and the findings on top."""
    first, stop = int(bar.first / scale), max(int((bar.first + bar.length) / scale), 1)
    # a bar of less than one character is one
    stop = max(stop, first + 1)
    line = [" "] * first + ["="] * (stop - first)
    if bar.is_start and stop - first > 1:
        line[first] = "["
    line[-1] = ENDS[bar.kind]
    for step, severity in bar.marks:
        line[min(int(step / scale), stop - 1)] = MARKS[severity]
    return "".join(line)


def _axes(num_bars: int) -> Any:
    """New axes of their own, outside of any global state of the plotting library."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        msg = "matplotlib is not installed: pip install 'rl-layout[draw]', or print the drawing."
        raise ModuleNotFoundError(msg) from error
    figure = Figure(figsize=(8, 1.2 + 0.25 * num_bars), layout="constrained")
    return figure.add_subplot()
