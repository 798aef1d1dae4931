"""Charts that fit any width: rectangles and lines only, stretched along both axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rl_record.look.bins import Bins
from rl_record.look.html.markup import Markup, tag
from rl_record.look.html.text import counted, number

WIDTH, HEIGHT = 400, 60


def rectangle(place: Sequence[float], kind: str, label: str | None = None) -> Markup:
    """A rectangle: x, y, width and height; its label is shown where the pointer is."""
    x, y, width, height = (f"{value:.6g}" for value in place)
    said = None if label is None else tag("title", label)
    return tag("rect", said, x=x, y=y, width=width, height=height, class_=kind)


def chart(shapes: Iterable[Markup], size: tuple[float, float], label: str, kind: str) -> Markup:
    """A picture of shapes; the label describes it."""
    box = f"0 0 {size[0]:.6g} {size[1]:.6g}"
    options = {"viewBox": box, "preserveAspectRatio": "none", "role": "img", "aria_label": label}
    return tag("svg", list(shapes), class_=kind, **options)


def axis(first: str, last: str) -> Markup:
    """Text at both ends of a line."""
    return tag("div", tag("span", first), tag("span", last), class_="axis")


def histogram(bins: Bins, what: str, noun: str = "value") -> Markup:
    """Bars of the counts, with the edges below."""
    total, most = len(bins.counts), int(bins.counts.max())
    shapes = []
    for i, count in enumerate(bins.counts.tolist()):
        if count:
            high = max(1.0, HEIGHT * count / most)  # a rare value is seen as well
            label = f"{_range(bins, i)}: {counted(count, noun)}"
            place = (i * WIDTH / total, HEIGHT - high, 0.92 * WIDTH / total, high)
            shapes.append(rectangle(place, "bar", label))
    shown = chart(shapes, (WIDTH, HEIGHT), f"Histogram of {what}", "histogram")
    low, high_edge = _ends(bins)
    return tag("div", shown, axis(low, high_edge))


def _is_whole(bins: Bins) -> bool:
    return len(bins.edges) > 1 and bins.edges[1] - bins.edges[0] == 1 and bins.edges[0] % 1 == 0.5


def _range(bins: Bins, i: int) -> str:
    if _is_whole(bins):
        return number(bins.edges[i] + 0.5)
    return f"{number(float(bins.edges[i]))} to {number(float(bins.edges[i + 1]))}"


def _ends(bins: Bins) -> tuple[str, str]:
    shift = 0.5 if _is_whole(bins) else 0.0
    low, high = number(float(bins.edges[0]) + shift), number(float(bins.edges[-1]) - shift)
    return low, "" if high == low else high


def line(values: NDArray[np.float64], what: str) -> Markup:
    """Values in their order as a line, with the least and the greatest at its left."""
    known = values[np.isfinite(values)]
    if len(values) < 2 or not known.size:
        return Markup()
    low, high = float(known.min()), float(known.max())
    width = high - low if 0 < high - low < np.inf else 1.0
    places = np.arange(len(values)) * WIDTH / (len(values) - 1)
    heights = HEIGHT - 2 - (HEIGHT - 4) * (values - low) / width
    pairs = zip(places, heights, strict=True)
    # a value that is not known leaves no hole: its neighbours are joined
    points = " ".join(f"{x:.6g},{y:.6g}" for x, y in pairs if np.isfinite(y))
    drawn = tag("polyline", points=points, class_="line")
    shown = chart([drawn], (WIDTH, HEIGHT), what, "histogram")
    return tag("div", axis(number(high), ""), shown, axis(number(low), "later rows →"))
