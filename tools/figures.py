"""Draws the pictures of the README and of the pages as SVG, for light and dark backgrounds.

`python tools/figures.py` writes them into docs/pictures; a test compares the files with what this
script draws from the declared layers and from the benchmark records.
"""

from __future__ import annotations

import math
import tomllib
from html import escape
from pathlib import Path

from tools.bench_table import digits, figures, records

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
HUES = ["#2f6fb3", "#b3632f", "#3c8558"]
# greys and hues that read on white and on black: a page may have another scheme than its viewer
STYLE = """
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 15px; }
.ink { fill: #768292; } .line { stroke: #768292; stroke-width: 1.6; fill: none; }
.box { fill: #2f6fb3; } .peer { fill: #8b96a5; } .on { fill: #ffffff; }
.name { font-weight: 600; } .small { font-size: 13px; }
"""
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="ink" d="M0 0 L8 4 L0 8 z"/></marker>'
)
STAGES = [
    ("environment", "rl-envs", "steps"),
    ("collector", "rl-collect", "writes in place"),
    ("buffer", "rl-replay", "stores each once"),
    ("sampler", "rl-replay", "gathers slices"),
    ("network", "rl-recurrent", "resets at starts"),
    ("estimator", "rl-value", "cuts at ends"),
    ("loss", "rl-value", "real steps only"),
]
TRAJECTORIES = [(9, "X"), (6, "|"), (11, ">")]


def text(x: float, y: float, words: str, *, style: str = "ink", anchor: str = "middle") -> str:
    """One line of text."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(words)}</text>'


def box(
    x: float, y: float, size: tuple[float, float], *, fill: str = "", style: str = "box"
) -> str:
    """One rounded rectangle, in a colour or in that of its class."""
    colour = f'style="fill:{fill}"' if fill else ""
    place = f'x="{x:g}" y="{y:g}" width="{size[0]:g}" height="{size[1]:g}"'
    return f'<rect class="{style}" rx="5" {place} {colour}/>'


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """One straight arrow."""
    path = f"M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}"
    return f'<path class="line" marker-end="url(#arrow)" d="{path}"/>'


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">'
    )
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    return "\n".join([*lines, f"<defs>{ARROW}</defs>", *parts, "</svg>", ""])


def flat_batch(y: float) -> list[str]:
    """Trajectories end to end: a cell for each step, and what its last step says."""
    legend = "one flat batch, a cell per step:   [ is_init   X terminated   | truncated   > cut"
    parts, x = [text(25, y - 14, legend, anchor="start")], 25.0
    for (length, end), hue in zip(TRAJECTORIES, HUES, strict=True):
        for mark in ["[", *[""] * (length - 2), end]:
            parts.append(box(x, y, (30, 34), fill=hue))
            if mark:
                parts.append(text(x + 15, y + 23, mark, style="on name"))
            x += 35
    return parts


def data_flow() -> str:
    """From environment to loss, over a flat batch."""
    parts, step = flat_batch(40), 137
    for number, (name, package, act) in enumerate(STAGES):
        x = 6 + number * step
        parts.append(box(x, 112, (116, 56)))
        parts.append(text(x + 58, 135, name, style="on name"))
        parts.append(text(x + 58, 155, package, style="on small"))
        parts.append(text(x + 58, 188, act, style="ink small"))
        if number:
            parts.append(arrow((x - step + 118, 140), (x - 3, 140)))
    return drawing(960, 202, "Steps flow from the environment to the loss in flat batches", parts)


def layers() -> dict[int, list[str]]:
    """The packages of each declared layer."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        found.setdefault(project["tool"]["house"]["layer"], []).append(path.parent.name)
    return found


def layer_picture() -> str:
    """The layers, highest first: a package imports only from rows below its own."""
    rows, parts, pitch = layers(), [], 78
    for line, number in enumerate(sorted(rows, reverse=True)):
        names, y = rows[number], 10 + line * pitch
        width = min(150.0, (760 - 10 * len(names)) / len(names))
        x = (760 - len(names) * (width + 10) + 10) / 2
        for name in names:
            parts.append(box(x, y, (width, 46), fill=HUES[number % len(HUES)]))
            parts.append(text(x + width / 2, y + 28, name, style="on name"))
            x += width + 10
        if line:
            parts.append(arrow((380, y - pitch + 50), (380, y - 4)))
    return drawing(
        760, 10 + len(rows) * pitch - 22, "Packages import only from layers below", parts
    )


def speed_picture() -> str:
    """How many times as fast as TorchRL, on a logarithmic axis."""
    rows = [(row.title, row.ratio) for row in figures(records())]
    rows.sort(key=lambda row: -row[1])
    left, scale, bottom = 440, 290, 36 + len(rows) * 30
    parts = [text(left, 20, "times as fast as TorchRL (logarithmic)", anchor="start")]
    for tick in (1, 2, 5, 10, 20):
        x = left + scale * math.log10(tick)
        parts.append(f'<path class="line" style="opacity:.3" d="M{x:g} 30 L{x:g} {bottom}"/>')
        parts.append(text(x, bottom + 16, str(tick), style="ink small"))
    for line, (work, ratio) in enumerate(rows):
        y = 34 + line * 30
        parts.append(text(left - 10, y + 17, work, anchor="end", style="ink small"))
        parts.append(box(left, y, (max(2.0, scale * math.log10(ratio)), 23)))
        parts.append(
            text(left + scale * math.log10(ratio) + 8, y + 17, digits(ratio), anchor="start")
        )
    return drawing(
        940, bottom + 26, "Ratios of the times that TorchRL and these packages take", parts
    )


PICTURES = {"data-flow": data_flow, "layers": layer_picture, "benchmarks": speed_picture}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
