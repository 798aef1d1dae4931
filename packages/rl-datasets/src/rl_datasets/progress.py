"""Progress bars, where tqdm is installed."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _NoBar:
    """Shows nothing."""

    def update(self, n: int) -> None:
        """Counts nothing."""


def progress_bar(
    total: int | None, title: str, unit: str, *, shown: bool = True
) -> AbstractContextManager[Any]:
    """A bar up to `total`; nothing where tqdm is not installed, or work is done in a second."""
    if not shown or importlib.util.find_spec("tqdm") is None:
        return nullcontext(_NoBar())
    from tqdm.auto import tqdm

    bar: AbstractContextManager[Any] = tqdm(
        total=total, desc=title, unit=unit, unit_scale=True, delay=1
    )
    return bar
