"""How a worker ended, as messages say it."""

from __future__ import annotations

import re

_PLACE = re.compile(r"^\[[^\]]*\] ")  # gloo's file and line


def ending_of(error: BaseException) -> str:
    """One line of what may be a long message: the one that gives a reason, if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "because" in line), lines[0] if lines else "")
    return _PLACE.sub("", reason)[:300] or type(error).__name__
