"""HTML whose text is escaped, since every string of a page may come from data."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset({"input", "meta"})


class Markup(str):
    """HTML that is put into a page as it is; any other string is escaped."""

    __slots__ = ()


Content = str | Iterable["Content"] | None


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """An element; None among its content or attributes is left out."""
    head = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        head += f" {label}" if value is True else f' {label}="{html.escape(str(value))}"'
    return Markup(f"<{head}>" if name in VOID else f"<{head}>{joined(content)}</{name}>")


def joined(content: Content) -> Markup:
    """Content as HTML."""
    if content is None:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(html.escape(content))
    return Markup("".join(map(joined, content)))
