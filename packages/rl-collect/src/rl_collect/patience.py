"""Waits that end, and that say what they wait for once they take long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

SILENT_S = 3.0
"""How long nothing is said."""

log = logging.getLogger("rl_collect")


class Patience:
    """One time limit for several waits in a row."""

    def __init__(self, timeout_s: float, advice: str) -> None:
        self.limit_s, self._advice = timeout_s, advice
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(self._end - time.monotonic(), 0.0)

    def wait(self, ends: Callable[[float], bool], what: str) -> bool:
        """Wait until something ends or no time is left; say so after a few seconds."""
        if ends(min(SILENT_S, self.left_s)):
            return True
        if self.left_s > 0:
            log.warning("waiting up to %.0f s more for %s: %s", self.left_s, what, self._advice)
        return ends(self.left_s)
