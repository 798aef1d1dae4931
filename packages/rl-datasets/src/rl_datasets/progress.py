"""Progress bars, where tqdm is installed."""

from __future__ import annotations

import importlib.util
from types import TracebackType
from typing import Any, Protocol, Self


class ProgressBar(Protocol):
    """Counts up."""

    def update(self, n: int) -> Any:
        """Counts `n` more."""

    def __enter__(self) -> Self:
        """Begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """Ends."""


class _NoBar:
    """Shows nothing."""

    def update(self, n: int) -> None:
        """Counts nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def progress_bar(total: int | None, title: str, unit: str, *, shown: bool = True) -> ProgressBar:
    """A bar up to `total`; nothing where tqdm is not installed, or work is done in a second."""
    if not shown or importlib.util.find_spec("tqdm") is None:
        return _NoBar()
    from tqdm.auto import tqdm

    bar: ProgressBar = tqdm(total=total, desc=title, unit=unit, unit_scale=True, delay=1)
    return bar
