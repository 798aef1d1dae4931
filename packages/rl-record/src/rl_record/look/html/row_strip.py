"""All rows as strips: where trajectories end, where a sample was drawn, where findings are."""

from __future__ import annotations

import numpy as np

from rl_layout import EndKind
from rl_record.look.findings import flat_row
from rl_record.look.html.charts import axis, chart, rectangle
from rl_record.look.html.markup import Markup, tag
from rl_record.look.html.text import counted
from rl_record.look.html.trajectory_bars import ENDS, SYMBOLS
from rl_record.look.sampled_slices import SampledSlices
from rl_record.look.view import View

BLOCKS, BINS, LINES = 200, 300, 12
HEIGHT, LANE = 36, 10  # of the ends, and of the slices below them


def row_strips(view: View, slices: SampledSlices | None) -> tuple[Markup, bool]:
    """A strip, or one for each environment of a few; and whether pieces are drawn one by one."""
    shape = view.findings.report.batch_shape
    num_lines = shape[:-1].numel() if 1 < shape[:-1].numel() <= LINES else 1
    width = view.num_rows // num_lines
    found = view.trajectories
    exact = found is not None and len(found.starts) <= BLOCKS
    lines = []
    for line in range(num_lines):
        rows = range(line * width, (line + 1) * width)
        shapes = _blocks(view, rows) if exact else _ends(view, rows)
        shapes += _slices(slices, rows)
        label = f"rows {rows.start:,} to {rows.stop - 1:,}"
        picture = chart(shapes, (width, HEIGHT + LANE), label, "rows")
        lines.append(tag("div", picture, _finding_links(view, rows), class_="strip"))
        lines.append(axis(f"{rows.start:,}", f"{rows.stop - 1:,}"))
    return tag("div", lines), exact


def _blocks(view: View, rows: range) -> list[Markup]:
    """A block for each piece; its end has the colour of its kind, the last piece's one."""
    found = view.trajectories
    assert found is not None  # the caller looked
    shapes, lasts = [], np.append(found.owners[1:] != found.owners[:-1], True)
    order = np.argsort(found.starts)
    for number, piece in enumerate(order.tolist()):
        start, length = int(found.starts[piece]), int(found.piece_lengths[piece])
        if start not in rows:
            continue
        kind = int(found.kinds[found.owners[piece]]) if lasts[piece] else int(EndKind.CUT)
        label = f"rows {start:,} to {start + length - 1:,}, {ENDS[kind]}"
        place = (start - rows.start, 0, length, HEIGHT)
        shapes.append(rectangle(place, "block2" if number % 2 else "block", label))
        tick = min(length / 2, len(rows) / 200)
        end = start - rows.start + length
        shapes.append(rectangle((end - tick, 0, tick, HEIGHT), f"end{kind}", label))
    return shapes


def _ends(view: View, rows: range) -> list[Markup]:
    """How many pieces end in each of many spans of rows, by kind, on top of each other."""
    found = view.trajectories
    if found is None or not len(found.starts):
        return []
    lasts = np.append(found.owners[1:] != found.owners[:-1], True)
    kinds = np.where(lasts, found.kinds[found.owners], EndKind.CUT)
    # the last row of each piece, counted from the first row of the strip
    at = found.starts + found.piece_lengths - 1 - rows.start
    inside = (at >= 0) & (at < len(rows))
    bins = min(BINS, len(rows))
    places = at[inside] * bins // len(rows)
    counts = np.stack(
        [np.bincount(places[kinds[inside] == kind], minlength=bins) for kind in EndKind]
    )
    most, shapes = max(1, int(counts.sum(0).max())), []
    for i in counts.sum(0).nonzero()[0].tolist():
        # bin i holds the rows r with r * bins // rows == i: it begins at ceil(i * rows / bins)
        begin, end = (rows.start + -(-n * len(rows) // bins) for n in (i, i + 1))
        told = ", ".join(f"{counts[k, i]:,} {ENDS[k]}" for k in EndKind if counts[k, i])
        label, top = f"rows {begin:,} to {end - 1:,}: {told}", float(HEIGHT)
        for kind in EndKind:
            high = HEIGHT * int(counts[kind, i]) / most
            top -= high
            if high:
                place = (i * len(rows) / bins, top, len(rows) / bins, high)
                shapes.append(rectangle(place, f"end{int(kind)}", label))
    return shapes


def _slices(slices: SampledSlices | None, rows: range) -> list[Markup]:
    if slices is None:
        return []
    least, shapes = len(rows) / 600, []
    for row, length in zip(slices.rows.tolist(), slices.lengths.tolist(), strict=True):
        if row in rows:
            label = f"sampled: {counted(length, 'row')} from row {row:,} on"
            place = (row - rows.start, HEIGHT + 2, max(length, least), LANE - 2)
            shapes.append(rectangle(place, "slice", label))
    return shapes


def _finding_links(view: View, rows: range) -> list[Markup]:
    links, report = [], view.findings.report
    for finding in report.findings:
        row = flat_row(finding, report.batch_shape)
        if row in view.findings.windows and row in rows:
            left = f"left:{100 * (row - rows.start + 0.5) / len(rows):.3f}%"
            options = {"style": left, "title": f"{finding.severity} at row {row:,}"}
            links.append(tag("a", SYMBOLS[finding.severity], href=f"#row-{row}", **options))
    return links
