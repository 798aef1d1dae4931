"""The pages of several buffers as one."""

from __future__ import annotations

from collections.abc import Sequence

from rl_record.look.html.markup import Markup, tag
from rl_record.look.html.page import Page


def page_of_members(title: str, pages: Sequence[Page | None]) -> Page:
    """One page of the pages of buffers in their order; None is an empty buffer."""
    heads = [f"buffer {k}: {_summary(page)}" for k, page in enumerate(pages)]
    links = [tag("a", head, href=f"#buffer-{k}") for k, head in enumerate(heads)]
    parts = [
        tag("article", tag("h2", head) if page is None else _apart(page, k), id=f"buffer-{k}")
        for k, (head, page) in enumerate(zip(heads, pages, strict=True))
    ]
    head = tag("header", tag("h1", title), tag("nav", links))
    return Page(title, "; ".join(heads), Markup(head + "".join(parts)))


def _summary(page: Page | None) -> str:
    return "no row" if page is None else page.summary


def _apart(page: Page, number: int) -> Markup:
    """The body of a page with names of its own for its places and in the links to them."""
    # nothing but markup has a plain quote: `tag` escapes those of data
    own = page.body.replace(' id="', f' id="buffer-{number}-')
    return Markup(own.replace(' href="#', f' href="#buffer-{number}-'))
