"""Rows changed in place while other processes write: nothing they change is given out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rl_replay.sharing.files import UPDATING
from rl_slabs import LazyFile
from rl_slabs.claim_lock import claim_lock
from rl_slabs.lane import fence


class UpdateGate:
    """Lets one process at a time change rows in place, and holds back whoever reserves meanwhile.

    A writer reserves, then looks at one word; a process that changes rows sets the word, then looks
    at what is reserved. One of the two sees the other: either the row is refused, because it is
    about to be overwritten, or the writer waits until it is changed. So nobody writes into a row
    that is another one by then. The lock behind it is the kernel's, which frees it when its
    holder is killed; a writer takes it only where the word is set.

    Args:
        board: The words of all processes.
        file: What the lock is on.
        timeout_s: How long to wait for a process that changes rows.

    Example:
        >>> gate = UpdateGate(np.zeros(8, np.int64), LazyFile.shared("an example"))
        >>> with gate.closed():
        ...     int(gate.board[UPDATING])
        1
        >>> gate.wait()
    """

    def __init__(self, board: NDArray[np.int64], file: LazyFile, timeout_s: float = 5.0) -> None:
        self.board = board
        self._words = board.data
        self._file = file
        self._timeout_s = timeout_s

    @contextmanager
    def closed(self) -> Iterator[None]:
        """No row that stood inside is given out before the end.

        Raises:
            TimeoutError: A process that was stopped in here blocks the others.
        """
        with claim_lock(self._file.fileno(), self._timeout_s):
            self._words[UPDATING] = 1
            fence()
            try:
                yield
            finally:
                fence()
                self._words[UPDATING] = 0

    def wait(self) -> None:
        """For a writer that has reserved: return when nobody changes rows that it may overwrite.

        Raises:
            TimeoutError: As in `closed`.
        """
        if self._words[UPDATING]:
            with claim_lock(self._file.fileno(), self._timeout_s):
                self._words[UPDATING] = 0  # whoever set it is through, or was killed
