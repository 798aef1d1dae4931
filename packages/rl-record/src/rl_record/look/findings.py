"""What `check_layout` finds in rows, and the rows around each finding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout import Finding, LayoutReport, check_layout, keys
from rl_record.look.rows import Rows

AROUND, MOST, COMPONENTS = 4, 40, 4
COLUMNS = (
    keys.TRAJ_IDS,
    keys.TRAJ_STEP,
    keys.IS_INIT,
    keys.NEXT_TERMINATED,
    keys.NEXT_TRUNCATED,
    keys.NEXT_DONE,
    keys.NEXT_REWARD,
)


@dataclass(frozen=True)
class RowWindow:
    """Some neighbouring rows, and what they hold.

    Attributes:
        row: the flat row in question.
        rows: the flat rows shown, the one in question among them.
        columns: for each key the text of each row.

    Example:
        >>> RowWindow(0, range(1), {}).row
        0
    """

    row: int
    rows: range
    columns: dict[tuple[str, ...], list[str]]


@dataclass(frozen=True)
class Findings:
    """The findings of some rows.

    Attributes:
        report: what `check_layout` returned.
        windows: the rows around the first row of each finding, by flat row.
        unchecked: keys of large leaves, which were not compared.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_record.look.batch_rows import BatchRows
        >>> Findings.of(BatchRows(trajectories([2, 3]))).report.ok
        True
    """

    report: LayoutReport
    windows: dict[int, RowWindow]
    unchecked: list[tuple[str, ...]]

    @classmethod
    def of(cls, rows: Rows) -> Findings:
        """Check rows."""
        report = check_layout(rows.batch)
        places = [flat_row(one, report.batch_shape) for one in report.findings[:MOST]]
        windows = {}
        for finding, row in zip(report.findings, places, strict=False):
            if row is not None and row not in windows:
                windows[row] = _window(rows.batch, row, finding)
        large = [leaf.key for leaf in rows.leaves if leaf.dtype is not None and not leaf.is_small]
        return cls(report, windows, large)


def flat_row(finding: Finding, shape: torch.Size) -> int | None:
    """The flat row of a finding; None where it is about a whole leaf."""
    return int(np.ravel_multi_index(finding.row, tuple(shape))) if finding.row else None


def _window(batch: TensorDictBase, row: int, finding: Finding) -> RowWindow:
    # rows of another environment are no neighbours
    length = batch.batch_size[-1]
    begin, end = row // length * length, (row // length + 1) * length
    shown = range(max(begin, row - AROUND), min(end, row + AROUND + 1))
    own = (finding.key,) if isinstance(finding.key, str) else tuple(finding.key)
    pair = own[1:] if own[0] == keys.NEXT else (keys.NEXT, *own)
    wanted = [(key,) if isinstance(key, str) else key for key in (*COLUMNS, own, pair)]
    columns = {}
    for key in dict.fromkeys(one for one in wanted if one):
        leaf = batch.get(key, None)
        if leaf is not None and not isinstance(leaf, TensorDictBase):
            places = torch.unravel_index(torch.arange(shown.start, shown.stop), batch.batch_size)
            columns[key] = (
                [_text(values) for values in leaf[places].flatten(1).tolist()]
                if (leaf.ndim > batch.ndim)
                else [_text([value]) for value in leaf[places].tolist()]
            )
    return RowWindow(row, shown, columns)


def _text(values: list[float]) -> str:
    """The first numbers of a row."""
    some = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in values[:COMPONENTS]]
    return ", ".join(some) + (", …" if len(values) > COMPONENTS else "")
