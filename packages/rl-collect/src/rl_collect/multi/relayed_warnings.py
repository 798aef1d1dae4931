"""Warnings of workers, raised once in the process of the caller."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

WarningRecord = tuple[type[Warning], str]
"""A category of Python's own, and the text of a warning."""


@contextmanager
def record_warnings() -> Iterator[list[WarningRecord]]:
    """Record warnings instead of printing them; where the block fails they are printed."""
    # not catch_warnings, which resets what was shown once: each batch would warn again
    records: list[WarningRecord] = []
    unprinted: list[tuple[Any, ...]] = []
    show = warnings.showwarning

    def record(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        # a class of the worker's own may be unknown to the caller
        known = next(one for one in category.__mro__ if one.__module__ == "builtins")
        records.append((known, str(message)))
        unprinted.append((message, category, *where))

    warnings.showwarning = record
    try:
        yield records
    except BaseException:
        for one in unprinted:
            show(*one)
        raise
    finally:
        warnings.showwarning = show


class WorkerWarnings:
    """The warnings of all workers, each to be raised once."""

    def __init__(self) -> None:
        self._known: set[WarningRecord] = set()
        self._pending: list[WarningRecord] = []

    def add(self, records: Iterable[WarningRecord]) -> None:
        """Add the warnings of a batch."""
        for one in records:
            if one not in self._known:
                self._known.add(one)
                self._pending.append(one)

    def warn(self, stacklevel: int) -> None:
        """Raise the pending warnings."""
        while self._pending:
            category, text = self._pending.pop(0)
            warnings.warn(
                f"{text} (a worker of the collector says so)", category, stacklevel=stacklevel + 1
            )
