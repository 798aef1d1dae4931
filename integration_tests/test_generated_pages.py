"""Pictures of the pages are those that the script draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import figures

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", figures.PICTURES)
def test_picture_is_current(name: str) -> None:
    """The committed file is what the script draws."""
    file = figures.FOLDER / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == figures.PICTURES[name](), (
        "run `python -m tools.figures`"
    )


def test_layer_picture_names_every_package() -> None:
    """No package is missing from the picture."""
    drawn = figures.layer_picture()
    assert all(f">{path.name}<" in drawn for path in (ROOT / "packages").iterdir())


def test_every_place_of_the_architecture_page_exists() -> None:
    """The table of places names files and folders of the repository."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:packages|integration_tests)/[^`]+)`", page)
    assert len(places) > 20
    assert [place for place in places if not any(ROOT.glob(place))] == []
