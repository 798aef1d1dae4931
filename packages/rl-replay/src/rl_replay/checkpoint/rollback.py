"""Loads of several parts, all of which or none change."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol


class Stateful(Protocol):
    """A part whose state is saved and restored."""

    def state_dict(self) -> Any:
        """A copy of the state."""

    def load_state_dict(self, state: Any) -> None:
        """Restores it."""


@contextmanager
def restored_on_failure(parts: Sequence[Stateful]) -> Iterator[None]:
    """Gives every part its former state where the block fails.

    The states are kept in memory until the block ends, so parts that hold no rows cost nothing.
    """
    former = [part.state_dict() for part in parts]
    try:
        yield
    except BaseException as failure:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is put back replaces nothing of the caller's
            for number, (part, state) in enumerate(zip(parts, former, strict=True)):
                try:
                    part.load_state_dict(state)
                except Exception as error:
                    failure.add_note(f"Member {number} could not be restored: {error}")
        raise
