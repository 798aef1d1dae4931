"""Trajectories as bars along their steps."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rl_layout import EndKind
from rl_record.look.findings import flat_row
from rl_record.look.html.markup import Markup, tag
from rl_record.look.html.text import counted, number
from rl_record.look.sampled_slices import SampledSlices
from rl_record.look.shown_rows import spread_rows
from rl_record.look.trajectories import Trajectories
from rl_record.look.view import View

BARS, DIGITS = 60, 6
ENDS = ("cut", "truncated", "terminated")
LEGEND = tuple(
    (f"end{kind}", text)
    for kind, text in (
        (EndKind.TERMINATED, "terminated: the task ended"),
        (EndKind.TRUNCATED, "truncated: the data ends, the task goes on"),
        (EndKind.CUT, "cut: the rows stop and no flag says why"),
    )
)
SYMBOLS = {"error": "▼", "note": "▽"}


def trajectory_bars(view: View, slices: SampledSlices | None) -> tuple[Markup, int]:
    """Bars of evenly spaced trajectories and of marked ones, and how many there are."""
    found = view.trajectories
    assert found is not None  # the caller looked
    marks, drawn = _marks(view, found), defaultdict(list)
    if slices is not None:
        for owner, offset, length in zip(
            slices.owners, slices.offsets, slices.lengths, strict=True
        ):
            if owner >= 0:
                drawn[int(owner)].append((int(offset), int(length)))
    few = list(drawn)[:BARS] if slices is not None and slices.has_runs else []
    shown = sorted({*spread_rows(len(found), BARS).tolist(), *marks, *few})
    longest = int(found.lengths.max())
    bars = [_bar(found, n, longest, drawn.get(n, []), marks.get(n, [])) for n in shown]
    return tag("div", bars, class_="bars"), len(shown)


def label_of(found: Trajectories, owner: int) -> str:
    """How a trajectory is called."""
    return f"#{owner}" if found.ids is None else f"id {found.ids[owner]}"


def _short(label: str) -> str:
    """A label whose end is seen: ids of one producer differ in their last digits alone."""
    return label if len(label) <= DIGITS + 3 else f"id …{label[-DIGITS:]}"


def _marks(view: View, found: Trajectories) -> dict[int, list[tuple[int, int, str]]]:
    """For trajectories with findings the step, the row and the severity of each."""
    marks = defaultdict(list)
    report = view.findings.report
    rows = [flat_row(finding, report.batch_shape) for finding in report.findings]
    known = [(row, one.severity) for row, one in zip(rows, report.findings, strict=True)]
    some = [(row, severity) for row, severity in known if row in view.findings.windows]
    owners, steps = found.locate(np.array([row for row, _ in some], np.int64))
    for (row, severity), owner, step in zip(some, owners.tolist(), steps.tolist(), strict=True):
        if owner >= 0 and row is not None:
            marks[owner].append((step, row, severity))
    return dict(marks)


def _bar(
    found: Trajectories,
    owner: int,
    longest: int,
    slices: list[tuple[int, int]],
    marks: list[tuple[int, int, str]],
) -> Markup:
    length, kind = int(found.lengths[owner]), int(found.kinds[owner])
    begins = bool(found.begins[owner])
    told = [f"{label_of(found, owner)}: {counted(length, 'step')}", ENDS[kind]]
    if not begins:
        told.append("its first steps are not stored")
    if found.returns is not None:
        told.append(f"return {number(float(found.returns[owner]))}")
    inside = [
        tag("i", class_="slice", style=_place(offset, size, length)) for offset, size in slices
    ]
    inside.append(tag("i", class_=f"end{kind}"))
    for step, row, severity in marks:
        left = f"left:{100 * (step + 0.5) / length:.2f}%"
        options = {"style": left, "title": f"{severity} at row {row}"}
        inside.append(tag("a", SYMBOLS[severity], href=f"#row-{row}", **options))
    width = f"width:{100 * length / longest:.3f}%"
    run = tag("div", inside, class_="run" if begins else "run late", style=width)
    label = f"{_short(label_of(found, owner))} · {length:,}"
    title = ", ".join(told)
    lane = tag("div", run, class_="lane")
    return tag(
        "div", tag("span", label), lane, class_="track", id=f"trajectory-{owner}", title=title
    )


def _place(offset: int, size: int, length: int) -> str:
    return f"left:{100 * offset / length:.2f}%;width:{100 * size / length:.2f}%"
