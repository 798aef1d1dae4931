"""Pictures of trees."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT, RADIUS = 72, 64, 16
"""Pixels between leaves and between levels, and of a vertex."""


@dataclass(frozen=True)
class Drawing:
    """Where the vertices of a tree are."""

    # places: Column and level of each vertex; a parent is above the middle of its children.
    # lines: Pairs of vertices, and whether the first step to the second one.
    # labels: What is written at each vertex.

    places: dict[int, tuple[float, int]]
    lines: list[tuple[int, int, bool]]
    labels: dict[int, str]

    @classmethod
    def of(cls, edges: list[tuple[int, int]], labels: dict[int, str]) -> Drawing:
        """The places of vertices that are named by `labels`, the root first, level by level."""
        root = next(iter(labels))
        children: dict[int, list[int]] = {vertex: [] for vertex in labels}
        levels, lines = {root: 0}, []
        for parent, child in edges:
            first = child not in levels
            lines.append((parent, child, first))
            if first:
                levels[child] = levels[parent] + 1
                children[parent].append(child)
        columns: dict[int, float] = {}
        left, leaves = [root], 0
        while left:  # leaves from left to right
            vertex = left.pop()
            left.extend(reversed(children[vertex]))
            if not children[vertex]:
                columns[vertex], leaves = float(leaves), leaves + 1
        for vertex in reversed(levels):  # children come after their parents
            if below := children[vertex]:
                columns[vertex] = (columns[below[0]] + columns[below[-1]]) / 2
        places = {vertex: (columns[vertex], level) for vertex, level in levels.items()}
        return cls(places, lines, labels)


def to_svg(drawing: Drawing) -> str:
    """A drawing as SVG."""

    def at(vertex: int) -> tuple[float, float]:
        column, level = drawing.places[vertex]
        return (column + 0.5) * WIDTH, (level + 0.5) * HEIGHT

    columns = max(column for column, _ in drawing.places.values()) + 1
    levels = max(level for _, level in drawing.places.values()) + 1
    size = f'width="{columns * WIDTH:g}" height="{levels * HEIGHT:g}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="A tree">']
    for parent, child, first in drawing.lines:
        (x1, y1), (x2, y2) = at(parent), at(child)
        dashes = "" if first else ' stroke-dasharray="4"'
        parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#768292"{dashes}/>')
    for vertex, label in drawing.labels.items():
        x, y = at(vertex)
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}" fill="white" stroke="#768292"/>')
        text = f'text-anchor="middle" font-family="sans-serif" font-size="12">{escape(label)}'
        parts.append(f'<text x="{x:g}" y="{y + 4:g}" {text}</text>')
    return "\n".join([*parts, "</svg>"])


def drawn_on_axes(drawing: Drawing) -> Any:
    """A drawing on new axes of matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib: pip install rl-trees[draw], or use to_svg() or to_string()."
        ) from error
    levels = max(level for _, level in drawing.places.values()) + 1
    columns = max(column for column, _ in drawing.places.values()) + 1
    axes = Figure(figsize=(1 + columns, 0.5 + levels)).subplots()
    for parent, child, first in drawing.lines:
        (x1, y1), (x2, y2) = drawing.places[parent], drawing.places[child]
        axes.plot([x1, x2], [-y1, -y2], color="#768292", linestyle="-" if first else "--", zorder=1)
    for vertex, label in drawing.labels.items():
        x, y = drawing.places[vertex]
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#768292"}
        axes.text(x, -y, label, ha="center", va="center", bbox=box, zorder=2)
    axes.set_axis_off()
    return axes
