"""Warnings in workers, which the caller hears once, as those of its own process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Said = tuple[type[Warning], str]
"""A category of Python's own, and the text of a warning."""


@contextmanager
def recording() -> Iterator[list[Said]]:
    """Note what is warned of instead of printing it; where the block fails it is printed."""
    # not catch_warnings, which would forget what was said before: then each batch says it again
    said: list[Said] = []
    unprinted: list[tuple[Any, ...]] = []
    show = warnings.showwarning

    def note(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        # a class of the worker's own may be unknown to the caller
        known = next(one for one in category.__mro__ if one.__module__ == "builtins")
        said.append((known, str(message)))
        unprinted.append((message, category, *where))

    warnings.showwarning = note
    try:
        yield said
    except BaseException:
        for one in unprinted:
            show(*one)
        raise
    finally:
        warnings.showwarning = show


class WorkerWarnings:
    """What workers have warned of, to be said once."""

    def __init__(self) -> None:
        self._heard: set[Said] = set()
        self._unsaid: list[Said] = []

    def hear(self, said: Iterable[Said]) -> None:
        """Note the warnings of a batch."""
        for one in said:
            if one not in self._heard:
                self._heard.add(one)
                self._unsaid.append(one)

    def repeat(self, stacklevel: int) -> None:
        """Warn of what was not said yet."""
        while self._unsaid:
            category, text = self._unsaid.pop(0)
            warnings.warn(
                f"{text} (a worker of the collector says so)", category, stacklevel=stacklevel + 1
            )
