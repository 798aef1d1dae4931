"""A picture of runs: a panel for each name, a curve for each group of seeds.

    python -m rl_record.plot runs/sac/* runs/td3/* --names return loss/critic --out curves.png

Runs in one folder are seeds of one experiment: their mean is drawn, and the interval in which 95 of
100 means of seeds drawn anew lie.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_record.run import Curve, Run, read_run
from rl_tensordict.arguments import check_integer, check_type

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS, RESAMPLES = 200, 1000


class Band(NamedTuple):
    """The mean of several curves and its interval, at steps that all of them cover."""

    steps: NDArray[np.float64]  # [P]
    mean: NDArray[np.float64]  # [P]
    low: NDArray[np.float64]  # [P]
    high: NDArray[np.float64]  # [P]


def band(curves: Sequence[Curve], smooth: int = 1) -> Band:
    """Average curves of one name, one for each seed, at up to 200 steps that all cover.

    Returns the mean and its bootstrapped 95 % interval; `smooth` entries of each curve are
    averaged first.
    """
    check_type("curves", curves, list | tuple, "a list of curves")
    check_integer("smooth", smooth)
    if not curves or smooth < 1:
        msg = f"expected at least one curve and smooth of 1 or more, got {len(curves)}, {smooth}."
        raise ValueError(msg)
    for curve in curves:
        check_type("curves", curve, Curve, "a list of curves")
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    if first > last:
        msg = f"no step is covered by all {len(curves)} curves: one begins at {first}, one ends at "
        raise ValueError(msg + f"{last}.")
    own = np.unique(np.concatenate([curve.steps for curve in curves]))
    own = own[(own >= first) & (own <= last)]
    at = own if len(own) <= POINTS else np.linspace(first, last, POINTS)
    values = [np.interp(at, c.steps, moving_average(c.values, smooth)) for c in curves]
    seeds = np.stack(values)  # [S, P]
    drawn = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    means = np.stack([seeds[each].mean(0) for each in drawn])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return Band(at.astype(float), seeds.mean(0), low, high)


def moving_average(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The mean of each value and those before it, `width` in all; NaN is left out."""
    finite = np.isfinite(values)
    sums, counts = np.cumsum(np.where(finite, values, 0.0)), np.cumsum(finite)
    sums[width:], counts[width:] = sums[width:] - sums[:-width], counts[width:] - counts[:-width]
    with np.errstate(invalid="ignore"):  # nothing but NaN in the window: NaN
        return np.asarray(sums / counts, np.float64)


def plot_runs(
    groups: Mapping[str, Sequence[Run]], names: Sequence[str] | None = None, smooth: int = 1
) -> Figure:
    """Draw runs, a panel for each name.

    Args:
        groups: runs by the label of their curve; those of one group are seeds.
        names: what to draw; all that any run has by default.
        smooth: number of entries in a moving average of each curve.

    Returns:
        The figure.

    Raises:
        KeyError: no run has a name.
        ImportError: the extra ``plot`` is not installed.
    """
    _check_groups(groups)
    check_type("names", names, list | tuple | None, "a list of names, or None")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = "matplotlib is not installed: pip install 'rl-record[plot]'."
        raise ImportError(msg) from error
    known = {name for runs in groups.values() for run in runs for name in run}
    wanted = sorted(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            msg = f"{name!r} is in no run: there are {sorted(known)}."
            raise KeyError(msg)
    across = min(len(wanted), 3) or 1
    down = -(-len(wanted) // across) or 1
    figure = Figure(figsize=(5 * across, 3.2 * down), layout="constrained")
    for place, name in enumerate(wanted):
        axes = figure.add_subplot(down, across, place + 1, title=name, xlabel="step")
        for label, runs in groups.items():
            curves = [run[name] for run in runs if name in run]
            if not curves:
                continue
            found = band(curves, smooth)
            (line,) = axes.plot(found.steps, found.mean, label=f"{label} ({len(curves)})")
            colour = line.get_color()
            axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.2, lw=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _check_groups(groups: Mapping[str, Sequence[Run]]) -> None:
    expected = "lists of runs by label"
    check_type("groups", groups, Mapping, expected)
    for runs in groups.values():
        check_type("groups", runs, list | tuple, expected)
        for run in runs:
            check_type("groups", run, Run, expected)


def grouped(paths: Sequence[Path]) -> dict[str, list[Run]]:
    """Runs by the folder that they share with others; a run that is alone there by its own name.

    Folders of one name are told apart by those in which they lie, a run that is named twice is one.
    """
    check_type("paths", paths, list | tuple, "a list of folders")
    by_parent: dict[Path, dict[Path, Run]] = {}
    for path in map(Path, paths):
        run = read_run(path)
        folder = path.resolve().parent if path.is_file() else path.resolve()
        by_parent.setdefault(folder.parent, {})[folder] = run
    groups = {
        parent if len(runs) > 1 else next(iter(runs)): list(runs.values())
        for parent, runs in by_parent.items()
    }
    return dict(zip(_told_apart(list(groups)), groups.values(), strict=True))


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """The last names of each folder, as many as tell all of them apart."""
    size = 1
    while len({folder.parts[-size:] for folder in folders}) < len(folders):
        size += 1
    return ["/".join(folder.parts[-size:]) for folder in folders]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the runs that a command line names."""
    parser = argparse.ArgumentParser(prog="python -m rl_record.plot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--names", nargs="+", help="what to draw; everything by default")
    parser.add_argument("--smooth", type=int, default=1, help="entries in a moving average")
    parser.add_argument("--out", type=Path, default=Path("runs.png"), help="file of the picture")
    given = parser.parse_args(arguments)
    try:
        figure = plot_runs(grouped(given.runs), given.names, given.smooth)
    except (OSError, KeyError, ValueError, ImportError) as error:
        parser.error(str(error.args[-1]) if isinstance(error, KeyError) else str(error))
    figure.savefig(given.out, dpi=120)
    sys.stdout.write(f"{given.out}\n")


if __name__ == "__main__":
    main()
