"""Numbers and keys as a page writes them."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """A number with four digits, a whole one with all; thousands apart."""
    if value is None:
        return "none"
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        whole = int(value)
        return f"{whole:,}" if abs(whole) < 10**15 else f"{whole:.4g}"
    return f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def key_text(key: str | tuple[str, ...]) -> str:
    """A key with its parts apart."""
    return key if isinstance(key, str) else " › ".join(key)  # noqa: RUF001 - an arrow, no quote


def share(part: int, whole: int) -> str:
    """A part of a whole in per cent."""
    return f"{part / whole:.1%}" if whole else "none"
