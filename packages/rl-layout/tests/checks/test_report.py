from __future__ import annotations

import pytest
import torch

from rl_layout import Finding, LayoutError, LayoutReport, check_layout
from rl_layout.testing import trajectories


def test_the_report_prints_as_a_table_and_raises_with_it():
    batch = trajectories([2, 3])
    batch["is_init"][2] = False
    report = check_layout(batch)
    assert "layout of [5]: 1 error, 0 notes" in str(report)
    assert "error  is_init  2          1     is False where traj_step is 0" in str(report)
    with pytest.raises(LayoutError, match="is False where traj_step is 0"):
        report.raise_if_broken()


def test_errors_and_notes_are_told_apart():
    error = Finding("error", ("next", "done"), (1, 2), 3, "is wrong")
    note = Finding("note", "is_init", (), 15, "is odd")
    report = LayoutReport(torch.Size([3, 5]), [error, note])
    assert (report.errors, report.notes, report.ok) == ([error], [note], False)
    assert str(report).splitlines()[2:] == [
        "error  next . done  1, 2       3     is wrong",
        "note   is_init      -          15    is odd",
    ]
    assert LayoutReport(torch.Size([3, 5]), [note]).raise_if_broken().ok
