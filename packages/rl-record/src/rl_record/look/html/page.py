"""A finished page."""

from __future__ import annotations

import os
from html import escape
from importlib.resources import files
from pathlib import Path

from rl_record.look.html.markup import Markup, tag
from rl_tensordict.arguments import check_type

FRAME_HEIGHT = 640  # pixels in a notebook


class Page:
    """A page of HTML that needs nothing else, light or dark as the reader's system is.

    Notebooks show it in a frame of its own.

    Attributes:
        title: what is shown.
        summary: in a few words.
        body: what `html` wraps.

    Example:
        >>> page = Page("batch [3]", "1 trajectory", Markup("<p>rows</p>"))
        >>> "<p>rows</p>" in page.html
        True
    """

    def __init__(self, title: str, summary: str, body: Markup) -> None:
        self.title, self.summary, self.body = title, summary, body

    @property
    def html(self) -> str:
        """The whole document."""
        here = files("rl_record.look.html")
        style, script = (here.joinpath(name).read_text("utf-8") for name in _PARTS)
        head = (
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", self.title),
            tag("style", Markup(style)),
        )
        body = tag("body", tag("main", self.body), tag("script", Markup(script)))
        return f"<!doctype html>\n{tag('html', tag('head', *head), body, lang='en')}\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page.

        Args:
            path: the file; one that is there is replaced.

        Returns:
            The file.

        Raises:
            OSError: it cannot be written there.
        """
        check_type("path", path, str | os.PathLike, "a file name, as 'rows.html'")
        file = Path(path)
        if file.is_dir():
            msg = f"path: {str(file)!r} is a folder. Name a file in it, as 'rows.html'."
            raise IsADirectoryError(msg)
        if not file.parent.is_dir():
            msg = f"path: the folder {str(file.parent)!r} is not there: make it first."
            raise FileNotFoundError(msg)
        file.write_text(self.html, "utf-8")
        return file

    def _repr_html_(self) -> str:
        """What a notebook shows: a frame, in which neither side changes the other's style."""
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}">' + (
            "</iframe>"
        )

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {self.summary})"


_PARTS = ("style.css", "script.js")
