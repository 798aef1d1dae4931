"""What a storage knows of how its rows are kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Checkpointer(Protocol):
    """Writes the rows of a storage to a folder, and restores them."""

    form: Any  # the form of the rows among the parts of a buffer's dump; None as they lie
    is_own: bool  # whether `dumps` writes such parts; else a buffer gives it a folder of its own
    save_hooks: list[Callable[[Any], Any]]  # they change the rows that are written
    load_hooks: list[Callable[[Any], Any]]  # they change them back

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Writes the rows."""
        ...

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Restores them."""
        ...
