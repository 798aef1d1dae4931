import sys

import numpy as np
import pytest

from rl_datasets import ColumnReport, DatasetReport


def report_of(*counts):
    """A report of so many trajectories at a time, whose lengths count from 1."""
    report = DatasetReport("demo/one", "memory")
    numbers = np.split(np.arange(1, sum(counts) + 1), np.cumsum(counts)[:-1])
    for lengths in numbers:
        report.take_trajectories(lengths, -1.0 * lengths)
    return report


@pytest.mark.parametrize("counts", [(3,), (256,), (257,), (100, 0, 411, 2), (1,) * 700, (5_000,)])
def test_every_kth_trajectory_is_kept_however_they_come(counts):
    report, total = report_of(*counts), sum(counts)
    assert report.trajectories == total
    assert report.lengths == list(range(1, total + 1, report.kept_every))
    assert report.returns == [-length for length in report.lengths]
    assert len(report.lengths) == total if total <= 256 else 128 <= len(report.lengths) <= 256
    assert DatasetReport.of_dict(report.to_dict()) == report


def test_a_picture_shows_ends_lengths_returns_and_ranges(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    report = report_of(600)
    report.terminated, report.truncated, report.cut = 500, 90, 10
    report.columns = {
        "observation": ColumnReport("float32", [3], -1e6, 2.0, not_finite=7),
        "empty": ColumnReport("float32", []),
    }
    figure = report.plot()
    ends, lengths, returns, ranges = figure.axes
    assert [bar.get_width() for bar in ends.patches] == [500, 90, 10, 0]
    assert sum(bar.get_height() for bar in lengths.patches) == len(report.lengths)
    assert sum(bar.get_height() for bar in returns.patches) == len(report.returns)
    assert [list(line.get_xdata()) for line in ranges.lines] == [[-1e6, 2.0]]
    assert [text.get_text() for text in ranges.texts] == ["7 not finite"]
    figure.savefig(tmp_path / "report.png")


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"rl-datasets\[plot\]"):
        report_of(2).plot()


def test_what_is_no_report_is_named(tmp_path):
    with pytest.raises(TypeError, match="plain: expected what to_dict returned, got 3"):
        DatasetReport.of_dict(3)
    with pytest.raises(KeyError, match=r"plain: .*'columns', 'dataset', 'format'.* are missing"):
        DatasetReport.of_dict({})
    for call in (DatasetReport("toy", "toy").save, DatasetReport.load):
        with pytest.raises(TypeError, match="folder: expected the name of a file or folder, got 3"):
            call(3)
    DatasetReport("toy", "toy").save(str(tmp_path))
    assert DatasetReport.load(str(tmp_path)).dataset == "toy"


def test_lengths_and_returns_that_do_not_fit_are_named():
    report = DatasetReport("toy", "toy")
    with pytest.raises(TypeError, match="returns: expected an array, a number for each"):
        report.take_trajectories(np.array([3]), [1.0])
    with pytest.raises(ValueError, match="expected one of each for every trajectory, got 2 and 1"):
        report.take_trajectories(np.array([3, 4]), np.array([1.0]))
    assert report.trajectories == 0
