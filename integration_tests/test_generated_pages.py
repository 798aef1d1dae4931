"""Pictures and tables of the pages are those that the scripts write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import bench_table, figures

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", figures.PICTURES)
def test_picture_is_current(name: str) -> None:
    """The committed file is what the script draws."""
    file = figures.FOLDER / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == figures.PICTURES[name](), (
        "run `python -m tools.figures`"
    )


def test_benchmark_table_is_current() -> None:
    """The README shows the newest record."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page == bench_table.updated(page, bench_table.newest_record()), (
        "run `python -m tools.bench_table`"
    )


def test_layer_picture_names_every_package() -> None:
    """No package is missing from the picture."""
    drawn = figures.layer_picture()
    assert all(f">{path.name}<" in drawn for path in (ROOT / "packages").iterdir())


@pytest.mark.parametrize(
    ("row", "missing", "value"),
    [
        ({"ours": 2.0, "ratio": 3.0}, "torchrl", 6.0),
        ({"torchrl": 6.0, "ratio": 3.0}, "ours", 2.0),
        ({"ours": 2.0, "torchrl": 6.0}, "ratio", 3.0),
    ],
)
def test_third_figure_follows_from_two(row: dict[str, float], missing: str, value: float) -> None:
    """A record may hold any two of the three figures."""
    assert bench_table.complete(row)[missing] == value


def test_every_place_of_the_architecture_page_exists() -> None:
    """The table of places names files and folders of the repository."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:packages|integration_tests)/[^`]+)`", page)
    assert len(places) > 20
    assert [place for place in places if not any(ROOT.glob(place))] == []
