"""What `check_layout` finds in rows, and the rows around each finding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout import Finding, LayoutReport, check_layout, keys
from rl_record.look.shown_rows import ShownRows
from rl_tensordict import CPU, as_tuple

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
    """Some neighbouring rows, and what they hold."""

    row: int  # the flat row in question
    rows: range  # the flat rows shown, the one in question among them
    columns: dict[tuple[str, ...], list[str]]  # for each key the text of each row


@dataclass(frozen=True)
class Findings:
    """The findings of some rows."""

    report: LayoutReport  # what `check_layout` returned
    windows: dict[int, RowWindow]  # the rows around the first row of each finding, by flat row
    unchecked: list[tuple[str, ...]]  # keys of large leaves, which were not compared

    @classmethod
    def of(cls, rows: ShownRows) -> Findings:
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
    """The flat row of a finding; None if it is about a whole leaf."""
    return int(np.ravel_multi_index(finding.row, tuple(shape))) if finding.row else None


def _window(batch: TensorDictBase, row: int, finding: Finding) -> RowWindow:
    # rows of another environment are no neighbours
    length = batch.batch_size[-1]
    begin, end = row // length * length, (row // length + 1) * length
    shown = range(max(begin, row - AROUND), min(end, row + AROUND + 1))
    own = as_tuple(finding.key)
    pair = own[1:] if own[0] == keys.NEXT else (keys.NEXT, *own)
    columns = {}
    for key in dict.fromkeys(one for one in (*map(as_tuple, COLUMNS), own, pair) if one):
        leaf = batch.get(key, None)
        if leaf is not None and not isinstance(leaf, TensorDictBase):
            rows = torch.arange(shown.start, shown.stop, device=CPU)
            places = torch.unravel_index(rows, batch.batch_size)
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
