"""The sections of a page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_layout import EndKind
from rl_record.look.bins import Bins
from rl_record.look.film import Film
from rl_record.look.findings import MOST, RowWindow, flat_row
from rl_record.look.html.charts import histogram, line
from rl_record.look.html.markup import Markup, tag
from rl_record.look.html.page import Page
from rl_record.look.html.row_strip import row_strips
from rl_record.look.html.text import counted, key_text, number, share
from rl_record.look.html.trajectory_bars import LEGEND, label_of, trajectory_bars
from rl_record.look.leaf_summary import LeafSummary
from rl_record.look.sampled_slices import SampledSlices
from rl_record.look.trajectories import Trajectories
from rl_record.look.view import View

SLICES, POINTS, SCREEN = 60, 120, 200


def page_of(view: View) -> Page:
    """Write what is known of rows as a page."""
    slices = None
    if view.sample is not None and not view.sample.problem:
        slices = SampledSlices.of(view.sample, view.trajectories)
    made = [
        ("findings", "Findings", _findings(view)),
        ("rows", "Rows", _rows(view, slices)),
        ("trajectories", "Trajectories", _trajectories(view, slices)),
        ("finding-rows", "Rows of findings", _finding_rows(view)),
        ("returns", "Returns and lengths", _returns(view)),
        ("sample", "One sample", _sample(view, slices)),
        ("frames", "Frames", _frames(view)),
        ("keys", "Keys", _keys(view)),
    ]
    shown = [(name, title, list(content)) for name, title, content in made]
    shown = [part for part in shown if part[2]]
    links = [tag("a", title, href=f"#{name}") for name, title, _ in shown]
    sections = [
        tag("section", tag("h2", title), content, id=name) for name, title, content in shown
    ]
    head = tag("header", tag("h1", view.title), _tiles(view), tag("nav", links))
    return Page(view.title, _summary(view), Markup(head + "".join(sections)))


def _summary(view: View) -> str:
    found, report = view.trajectories, view.findings.report
    parts = [] if found is None else [_trajectory_count(len(found))]
    kinds = [(len(report.errors), "error"), (len(report.notes), "note")]
    parts += [counted(count, noun) for count, noun in kinds if count]
    return ", ".join(parts if report.findings else [*parts, "no finding"])


def _trajectory_count(count: int) -> str:
    return f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"


def _tiles(view: View) -> Markup:
    found, report = view.trajectories, view.findings.report
    tiles = [("rows", f"{view.num_rows:,}")]
    if found is not None:
        tiles.append(("trajectories", f"{len(found):,}"))
        padding = view.num_rows - int(found.lengths.sum())
        tiles += [("rows of padding", f"{padding:,}")] if padding else []
        for kind in reversed(EndKind):
            tiles.append((kind.name.lower(), f"{int((found.kinds == kind).sum()):,}"))
    tiles += [("errors", f"{len(report.errors):,}"), ("notes", f"{len(report.notes):,}")]
    bad = {"errors"} if report.errors else set()
    made = [
        tag("div", tag("b", count, class_="warn" if name in bad else None), name, class_="tile")
        for name, count in tiles
    ]
    return tag("div", made, class_="tiles")


def _findings(view: View) -> Iterator[Markup]:
    found, report = view.findings, view.findings.report
    if view.trajectories is not None and view.trajectories.num_contradicted:
        said = (
            f"{view.trajectories.num_contradicted:,} of the cuts are shown by observations alone: "
        )
        said += "the next observation of a row is not the observation of the row after it."
        yield tag("p", said, class_="warn")
    if found.unchecked:
        keys = ", ".join(map(key_text, found.unchecked))
        yield tag("p", f"Large leaves were not compared from row to row: {keys}.", class_="quiet")
    if not report.findings:
        yield tag("p", "rl_layout.check_layout has no finding.")
        return
    for finding in report.findings[:MOST]:
        row, bad = flat_row(finding, report.batch_shape), finding.severity == "error"
        count = counted(finding.count, "row")
        places = [count] if row is None else [count, ", first ", _row_link(row, finding.row)]
        head = (
            tag("b", finding.severity, class_="warn" if bad else None),
            tag("span", key_text(finding.key)),
            tag("span", places, class_="quiet"),
        )
        yield tag("div", tag("div", head), tag("div", finding.message), class_="finding")
    if len(report.findings) > MOST:
        yield tag("p", f"The first {MOST} of {len(report.findings):,} findings.", class_="quiet")


def _row_link(row: int, index: tuple[int, ...]) -> Markup:
    return tag("a", f"row {', '.join(map(str, index))}", href=f"#row-{row}")


def _finding_rows(view: View) -> Iterator[Markup]:
    yield from (_window(view, window) for window in view.findings.windows.values())


def _window(view: View, window: RowWindow) -> Markup:
    found, link = view.trajectories, None
    if found is not None:
        owner = int(found.locate(np.array([window.row]))[0][0])
        if owner >= 0:
            label = f"its trajectory, {label_of(found, owner)}"
            link = [", ", tag("a", label, href=f"#trajectory-{owner}")]
    lines = [tag("tr", tag("th", "row"), map(_column_head, window.columns))]
    for i, row in enumerate(window.rows):
        cells = [f"{row:,}", *(column[i] for column in window.columns.values())]
        here = "here" if row == window.row else None
        lines.append(tag("tr", [tag("td", cell) for cell in cells], class_=here))
    title = tag("h3", f"Row {window.row:,}", link)
    return tag("div", title, _scrolled(lines), class_="window", id=f"row-{window.row}")


def _column_head(key: tuple[str, ...]) -> Markup:
    """The name of a leaf below that of its group, which makes narrow columns."""
    return tag("th", tag("small", key_text(key[:-1])), key[-1])


def _rows(view: View, slices: SampledSlices | None) -> Iterator[Markup]:
    if view.trajectories is None:
        yield tag("p", f"No trajectories: {view.problem}")
    elif not len(view.trajectories):
        yield tag("p", "Every row is padding.")
    strips, exact = row_strips(view, slices)
    if view.trajectories is not None:
        said = "Each block is a run of rows of one trajectory, in the order of storage."
        if not exact:
            said = "Heights count the runs of rows that end there, in the order of storage."
        if view.sample is not None and len(view.findings.report.batch_shape) == 1:
            said += " Row k is buffer[k], before the transforms of the buffer."
        yield tag("p", said)
    more = (("slice", "drawn by one sample"),) if slices is not None else ()
    yield _legend((*LEGEND, *more))
    yield strips


def _legend(entries: tuple[tuple[str, str], ...]) -> Markup:
    made = [tag("span", tag("i", class_=kind), text) for kind, text in entries]
    return tag("div", made, class_="legend")


def _trajectories(view: View, slices: SampledSlices | None) -> Iterator[Markup]:
    found = view.trajectories
    if found is None or not len(found):
        return
    bars, count = trajectory_bars(view, slices)
    longest = int(found.lengths.max())
    said = f"Bars along their steps; the longest has {longest:,}."
    if count < len(found):
        said += (
            f" {count} of {len(found):,}: evenly spaced ones, and those with findings or slices."
        )
    yield tag("p", said)
    missed = int((~found.begins).sum())
    if missed:
        yield tag(
            "p", f"{missed:,} begin after their first step, with a double edge.", class_="quiet"
        )
    yield bars


def _returns(view: View) -> Iterator[Markup]:
    found = view.trajectories
    if found is None or not len(found):
        return
    whole = found.is_whole
    said = f"{int(whole.sum()):,} of {_trajectory_count(len(found))} are stored from their first "
    said += "step to an end that a flag marks."
    if not whole.any():
        said += " None is, so what follows is of all."
        whole = np.ones(len(found), bool)
    else:
        said += " What follows is of these."
    yield tag("p", said)
    cards = [_distribution("Lengths", found.lengths[whole].astype(np.float64))]
    if found.returns is None:
        yield tag("p", "There is not one reward a row, so there are no returns.", class_="quiet")
    else:
        cards.insert(0, _distribution("Returns", found.returns[whole]))
        cards.append(_over_rows(found, whole))
    yield tag("div", cards, class_="cards")


def _distribution(title: str, values: NDArray[np.float64]) -> Markup:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return tag("div", tag("h3", title), tag("p", "none is a number"), class_="card")
    facts = {
        "mean": number(float(finite.mean())),
        "std": number(float(finite.std())),
        "median": number(float(np.median(finite))),
        "min": number(float(finite.min())),
        "max": number(float(finite.max())),
    }
    lost = len(values) - len(finite)
    facts |= {"NaN or infinite": f"{lost:,}"} if lost else {}
    chart = histogram(Bins.of(finite), title.lower(), "trajectory")
    return tag("div", tag("h3", title), _facts(facts), chart, class_="card")


def _over_rows(found: Trajectories, whole: NDArray[np.bool_]) -> Markup:
    """Mean returns of groups of trajectories in the order of rows."""
    assert found.returns is not None  # the caller looked
    values = found.returns[whole]
    size = -(-len(values) // POINTS)
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.array([group.mean() for group in groups])
    title = "Returns in the order of rows" + (f", means of {size:,}" if size > 1 else "")
    drawn = line(means, title) or tag("p", "One trajectory alone makes no line.", class_="quiet")
    return tag("div", tag("h3", title), drawn, class_="card")


def _sample(view: View, slices: SampledSlices | None) -> Iterator[Markup]:
    sample = view.sample
    if sample is None:
        return
    if slices is None:
        yield tag("p", f"{sample.title} drew nothing. {sample.problem}", class_="warn")
        return
    said = f"{sample.title} drew {counted(slices.num_rows, 'row')} in {len(slices.rows):,} runs of "
    said += f"neighbouring steps; {slices.num_distinct:,} of the rows are different. The generator "
    said += "was one with seed 0, and the buffer has its own again."
    yield tag("p", said)
    if not slices.has_runs:
        return
    found = view.trajectories
    lines = [tag("tr", [tag("th", name) for name in ("trajectory", "first row", "step", "rows")])]
    for i in range(min(SLICES, len(slices.rows))):
        owner = int(slices.owners[i])
        name = "none" if found is None or owner < 0 else label_of(found, owner)
        cells = (name, *(f"{int(part[i]):,}" for part in (slices.rows, slices.offsets)))
        lines.append(tag("tr", [tag("td", one) for one in (*cells, f"{int(slices.lengths[i]):,}")]))
    yield _scrolled(lines)
    if len(slices.rows) > SLICES:
        yield tag("p", f"The first {SLICES} runs.", class_="quiet")


def _frames(view: View) -> Iterator[Markup]:
    if view.films:
        said = "Evenly spaced frames of evenly spaced trajectories, made smaller if they are "
        yield tag("p", said + "large.", class_="quiet")
        yield tag("div", map(_film, view.films), class_="films")


def _film(film: Film) -> Markup:
    address = "data:image/png;base64," + base64.b64encode(film.picture).decode()
    scale = max(1, SCREEN // max(film.width, film.height))
    width, height = scale * film.width, scale * film.height
    style = f"width:{width}px;height:{height}px;background-size:{width}px auto;"
    style += f"background-image:url({address})"
    shown = tag("div", class_="screen", style=style)
    slider = {"min": 0, "max": len(film.rows) - 1, "value": 0, "aria_label": "frame"}
    controls = (tag("button", "Play", type="button"), tag("input", type="range", **slider))
    text = f"{key_text(film.key)}, {film.label}" + (f", {film.note}" if film.note else "")
    caption = tag("figcaption", text, ", ", tag("output", f"row {film.rows[0]}"))
    data = {"data_rows": json.dumps(film.rows), "data_height": height}
    body = tag("div", controls, class_="controls")
    return tag("figure", shown, body, caption, class_="film", **data)


def _keys(view: View) -> Iterator[Markup]:
    yield tag("div", map(_card, view.leaves), class_="cards")
    if view.left_out:
        yield tag("p", f"{view.left_out:,} keys more are not shown.", class_="quiet")


def _card(summary: LeafSummary) -> Markup:
    leaf = summary.leaf
    kind = "" if leaf.dtype is None else f"{leaf.dtype}".removeprefix("torch.")
    kind += f" {list(leaf.shape)}" if leaf.shape else ""
    head = (tag("h3", key_text(leaf.key)), tag("div", kind, class_="quiet"))
    if leaf.note:
        return tag("div", head, tag("p", leaf.note), class_="card")
    if kind.startswith("bool"):
        facts = {"True": f"{summary.mean:.4%}"}
    else:
        facts = {"min": number(summary.low), "max": number(summary.high)}
        facts |= {"mean": number(summary.mean), "std": number(summary.std)}
    count = summary.num_rows * max(1, int(np.prod(leaf.shape)))
    strange = {"NaN": summary.num_nan, "infinite": summary.num_infinite}
    bad = [f"{n:,} {name} ({share(n, count)})" for name, n in strange.items() if n]
    said = tag("p", ", ".join(bad), class_="warn") if bad else None
    shown = (
        histogram(summary.bins, key_text(leaf.key))
        if summary.bins is not None and len(summary.bins.counts)
        else None
    )
    return tag("div", head, _facts(facts), said, shown, _read(summary), class_="card")


def _read(summary: LeafSummary) -> Markup:
    """How many rows the numbers are of."""
    rows, binned = summary.num_rows, summary.num_binned
    text = f"of {counted(rows, 'row')}"
    if binned < rows:
        text += f", the histogram of {binned:,} evenly spaced ones"
    return tag("div", text, class_="quiet")


def _facts(facts: dict[str, str]) -> Markup:
    made = [tag("div", tag("span", f"{name} "), tag("b", text)) for name, text in facts.items()]
    return tag("div", made, class_="facts")


def _scrolled(lines: list[Markup]) -> Markup:
    return tag("div", tag("table", lines), class_="scroll")
