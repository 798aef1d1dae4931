"""Locking of in-place updates against writers of other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rl_replay.shared.files import LEFT, UPDATING
from rl_slabs import LazyFile
from rl_slabs.internals import claim_lock, fence

# values of the word: files are being left, files were left
_PERHAPS, _FOR_GOOD = 1, 2


class InPlaceUpdateLock:
    """Lets one process at a time update rows in place; writers wait meanwhile."""

    def __init__(self, board: NDArray[np.int64], file: LazyFile, timeout_s: float = 5.0) -> None:
        self.board = board
        self._words = board.data
        self._file = file
        self._timeout_s = timeout_s

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keeps the rows live at entry from being overwritten until exit."""
        with claim_lock(self._file.fileno(), self._timeout_s):
            self._words[UPDATING] = 1
            fence()
            try:
                yield
            finally:
                fence()
                self._words[UPDATING] = self._words[LEFT] == _FOR_GOOD

    def wait(self) -> None:
        """For a writer that has reserved: waits for updates of rows that it may overwrite."""
        if self._words[UPDATING]:
            with claim_lock(self._file.fileno(), self._timeout_s):
                self._undo_killed()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Retires the files for all processes, unless the block raises."""
        # Whoever publishes rows meanwhile is either seen from inside, or refused by look_back.
        with self.closed():
            self.require_current()
            self._words[LEFT] = _PERHAPS
            fence()
            try:
                yield
            except BaseException:
                self._words[LEFT] = 0
                raise
            self._words[LEFT] = _FOR_GOOD

    def require_still_current(self) -> None:
        """For a writer that has published: raises if the files were retired meanwhile."""
        fence()  # the rows are seen before the word is looked at
        if self._words[LEFT]:
            with claim_lock(self._file.fileno(), self._timeout_s):
                self._undo_killed()

    def require_current(self) -> None:
        """Raises if the files are retired."""
        if self._words[LEFT] == _FOR_GOOD:
            raise RuntimeError(
                "another process emptied this buffer and stores rows with other keys since: hand "
                "the buffer over again, from a process that has those, or make another one."
            )

    def _undo_killed(self) -> None:
        """Undoes what a killed process had begun; the caller holds the lock."""
        self.require_current()
        self._words[LEFT] = self._words[UPDATING] = 0
